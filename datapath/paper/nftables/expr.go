package nftables

// mode says what a word may be where an expression is read.
type mode uint8

const (
	selectors mode = iota // a field of the packet and the like
	values                // a constant
	any                   // a field if it is one, else a constant
)

// keyed reads a concatenation, or a map from one.
func (p *parser) keyed(m mode) Expr {
	e := p.concat(m)
	if p.takeWord("map") {
		return Map{Key: e, Data: p.mapData()}
	}
	return e
}

// mapData reads what a key is looked up in.
func (p *parser) mapData() Expr {
	if p.is('@') {
		return p.setRef()
	}
	return AnonymousSet{Elements: p.elements()}
}

func (p *parser) setRef() Expr {
	p.expect('@')
	return SetRef(p.name("the name of a set"))
}

// concat reads a concatenation.
func (p *parser) concat(m mode) Expr {
	first := p.multiple(m)
	if !p.is('.') {
		return first
	}
	c := Concat{first}
	for p.take('.') {
		c = append(c, p.multiple(m))
	}
	return c
}

// multiple reads a value, a prefix or a range. Behind a selector there is none.
func (p *parser) multiple(m mode) Expr {
	e := p.binary(m)
	if m == selectors {
		return e
	}
	switch {
	case p.is('/') && p.peek().kind == number && isValue(e):
		if _, flags := e.(List); flags {
			return e
		}
		p.advance()
		if n := p.number(); n <= 128 {
			return Prefix{Address: e, Length: int(n)}
		}
		p.fail("the length of a prefix in front of here")
	case p.take('-'):
		return Range{Low: e, High: p.binary(m)}
	}
	return e
}

// levels are the operations, those that bind least first (nftables, src/parser_bison.y).
var levels = [][]struct {
	kind kind
	op   string
}{{{'|', "|"}}, {{'^', "^"}}, {{'&', "&"}}, {{opShl, "<<"}, {opShr, ">>"}}}

// binary reads operations on bits.
func (p *parser) binary(m mode) Expr { return p.level(m, 0) }

func (p *parser) level(m mode, n int) Expr {
	if n == len(levels) {
		return p.primary(m)
	}
	left := p.level(m, n+1)
	for i := 0; i < len(levels[n]); i++ {
		if o := levels[n][i]; p.is(o.kind) {
			p.advance()
			right := m
			if m == selectors { // what stands behind the field is mostly a constant
				right = any
			}
			left = operation(o.op, left, p.level(right, n+1))
			i = -1
		}
	}
	return left
}

// operation is an operation; one of flags is their list.
func operation(op string, left, right Expr) Expr {
	if op == "|" {
		if list, ok := flags(left); ok {
			if more, ok := flags(right); ok {
				return append(list[:len(list):len(list)], more...)
			}
		}
	}
	return Binary{Op: op, Left: left, Right: right}
}

func flags(e Expr) (List, bool) {
	switch e := e.(type) {
	case List:
		return e, true
	case Literal:
		return List{e}, true
	}
	return nil, false
}

// primary reads a field or a constant.
func (p *parser) primary(m mode) Expr {
	t := p.tok
	switch t.kind {
	case '(':
		p.enter()
		defer p.leave()
		p.advance()
		e := p.binary(m)
		p.expect(')')
		return e
	case '@':
		if m != values {
			return p.rawPayload()
		}
	case '*':
		p.advance()
		return Literal{Text: "*"}
	case '-':
		if m != selectors && p.peek().kind == number {
			p.advance()
			n := p.tok
			p.advance()
			return Literal{Text: "-" + n.text, Kind: Number}
		}
	case number:
		if m != selectors {
			p.advance()
			return Literal{Text: t.text, Kind: Number}
		}
	case quoted:
		if m != selectors {
			p.advance()
			return Literal{Text: t.text, Kind: Quoted}
		}
	case word:
		if m == values || m == any && !p.isSelector() {
			p.advance()
			return Literal{Text: t.text}
		}
		return p.selector()
	}
	if m == values {
		p.fail("a value")
	} else {
		p.fail("a statement or an expression such as ip saddr")
	}
	return Literal{}
}
