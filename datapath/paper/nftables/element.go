package nftables

// elements reads { ... }, with the elements of sets inside as its own.
func (p *parser) elements() []Element {
	p.enter()
	defer p.leave()
	begin := len(p.pending) // many sets have a few elements: each gets a slice of just its size
	p.expect('{')
	for p.newlines(); !p.is('}') && p.err == nil; p.newlines() {
		if p.is('{') {
			inner := p.elements()
			p.pending = append(p.pending, inner...)
		} else {
			e := p.element(values)
			p.pending = append(p.pending, e)
		}
		if p.newlines(); !p.is('}') {
			p.expect(',')
			p.joined = p.joined || !p.is(newline)
		}
	}
	p.expect('}')
	read := p.pending[begin:]
	if p.pending = p.pending[:begin]; len(read) == 0 {
		return nil
	}
	all := append(make([]Element, 0, len(read)), read...)
	clear(read)
	return all
}

// element reads a key with what belongs to it, and the value of a map.
func (p *parser) element(m mode) (e Element) {
	e.Line = p.tok.line
	if p.is('*') {
		p.advance()
		e.Key = Wildcard{}
	} else {
		e.Key = p.concat(m)
	}
	p.elementOptions(&e)
	p.newlines()
	if !p.take(':') {
		return e
	}
	p.newlines()
	switch p.tok.text {
	case "accept", "drop", "continue", "return", "jump", "goto", "break":
		if p.is(word) {
			e.Value = p.verdict()
			return e
		}
	}
	e.Value = p.concat(m)
	return e
}

func (p *parser) elementOptions(e *Element) {
	for p.is(word) && p.err == nil {
		switch {
		case p.takeWord("timeout"):
			e.Timeout = p.duration()
		case p.takeWord("expires"):
			e.Expires = p.duration()
		case p.takeComment(&e.Comment):
		default:
			s := p.stateful()
			if s == nil {
				p.fail("“,” or “}”")
				return
			}
			e.Statements = append(e.Statements, s)
		}
	}
}

// setStatement reads "add @set { ... }", and the older "set add KEY @set".
func setStatement(p *parser) Statement {
	s := SetStatement{Op: p.name("")}
	p.expect('@')
	s.Set = p.name("the name of a set")
	p.enter()
	defer p.leave()
	p.expect('{')
	s.Element = p.element(any)
	p.expect('}')
	return s
}

func oldSetStatement(p *parser) Statement {
	p.advance()
	s := SetStatement{Op: p.oneOf("add update delete")}
	s.Element.Key = p.concat(any)
	p.elementOptions(&s.Element)
	p.expect('@')
	s.Set = p.name("the name of a set")
	return s
}

func meter(p *parser) Statement {
	p.advance()
	m := Meter{Name: p.name("the name of a meter")}
	if p.takeWord("size") {
		m.Size = p.number()
	}
	p.enter()
	defer p.leave()
	p.expect('{')
	m.Element = p.element(any)
	p.expect('}')
	return m
}

// flow reads "flow add @ft", and the "flow offload @ft" of the first versions.
func flow(p *parser) Statement {
	p.advance()
	p.oneOf("add offload")
	p.expect('@')
	return FlowAdd{Flowtable: p.name("the name of a flowtable")}
}
