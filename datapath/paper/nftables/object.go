package nftables

import "time"

// bodyReader reads what stands in the braces of an object, line by line.
type bodyReader struct {
	line  func()
	value func() ObjectBody
}

// newBody is the reader for a kind of objects; nil: the kind is unknown.
func (p *parser) newBody(kind string) *bodyReader {
	switch kind {
	case "counter":
		var b Counter
		return &bodyReader{func() { b = p.counterNumbers(b) }, func() ObjectBody { return b }}
	case "quota":
		var b Quota
		return &bodyReader{func() { b = p.quota() }, func() ObjectBody { return b }}
	case "limit":
		var b Limit
		return &bodyReader{func() { p.expectWord("rate"); b = p.limit() }, func() ObjectBody { return b }}
	case "synproxy":
		var b Synproxy
		return &bodyReader{func() { p.synproxyOptions(&b) }, func() ObjectBody { return b }}
	case "secmark":
		var b Secmark
		return &bodyReader{func() { b.Context = p.name("a security context") }, func() ObjectBody { return b }}
	case "ct helper":
		var b CTHelper
		return &bodyReader{func() {
			if p.takeWord("l3proto") {
				b.L3Proto = p.name("a family")
				return
			}
			p.expectWord("type")
			b.Type = p.name("a helper")
			p.expectWord("protocol")
			b.Protocol = p.name("a protocol")
		}, func() ObjectBody { return b }}
	case "ct timeout":
		var b CTTimeout
		return &bodyReader{func() { p.ctTimeoutLine(&b) }, func() ObjectBody { return b }}
	case "ct expectation":
		var b CTExpectation
		return &bodyReader{func() { p.ctExpectationLine(&b) }, func() ObjectBody { return b }}
	}
	return nil
}

func (p *parser) ctTimeoutLine(b *CTTimeout) {
	switch {
	case p.takeWord("protocol"):
		b.Protocol = p.name("a protocol")
	case p.takeWord("l3proto"):
		b.L3Proto = p.name("a family")
	default:
		p.expectWord("policy")
		p.expect('=')
		p.expect('{')
		for p.newlines(); !p.is('}') && p.err == nil; p.newlines() {
			s := StateTimeout{State: p.name("a state")}
			p.expect(':')
			b.Seconds = p.is(number)
			s.Timeout = p.duration()
			b.Policy = append(b.Policy, s)
			if p.newlines(); !p.is('}') {
				p.expect(',')
			}
		}
		p.expect('}')
	}
}

func (p *parser) ctExpectationLine(b *CTExpectation) {
	at := p.tok
	switch p.name("protocol, dport, timeout, size or l3proto") {
	case "protocol":
		b.Protocol = p.name("a protocol")
	case "l3proto":
		b.L3Proto = p.name("a family")
	case "dport":
		b.DPort = p.number()
	case "timeout":
		b.Timeout = p.duration()
	case "size":
		b.Size = p.number()
	default:
		p.failAt(at, "protocol, dport, timeout, size or l3proto")
	}
}

func (c Counter) printBody(p *printer) {
	if c.Given && !p.Stateless {
		p.line("packets ", c.Packets, " bytes ", c.Bytes)
	}
}

func (q Quota) printBody(p *printer) {
	if q.Unit == "" {
		return
	}
	p.indent()
	q.printQuota(p)
	p.put("\n")
}

func (l Limit) printBody(p *printer) {
	if l.Per == "" {
		return
	}
	p.indent()
	p.put("rate ")
	l.Implied = l.Burst == defaultBurst && l.Unit == "packets"
	l.printLimit(p)
	p.put("\n")
}

func (s Synproxy) printBody(p *printer) {
	if s.MSS != nil {
		p.line("mss ", *s.MSS)
	}
	if s.WScale != nil {
		p.line("wscale ", *s.WScale)
	}
	switch {
	case s.Timestamp && s.SACKPerm:
		p.line("timestamp sack-perm")
	case s.Timestamp:
		p.line("timestamp")
	case s.SACKPerm:
		p.line("sack-perm")
	}
}

func (b Secmark) printBody(p *printer) {
	if b.Context != "" {
		p.line(quote(b.Context))
	}
}

func (b CTHelper) printBody(p *printer) {
	if b.Type != "" {
		p.line("type ", quote(b.Type), " protocol ", b.Protocol)
	}
	p.optional("l3proto ", b.L3Proto)
}

func (b CTTimeout) printBody(p *printer) {
	p.optional("protocol ", b.Protocol)
	p.optional("l3proto ", b.L3Proto)
	if b.Policy == nil {
		return
	}
	p.indent()
	p.put("policy = {")
	for i, s := range b.Policy {
		if i > 0 {
			p.put(",")
		}
		p.put(" ", s.State, " : ")
		if b.Seconds {
			p.put(uint64(s.Timeout / time.Second))
		} else {
			p.put(p.duration(s.Timeout))
		}
	}
	p.put(" }\n")
}

func (b CTExpectation) printBody(p *printer) {
	p.optional("protocol ", b.Protocol)
	if b.DPort != 0 {
		p.line("dport ", b.DPort)
	}
	if b.Timeout != 0 {
		p.line("timeout ", p.duration(b.Timeout))
	}
	if b.Size != 0 {
		p.line("size ", b.Size)
	}
	p.optional("l3proto ", b.L3Proto)
}

func (u Unknown) printBody(p *printer) { p.optional("", u.Text) }
