package nftables

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

func (r *jsonReader) rule(n node, at Position) *Rule {
	rule := &Rule{Position: at, Comment: n.str("comment")}
	all := n.get("expr").list()
	rule.Statements = make([]Statement, 0, len(all))
	for _, s := range all {
		rule.Statements = append(rule.Statements, r.statement(s))
	}
	return rule
}

// unknown is a statement that this package does not know. Of one without JSON, nft gives the text.
func (r *jsonReader) unknown(n node, want string) Statement {
	u := Unknown{Position: r.position(n.at), Text: r.src[n.at:n.end]}
	if n.kind == '"' {
		p := &parser{builder: r.builder, scope: &scope{}, depth: r.depth, state: state{lexer: lexer{file: r.file, src: n.text, line: 1}}}
		p.advance()
		if s := p.statement(); p.err == nil && p.is(endOfFile) {
			if v, ok := s.(Verdict); ok {
				for _, rule := range v.Rules { // their lines are those of the string
					rule.Position = u.Position
				}
			}
			return s
		}
		u.Text, u.Err = n.text, p.err
		return u
	}
	u.Err = &Error{Position: u.Position, Found: "the statement", Want: want}
	return u
}

func (r *jsonReader) statement(n node) Statement {
	key, v, ok := n.single()
	if !ok {
		return r.unknown(n, "an object of one member")
	}
	switch key {
	case "accept", "drop", "continue", "return", "jump", "goto", "break":
		return Verdict{Kind: VerdictKind(key), Chain: v.str("target")}
	case "match":
		return r.match(v)
	case "vmap":
		left, data := r.lookUp(v, nil)
		return VerdictMap{Key: left, Data: data}
	case "mangle":
		left := r.expr(v.get("key"), nil)
		switch name, _, _ := v.get("key").single(); name {
		case "ct helper", "ct timeout", "ct expectation":
			return ObjectRef{Kind: name, Name: r.expr(v.get("value"), []hint{inQuotes})}
		}
		return Mangle{Key: left, Value: r.expr(v.get("value"), hintsOf(left))}
	case "reset":
		return Reset{Option: r.expr(v, nil)}
	case "snat", "dnat", "masquerade", "redirect":
		return r.nat(key, v)
	case "tproxy":
		return TProxy{Family: Family(v.str("family")), Address: r.optional(v.get("addr")), Port: r.optional(v.get("port"))}
	case "counter", "quota", "limit", "synproxy":
		if v.kind == '"' || v.has("map") {
			return ObjectRef{Kind: key, Name: r.named(v)}
		}
		return r.state(key, v)
	case "ct helper", "ct timeout", "ct expectation", "secmark":
		return ObjectRef{Kind: key, Name: r.named(v)}
	case "ct count", "last":
		return r.state(key, v)
	case "log":
		return r.log(v)
	case "reject":
		return r.reject(v)
	case "notrack":
		return Notrack{}
	case "queue":
		return Queue{Number: r.optional(v.get("num")), Flags: v.strs("flags")}
	case "dup":
		d := Dup{Address: r.optional(v.get("addr")), Device: r.device(v.get("dev"))}
		if r.family == FamilyNetdev {
			d.Address = r.device(v.get("addr"))
		}
		return d
	case "fwd":
		return Fwd{Family: Family(v.str("family")), Address: r.optional(v.get("addr")), Device: r.device(v.get("dev"))}
	case "set", "map":
		return r.setStatement(v)
	case "meter":
		m := Meter{Name: v.str("name"), Size: v.num("size"), Element: r.element(v.get("key"), nil, nil)}
		m.Element.Statements = append(m.Element.Statements, r.statement(v.get("stmt")))
		return m
	case "flow":
		return FlowAdd{Flowtable: strings.TrimPrefix(v.str("flowtable"), "@")}
	case "xt":
		return XT{Type: v.str("type"), Name: v.str("name")}
	}
	return r.unknown(n, "a statement that is known")
}

func (r *jsonReader) match(v node) Statement {
	m := Match{Op: v.str("op"), Left: r.expr(v.get("left"), nil)}
	m.Right = r.expr(v.get("right"), hintsOf(m.Left))
	switch m.Op {
	case "==", "!=", "<", ">", "<=", ">=", "!":
	case "in", "":
		if m.Op = "=="; isFlag(m.Left) && isValue(m.Right) {
			m.Op = "in"
		}
	default:
		return r.unknown(v, "an operator such as ==")
	}
	return m
}

// named is a name of an object or a device, or a map that gives it.
func (r *jsonReader) named(v node) Expr {
	if m := v.get("map"); m.kind != 0 {
		key, data := r.lookUp(m, []hint{inQuotes})
		return Map{Key: key, Data: data}
	}
	return r.expr(v, []hint{inQuotes})
}

// reject leaves the default of the family out, as the text does.
func (r *jsonReader) reject(v node) Statement {
	code := v.get("expr")
	defaults := map[string]string{"icmp": "3", "icmpv6": "4", "icmpx": "1"}
	kind := v.str("type")
	if d := defaults[kind]; d != "" && (code.text == "port-unreachable" || code.text == d) &&
		(kind == "icmpx" || kind == "icmp" && r.family == FamilyIP || kind == "icmpv6" && r.family == FamilyIP6) {
		return Reject{}
	}
	return Reject{With: kind, Code: r.optional(code)}
}

// lookUp is the key and the data of a map; the hints are those of its values.
func (r *jsonReader) lookUp(v node, values []hint) (key, data Expr) {
	key = r.expr(v.get("key"), nil)
	d := v.get("data")
	if _, set, ok := d.single(); ok && d.has("set") {
		return key, AnonymousSet{Elements: r.elements(set, hintsOf(key), values)}
	}
	return key, r.expr(d, nil)
}

func (r *jsonReader) optional(n node) Expr {
	if n.kind == 0 {
		return nil
	}
	return r.expr(n, nil)
}

func (r *jsonReader) device(n node) Expr {
	if n.kind == 0 {
		return nil
	}
	return r.named(n)
}

func (r *jsonReader) nat(kind string, v node) Statement {
	n := NAT{Kind: kind, Family: Family(v.str("family")), Address: r.optional(v.get("addr")), Port: r.optional(v.get("port")), Flags: v.strs("flags")}
	n.Prefix = slices.Contains(v.strs("type_flags"), "prefix")
	n.Flags = slices.DeleteFunc(n.Flags, func(f string) bool { return f == "netmap" }) // how the kernel knows a prefix; the text does not have it
	if len(n.Flags) == 0 {
		n.Flags = nil
	}
	return n
}

// state reads what counts.
func (r *jsonReader) state(key string, v node) Statement {
	switch key {
	case "counter":
		return Counter{Packets: v.num("packets"), Bytes: v.num("bytes"), Given: v.has("packets") || v.has("bytes")}
	case "quota":
		q := Quota{Over: v.isTrue("inv"), Size: v.num("val"), Unit: cmp.Or(v.str("val_unit"), "bytes")}
		if v.num("used") != 0 {
			q.Used, q.UsedUnit = v.num("used"), cmp.Or(v.str("used_unit"), "bytes")
		}
		return q
	case "limit":
		return r.limit(v)
	case "synproxy":
		return r.synproxy(v)
	case "ct count":
		return ConnLimit{Over: v.isTrue("inv"), Count: v.num("val")}
	default: // last
		return Last{Given: true, Never: !v.has("used"), Used: time.Duration(min(v.num("used"), 1<<40)) * time.Millisecond}
	}
}

func (r *jsonReader) limit(v node) Limit {
	l := Limit{Over: v.isTrue("inv"), Rate: v.num("rate"), Unit: cmp.Or(v.str("rate_unit"), "packets"), Per: cmp.Or(v.str("per"), "second"), Burst: v.num("burst")}
	if l.Burst != 0 {
		if l.BurstUnit = cmp.Or(v.str("burst_unit"), "bytes"); !v.has("burst_unit") && l.Unit == "packets" {
			l.BurstUnit = "packets"
		}
	} else if l.Unit == "packets" {
		l.Burst, l.BurstUnit, l.Implied = defaultBurst, "packets", true
	}
	return l
}

func (r *jsonReader) synproxy(v node) (s Synproxy) {
	if v.has("mss") {
		s.MSS = new(v.num("mss"))
	}
	if v.has("wscale") {
		s.WScale = new(v.num("wscale"))
	}
	flags := v.strs("flags")
	s.Timestamp, s.SACKPerm = slices.Contains(flags, "timestamp"), slices.Contains(flags, "sack-perm")
	return s
}

func (r *jsonReader) log(v node) Statement {
	l := Log{Snaplen: v.num("snaplen"), QueueThreshold: v.num("queue-threshold"), Level: v.str("level"), Flags: v.strs("flags")}
	if v.has("prefix") {
		l.Prefix = Literal{Text: v.str("prefix"), Kind: Quoted}
	}
	if v.has("group") {
		l.Group = new(v.num("group"))
	}
	return l
}

func (r *jsonReader) setStatement(v node) Statement {
	s := SetStatement{Op: v.str("op"), Set: strings.TrimPrefix(cmp.Or(v.str("map"), v.str("set")), "@")}
	s.Element = r.element(v.get("elem"), nil, nil)
	if v.has("data") {
		s.Element.Value = r.expr(v.get("data"), hintsOf(s.Element.Key))
	}
	for _, stmt := range v.get("stmt").list() {
		s.Element.Statements = append(s.Element.Statements, r.statement(stmt))
	}
	return s
}
