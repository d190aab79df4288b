package nftables

import "strings"

// isSelector reports whether the current word begins a field, and is no constant such as the protocol tcp.
func (p *parser) isSelector() bool {
	w := p.tok.text
	switch w {
	case "meta", "ct", "fib", "socket", "osf", "numgen", "jhash", "symhash", "ipsec", "exthdr":
		return p.peek().kind == word
	}
	if metaKeys[w] {
		return true
	}
	next := p.peek()
	if next.kind != word && next.kind != number {
		return false
	}
	known, isHeader := fields[w]
	switch {
	case w == "rt":
		return true
	case extensions[w] != nil:
		return extensions[w][next.text]
	case !isHeader:
		return false
	}
	return known[alias(w, next.text)] || next.text == "option" || next.text == "chunk" || isTunnel(w) && fields[next.text] != nil
}

func isTunnel(w string) bool { return w == "vxlan" || w == "geneve" || w == "gre" || w == "gretap" }

// selector reads what a statement looks at.
func (p *parser) selector() Expr {
	e := p.selected()
	if _, uncomparable := e.(Fib); uncomparable || p.err != nil {
		return e
	}
	if _, nested := e.(JHash); nested {
		return e
	}
	if one, ok := p.selectors[e]; ok {
		return one
	}
	if p.selectors != nil && len(p.selectors) < 10000 {
		p.selectors[e] = e
	}
	return e
}

func (p *parser) selected() Expr {
	first := p.tok
	w := p.name("a field such as ip saddr")
	switch w {
	case "meta":
		return p.meta(p.tok)
	case "ct":
		return p.ct()
	case "rt":
		return p.rt()
	case "fib":
		return p.fib()
	case "socket":
		return p.socket()
	case "osf":
		return p.osf()
	case "numgen":
		n := Numgen{Mode: p.oneOf("inc random")}
		p.expectWord("mod")
		n.Mod, n.Offset = p.number(), p.offset()
		return n
	case "jhash":
		p.enter()
		defer p.leave()
		h := JHash{Of: p.concat(selectors)}
		p.expectWord("mod")
		h.Mod = p.number()
		if h.Seeded = p.takeWord("seed"); h.Seeded {
			h.Seed = p.number()
		}
		h.Offset = p.offset()
		return h
	case "symhash":
		p.expectWord("mod")
		return SymHash{Mod: p.number(), Offset: p.offset()}
	case "ipsec":
		if p.isWord("in") || p.isWord("out") {
			return p.ipsec()
		}
	case "exthdr":
		return Exthdr{Name: p.oneOf("hbh rt frag dst mh")}
	}
	switch {
	case metaKeys[w]:
		return Meta{Key: alias("meta", w)}
	case extensions[w] != nil:
		return p.extension(w)
	case fields[w] != nil:
		return p.header(w, "")
	}
	p.failAt(first, "a statement or an expression such as ip saddr")
	return Literal{}
}

// oneOf takes one of the words.
func (p *parser) oneOf(list string) string {
	for w := range strings.FieldsSeq(list) {
		if p.isWord(w) {
			p.advance()
			return w
		}
	}
	p.fail("one of: " + list)
	return ""
}

func (p *parser) offset() uint64 {
	if p.takeWord("offset") {
		return p.number()
	}
	return 0
}

func (p *parser) meta(key token) Expr {
	if _, known := metaKeys[key.text]; !known {
		p.fail("a key of meta")
		return Literal{}
	}
	p.advance()
	return Meta{Key: alias("meta", key.text)}
}

func (p *parser) ct() Expr {
	c := CT{}
	if next := p.peek(); (p.isWord("original") || p.isWord("reply")) && next.kind == word {
		c.Direction = p.name("")
	}
	if next := p.peek(); (p.isWord("ip") || p.isWord("ip6")) && (next.text == "saddr" || next.text == "daddr") {
		c.Family = Family(p.name(""))
	}
	if !p.is(word) || !ctKeys[p.tok.text] {
		p.fail("a key of ct")
		return Literal{}
	}
	c.Key = p.name("")
	return c
}

// rt is the route, or IPv6's routing header.
func (p *parser) rt() Expr {
	r := RT{}
	if p.isWord("ip") || p.isWord("ip6") {
		r.Family = Family(p.name(""))
	} else if p.is(word) && extensions["rt"][p.tok.text] {
		return Exthdr{Name: "rt", Field: p.name("")}
	}
	r.Key = p.oneOf("classid nexthop mtu ipsec")
	return r
}

func (p *parser) fib() Expr {
	f := Fib{}
	for {
		f.Flags = append(f.Flags, p.oneOf("saddr daddr mark iif oif"))
		if !p.take('.') {
			break
		}
	}
	if f.Result = p.oneOf("oif oifname type check"); f.Result == "check" {
		f.Result, f.Check = "oif", true
	}
	return f
}

func (p *parser) socket() Expr {
	s := Socket{Key: p.oneOf("transparent mark wildcard cgroupv2")}
	if s.Key == "cgroupv2" {
		p.expectWord("level")
		s.Level = p.number()
	}
	return s
}

func (p *parser) osf() Expr {
	o := OSF{}
	if p.takeWord("ttl") {
		o.TTL = p.oneOf("loose skip")
	}
	o.Key = p.oneOf("name version")
	return o
}

func (p *parser) ipsec() Expr {
	x := IPsec{Direction: p.name("")}
	if p.takeWord("spnum") {
		x.Number = p.number()
	}
	if p.isWord("ip") || p.isWord("ip6") {
		x.Family = Family(p.name(""))
		x.Key = p.oneOf("saddr daddr")
	} else {
		x.Key = p.oneOf("spi reqid")
	}
	return x
}

// extension is a field of an extension header.
func (p *parser) extension(name string) Expr {
	if !p.is(word) || !extensions[name][p.tok.text] {
		p.fail("a field of " + name)
		return Literal{}
	}
	x := Exthdr{Name: name, Field: p.name("")}
	if p.take('[') {
		x.Index = p.number()
		p.expect(']')
	}
	return x
}

// header is a field of a header, maybe of one inside a tunnel.
func (p *parser) header(protocol, tunnel string) Expr {
	switch {
	case p.isWord("option") && protocol == "tcp":
		p.advance()
		return p.tcpOption()
	case p.isWord("option") && protocol == "ip":
		p.advance()
		name, field := p.part(ipOptions, "an option of IPv4")
		return IPOption{Name: name, Field: field}
	case p.isWord("chunk") && protocol == "sctp":
		p.advance()
		name, field := p.part(sctpChunks, "a chunk of SCTP")
		return SCTPChunk{Name: name, Field: field}
	}
	field := alias(protocol, p.tok.text)
	switch {
	case p.is(word) && fields[protocol][field]:
		p.advance()
	case p.is(word) && isTunnel(protocol) && fields[p.tok.text] != nil && tunnel == "":
		return p.header(p.name(""), protocol)
	default:
		p.fail("a field of " + protocol)
		return Literal{}
	}
	if protocol == "arp" && (field == "saddr" || field == "daddr") {
		field += " " + p.oneOf("ip ether")
	}
	return Payload{Protocol: protocol, Field: field, Tunnel: tunnel}
}

// part is a named part of a header and maybe its field.
func (p *parser) part(known map[string]map[string]bool, what string) (name, field string) {
	name = alias("option", p.tok.text)
	if !p.is(word) || known[name] == nil {
		p.fail(what)
		return "", ""
	}
	p.advance()
	if p.is(word) && known[name][p.tok.text] {
		field = p.name("")
	}
	return name, field
}

func (p *parser) tcpOption() Expr {
	switch {
	case p.is(number):
		o := TCPOption{Name: p.tok.text}
		p.advance()
		if p.isWord("length") {
			o.Field = p.name("")
		}
		return o
	case p.take('@'):
		o := RawTCPOption{Kind: p.optionKind()}
		p.expect(',')
		o.Offset = p.number()
		p.expect(',')
		o.Length = p.number()
		return o
	}
	name, field := p.part(tcpOptions, "an option of TCP")
	return TCPOption{Name: name, Field: field}
}

// OptionKinds are the kinds of TCP options (RFC 793 and others) that nft names.
var OptionKinds = map[string]uint8{
	"eol": 0, "nop": 1, "maxseg": 2, "window": 3, "sack-perm": 4, "sack": 5, "sack0": 5, "sack1": 5, "sack2": 5, "sack3": 5, "echo": 6, "timestamp": 8, "md5sig": 19, "mptcp": 30, "fastopen": 34,
}

func (p *parser) optionKind() uint64 {
	if k, ok := OptionKinds[alias("option", p.tok.text)]; ok && p.is(word) {
		p.advance()
		return uint64(k)
	}
	return p.number()
}

// rawPayload reads @BASE,OFFSET,LENGTH.
func (p *parser) rawPayload() Expr {
	p.expect('@')
	r := RawPayload{Base: p.oneOf("ll nh th ih")}
	p.expect(',')
	r.Offset = p.number()
	p.expect(',')
	r.Length = p.number()
	return r
}
