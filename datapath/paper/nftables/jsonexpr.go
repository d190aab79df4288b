package nftables

import (
	"strconv"
	"strings"
)

// expr reads an expression; the hints are those of its constants, by their place in a concatenation.
func (r *jsonReader) expr(n node, hints []hint) Expr {
	h := plain
	if len(hints) > 0 {
		h = hints[0]
	}
	switch n.kind {
	case '"', '0', 't', 'f':
		return literal(n, h)
	case '[':
		l := List{}
		for _, item := range n.items {
			l = append(l, r.expr(item, hints))
		}
		return l
	}
	key, v, ok := n.single()
	if !ok {
		return r.unread(n)
	}
	switch key {
	case "concat":
		return r.concat(v, hints...)
	case "set":
		return AnonymousSet{Elements: r.elements(v, hints, nil)}
	case "map":
		left, data := r.lookUp(v, nil)
		return Map{Key: left, Data: data}
	case "prefix":
		return Prefix{Address: r.expr(v.get("addr"), hints), Length: int(v.num("len") & 0xff)}
	case "range":
		if len(v.items) == 2 {
			return Range{Low: r.expr(v.items[0], hints), High: r.expr(v.items[1], hints)}
		}
	case "&", "|", "^", "<<", ">>":
		return r.operation(key, v, hints)
	case "elem":
		return r.expr(v.get("val"), hints)
	case "accept", "drop", "continue", "return", "jump", "goto", "break":
		return Verdict{Kind: VerdictKind(key), Chain: v.str("target")}
	}
	if e := r.selector(key, v); e != nil {
		return e
	}
	return r.unread(n)
}

func (r *jsonReader) unread(n node) Expr { return Unread{Text: r.src[n.at:n.end]} }

func literal(n node, h hint) Expr {
	switch n.kind {
	case 't':
		return Literal{Text: "exists"}
	case 'f':
		return Literal{Text: "missing"}
	case '0':
		if u, err := strconv.ParseUint(n.text, 10, 64); err == nil {
			return h.number(u)
		}
		return Literal{Text: n.text, Kind: Number}
	}
	if n.text != "" && n.text[0] == '@' {
		return SetRef(n.text[1:])
	}
	if h == inQuotes {
		return Literal{Text: n.text, Kind: Quoted}
	}
	text := strings.TrimSuffix(n.text, invalidType)
	if _, ok := parseNumber(text); ok { // "0x4" and other numbers in strings
		return Literal{Text: text, Kind: Number}
	}
	if h == nameOrNumber {
		return Literal{Text: n.text, Kind: Quoted}
	}
	return Literal{Text: n.text}
}

func (r *jsonReader) concat(v node, hints ...hint) Expr {
	c := Concat{}
	for i, item := range v.list() {
		var h []hint
		if i < len(hints) {
			h = hints[i : i+1]
		}
		c = append(c, r.expr(item, h))
	}
	return c
}

// operation reads an operation, which newer nft prints with more than two operands.
func (r *jsonReader) operation(op string, v node, hints []hint) Expr {
	var all Expr
	for _, item := range v.list() {
		e := r.expr(item, hints)
		if all == nil {
			if all = e; hints == nil {
				hints = hintsOf(e)
			}
			continue
		}
		all = operation(op, all, e)
	}
	if all == nil {
		return Unread{Text: r.src[v.at:v.end]}
	}
	return all
}

// selector reads what a statement looks at; nil: it is unknown.
func (r *jsonReader) selector(key string, v node) Expr {
	switch key {
	case "payload":
		if v.has("base") {
			return RawPayload{Base: v.str("base"), Offset: v.num("offset"), Length: v.num("len")}
		}
		p := Payload{Protocol: v.str("protocol"), Field: v.str("field"), Tunnel: v.str("tunnel")}
		if p.Tunnel == p.Protocol { // a field of the tunnel's own header
			p.Tunnel = ""
		}
		return p
	case "meta":
		return Meta{Key: alias("meta", v.str("key"))}
	case "ct":
		c := CT{Key: v.str("key"), Direction: v.str("dir"), Family: Family(v.str("family"))}
		for _, f := range []Family{FamilyIP, FamilyIP6} {
			if n := len(f) + 1; len(c.Key) > n && c.Key[:n] == string(f)+" " {
				c.Family, c.Key = f, c.Key[n:]
			}
		}
		return c
	case "rt":
		return RT{Key: v.str("key"), Family: Family(v.str("family"))}
	case "fib":
		return Fib{Flags: v.strs("flags"), Result: v.str("result")}
	case "socket":
		return Socket{Key: v.str("key"), Level: v.num("level")}
	case "osf":
		return OSF{Key: v.str("key"), TTL: v.str("ttl")}
	case "numgen":
		return Numgen{Mode: v.str("mode"), Mod: v.num("mod"), Offset: v.num("offset")}
	case "jhash":
		return JHash{Of: r.expr(v.get("expr"), nil), Mod: v.num("mod"), Seed: v.num("seed"), Seeded: v.has("seed"), Offset: v.num("offset")}
	case "symhash":
		return SymHash{Mod: v.num("mod"), Offset: v.num("offset")}
	case "ipsec":
		return IPsec{Direction: v.str("dir"), Number: v.num("spnum"), Family: Family(v.str("family")), Key: v.str("key")}
	case "exthdr":
		x := Exthdr{Name: v.str("name"), Field: v.str("field"), Index: v.num("offset")}
		if name, index, ok := strings.Cut(strings.TrimSuffix(x.Field, "]"), "["); ok { // "sid[1]"
			x.Field = name
			x.Index, _ = parseNumber(index)
		}
		return x
	case "tcp option":
		if v.has("base") {
			if v.num("offset") == 0 && v.num("len") == 8 { // whether an option without a name is there
				return TCPOption{Name: v.str("base")}
			}
			return RawTCPOption{Kind: v.num("base"), Offset: v.num("offset"), Length: v.num("len")}
		}
		return TCPOption{Name: v.str("name"), Field: v.str("field")}
	case "ip option":
		return IPOption{Name: v.str("name"), Field: v.str("field")}
	case "sctp chunk":
		return SCTPChunk{Name: v.str("name"), Field: v.str("field")}
	case "ct helper", "ct timeout", "ct expectation":
		return CT{Key: key[len("ct "):]}
	}
	return nil
}

// elements reads the elements of a set; the hints are those of its keys and values.
func (r *jsonReader) elements(n node, keys, values []hint) []Element {
	list := n.list()
	if list == nil {
		return nil
	}
	all := make([]Element, 0, len(list))
	for _, item := range list {
		all = append(all, r.element(item, keys, values))
	}
	return all
}

func (r *jsonReader) element(n node, keys, values []hint) (e Element) {
	e.Line = r.position(n.at).Line
	value := node{}
	if n.kind == '[' && len(n.items) == 2 {
		n, value = n.items[0], n.items[1]
	}
	if elem := n.get("elem"); elem.kind != 0 {
		n = elem.get("val")
		e.Timeout, e.Expires, e.Comment = elem.seconds("timeout"), elem.seconds("expires"), elem.str("comment")
		for i, key := range elem.keys {
			switch key {
			case "counter", "limit", "quota", "ct count", "last":
				e.Statements = append(e.Statements, r.state(key, elem.items[i]))
			}
		}
		for _, stmt := range elem.get("stmt").list() {
			e.Statements = append(e.Statements, r.statement(stmt))
		}
	}
	if n.kind == '"' && n.text == "*" {
		e.Key = Wildcard{}
	} else {
		e.Key = r.expr(n, keys)
	}
	if value.kind != 0 {
		e.Value = r.expr(value, values)
	}
	return e
}
