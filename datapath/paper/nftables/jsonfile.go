package nftables

import (
	"slices"
	"strconv"
	"time"
)

func readJSON(name, src string, b *builder) *Error {
	r := &jsonReader{builder: b, file: name, src: src}
	found := false
	r.members(func(key string) {
		if key != "nftables" || r.next() != '[' {
			r.value()
			return
		}
		found = true
		// Each is dropped when it is read: a listing may have a million values.
		r.items(func() {
			at := r.pos
			verb, one, ok := r.value().single()
			if r.err != nil {
				return
			}
			if !ok {
				r.fail(at, "an object of one member such as \"table\"")
				return
			}
			r.command(verb, one)
		})
	})
	if r.err == nil && !found {
		r.fail(0, "an object with an array \"nftables\"")
	}
	if r.err == nil && r.next() != 0 {
		r.fail(r.pos, "the end of the file")
	}
	return r.err
}

// command carries out one item of the array: a thing of a listing, or a command on one.
func (r *jsonReader) command(verb string, n node) {
	kind := verb
	switch verb {
	case "add", "create", "insert", "replace", "delete", "destroy", "flush", "rename":
		var ok bool
		if kind, n, ok = n.single(); !ok {
			return
		}
	case "metainfo", "list", "reset":
		return
	default:
		verb = "add"
	}
	if kind == "ruleset" {
		if verb == "flush" {
			r.flushRuleset(Family(n.str("family")))
		}
		return
	}
	if n.kind != '{' {
		r.fail(n.at, "an object")
		return
	}
	at := r.position(n.at)
	family, table, name, handle := Family(n.str("family")), n.str("table"), n.str("name"), n.num("handle")
	if kind == "table" {
		table = name
	}
	removes := verb == "delete" || verb == "destroy"
	if removes && kind == "table" {
		is := named(name, handle)
		r.deleteTable(func(t *Table) bool { return t.Family == family && is(t.Name, t.Handle) })
		return
	}
	if table == "" {
		r.fail(n.at, "a member \"table\"")
		return
	}
	var t *tableIndex
	if removes || verb == "flush" || verb == "rename" {
		t = r.existing(family, table)
	} else {
		t = r.table(family, table, at)
	}
	switch {
	case verb == "flush":
		t.flush(kind, name)
	case verb == "rename":
		r.renameChain(t, name, n.str("newname"))
	case kind == "rule":
		cmd := ruleCommand{verb: verb, handle: handle, index: -1}
		if n.has("index") {
			cmd.index = int(min(n.num("index"), 1<<30))
		}
		if c := t.chains[n.str("chain")]; removes && c != nil {
			c.apply(cmd, nil)
		}
		if removes {
			return
		}
		c := t.chain(n.str("chain"), at)
		r.family = family
		rule := r.rule(n, at)
		if verb == "add" { // of a listing it is its own
			cmd.handle, rule.Handle = 0, handle
		}
		c.apply(cmd, rule)
	case kind == "element":
		if s := t.sets[name]; removes && s != nil {
			t.removeElements(name, r.elements(n.get("elem"), s.Key.hints(), nil))
		}
		if removes {
			return
		}
		s := t.set(name, at)
		s.Elements = append(s.Elements, r.elements(n.get("elem"), s.Key.hints(), s.Value.hints())...)
	case removes:
		t.remove(kind, named(name, handle))
	default:
		r.thing(t, kind, n, at)
	}
}

func (r *jsonReader) thing(t *tableIndex, kind string, n node, at Position) {
	name, handle := n.str("name"), n.num("handle")
	switch kind {
	case "table":
		t.Handle, t.Flags, t.Comment = handle, n.strs("flags"), n.str("comment")
	case "chain":
		c := t.chain(name, at)
		c.Handle, c.Comment, c.Flags = handle, n.str("comment"), n.strs("flags")
		if n.has("hook") {
			c.Base = &Base{Type: n.str("type"), Hook: n.str("hook"), Priority: r.priority(n), Devices: n.strs("dev"), Policy: n.str("policy")}
		}
	case "set", "map", "meter":
		r.set(t.set(name, at), kind, n)
	case "flowtable":
		t.Flowtables = append(t.Flowtables, &Flowtable{
			Position: at, Name: name, Handle: handle, Hook: n.str("hook"), Priority: r.priority(n), Devices: n.strs("dev"), Flags: n.strs("flags"), Counter: n.has("counter"),
		})
	default:
		t.addObject(&Object{Position: at, Kind: kind, Name: name, Handle: handle, Comment: n.str("comment"), Body: r.body(kind, n, at)})
	}
}

func (r *jsonReader) priority(n node) int32 {
	p, err := strconv.ParseInt(n.get("prio").text, 10, 32)
	if err != nil && n.has("prio") {
		r.fail(n.get("prio").at, "a priority of 32 bits")
	}
	return int32(p)
}

// seconds is a time of whole seconds.
func (n node) seconds(key string) time.Duration {
	return time.Duration(min(n.num(key), 1<<33)) * time.Second
}

func (r *jsonReader) set(s *Set, kind string, n node) {
	s.Handle, s.Comment, s.Policy, s.Size = n.num("handle"), n.str("comment"), n.str("policy"), n.num("size")
	s.Map, s.Meter = kind == "map", kind == "meter"
	s.Key, s.Flags = r.setType(n.get("type")), n.strs("flags")
	if n.has("map") {
		s.Map, s.Value = true, r.setType(n.get("map"))
	}
	s.Timeout, s.GCInterval, s.AutoMerge = n.seconds("timeout"), n.seconds("gc-interval"), n.isTrue("auto-merge")
	for _, stmt := range n.get("stmt").list() {
		s.Statements = append(s.Statements, r.statement(stmt))
	}
	s.sortFlags()
	s.Elements = append(s.Elements, r.elements(n.get("elem"), s.Key.hints(), s.Value.hints())...)
	s.Value.Interval = slices.ContainsFunc(s.Elements, func(e Element) bool { return isInterval(e.Value) }) // JSON does not tell
}

func isInterval(e Expr) bool {
	switch e := e.(type) {
	case Prefix, Range:
		return true
	case Concat:
		return slices.ContainsFunc(e, isInterval)
	}
	return false
}

func (r *jsonReader) setType(n node) (t Type) {
	if of := n.get("typeof"); of.kind != 0 {
		if of.kind == '[' {
			t.Of = r.concat(of)
		} else {
			t.Of = r.expr(of, nil)
		}
		return t
	}
	for _, item := range n.list() {
		t.Names = append(t.Names, item.text)
	}
	return t
}

func (r *jsonReader) body(kind string, n node, at Position) ObjectBody {
	switch kind {
	case "counter":
		return Counter{Packets: n.num("packets"), Bytes: n.num("bytes"), Given: n.has("packets")}
	case "quota":
		size, unit := scaled(n.num("bytes"))
		q := Quota{Over: n.isTrue("inv"), Size: size, Unit: unit}
		if q.Used = n.num("used"); q.Used != 0 {
			q.Used, q.UsedUnit = scaled(q.Used)
		}
		return q
	case "limit":
		return r.limit(n)
	case "synproxy":
		return r.synproxy(n)
	case "secmark":
		return Secmark{Context: n.str("context")}
	case "ct helper":
		return CTHelper{Type: n.str("type"), Protocol: n.str("protocol"), L3Proto: n.str("l3proto")}
	case "ct timeout":
		b := CTTimeout{Protocol: n.str("protocol"), L3Proto: n.str("l3proto")}
		policy := n.get("policy")
		for _, state := range policy.keys {
			b.Policy = append(b.Policy, StateTimeout{State: state, Timeout: policy.seconds(state)})
		}
		return b
	case "ct expectation":
		return CTExpectation{
			Protocol: n.str("protocol"), L3Proto: n.str("l3proto"), DPort: n.num("dport"), Size: n.num("size"),
			Timeout: time.Duration(min(n.num("timeout"), 1<<40)) * time.Millisecond,
		}
	}
	return Unknown{Position: at, Text: r.src[n.at:n.end]}
}

// scaled is a number of bytes in the unit that nft prints it with.
func scaled(n uint64) (uint64, string) {
	units := []string{"bytes", "kbytes", "mbytes"}
	i := 0
	for n >= 1024 && n%1024 == 0 && i < len(units)-1 {
		n /= 1024
		i++
	}
	return n, units[i]
}
