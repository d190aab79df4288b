package nftables

import "strings"

func nat(p *parser) Statement {
	n := NAT{Kind: p.name("")}
	if p.isWord("ip") || p.isWord("ip6") {
		if next := p.peek(); next.text == "to" || next.text == "addr" || next.text == "prefix" || next.text == "interval" {
			n.Family = Family(p.name(""))
		}
	}
	switch {
	case p.takeWord("addr"):
		p.expect('.')
		p.expectWord("port")
		n.Spelled = true
	case p.takeWord("prefix"):
		n.Prefix = true
	default:
		p.takeWord("interval")
	}
	if (p.takeWord("to") || !p.atEnd() && !p.isNATFlag() && (n.Kind == "snat" || n.Kind == "dnat")) && !p.is(':') {
		n.Address = p.keyed(any)
	}
	if p.take(':') {
		n.Port = p.keyed(any)
	} else if n.Kind == "redirect" || n.Kind == "masquerade" { // "redirect to 80"
		n.Address, n.Port = nil, n.Address
	}
	for p.isNATFlag() {
		n.Flags = append(n.Flags, p.wordList()...)
	}
	return n
}

func (p *parser) isNATFlag() bool {
	return p.isWord("random") || p.isWord("fully-random") || p.isWord("persistent")
}

func tproxy(p *parser) Statement {
	p.advance()
	t := TProxy{}
	if p.isWord("ip") || p.isWord("ip6") {
		t.Family = Family(p.name(""))
	}
	p.expectWord("to")
	if !p.is(':') {
		t.Address = p.keyed(any)
	}
	if p.take(':') {
		t.Port = p.keyed(any)
	}
	return t
}

func (n NAT) print(p *printer) {
	p.put(n.Kind)
	if n.Family != "" {
		p.put(" ", string(n.Family))
	}
	switch {
	case n.Spelled && !p.Canonical:
		p.put(" addr . port")
	case n.Prefix:
		p.put(" prefix")
	}
	p.target(n.Address, n.Port)
	if n.Flags != nil {
		p.put(" ")
		p.words(n.Flags)
	}
}

func (t TProxy) print(p *printer) {
	p.put("tproxy")
	if t.Family != "" {
		p.put(" ", string(t.Family))
	}
	p.target(t.Address, t.Port)
}

// target prints the address and port behind "to".
func (p *printer) target(address, port Expr) {
	if address == nil && port == nil {
		return
	}
	p.put(" to ")
	if address != nil {
		p.natAddress(address, port != nil)
	}
	if port != nil {
		p.put(":")
		port.print(p)
	}
}

// natAddress prints an address, one of IPv6 in brackets if a port follows.
func (p *printer) natAddress(e Expr, withPort bool) {
	switch e := e.(type) {
	case Range:
		p.natAddress(e.Low, withPort)
		p.put("-")
		p.natAddress(e.High, withPort)
		return
	case Literal:
		if withPort && strings.Contains(e.Text, ":") {
			p.put("[", e.Text, "]")
			return
		}
	}
	e.print(p)
}
