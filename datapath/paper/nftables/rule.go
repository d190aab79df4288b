package nftables

// rule reads a rule to the end of its line or statement.
func (p *parser) rule() *Rule {
	start, src := p.tok, p.src
	r := &Rule{Position: p.at(start)}
	if p.atEnd() {
		p.fail("a statement")
	}
	var list [16]Statement // most rules have fewer; the rule gets a slice of just the size
	found := list[:0]
	for !p.atEnd() && p.err == nil {
		if comment := ""; p.takeComment(&comment) {
			if p.atEnd() {
				r.Comment = comment
				break
			}
			found = append(found, XT{Type: "match", Name: "comment", Comment: comment})
			continue
		}
		back, depth, from := p.state, p.depth, p.tok
		s := p.statement()
		if p.err == nil {
			found = append(found, s)
			continue
		}
		// What is not understood is kept to the end of the rule, if that can be found.
		err := p.err
		p.err, p.state, p.depth = nil, back, depth
		if end := p.skip(); p.err == nil {
			found = append(found, Unknown{Position: p.at(from), Text: src[from.start:max(from.start, min(end, len(src)))], Err: err})
		}
	}
	if p.err != nil {
		return r
	}
	r.Text = src[start.start:max(start.start, min(p.prevEnd, len(src)))]
	r.Handle = p.tok.handle()
	r.Statements = append(make([]Statement, 0, len(found)), found...)
	return r
}

// statement reads one statement.
func (p *parser) statement() Statement {
	if p.is(xtComment) {
		s := XT{Name: p.tok.text, Commented: true}
		p.advance()
		return s
	}
	if p.is(word) {
		if read, ok := statements[p.tok.text]; ok {
			return read(p)
		}
		if s := p.stateful(); s != nil {
			return s
		}
	}
	return p.selection()
}

// statements read those that begin with a word of their own.
var statements map[string]func(*parser) Statement

func init() {
	statements = map[string]func(*parser) Statement{
		"accept": verdict, "drop": verdict, "continue": verdict, "return": verdict, "jump": verdict, "goto": verdict, "break": verdict,
		"log": log, "reject": reject, "queue": queue, "synproxy": synproxy, "xt": xt,
		"snat": nat, "dnat": nat, "masquerade": nat, "redirect": nat, "tproxy": tproxy, "dup": dup, "fwd": fwd,
		"add": setStatement, "update": setStatement, "delete": setStatement, "set": oldSetStatement, "meter": meter, "flow": flow,
		"notrack": func(p *parser) Statement { p.advance(); return Notrack{} },
		"reset": func(p *parser) Statement {
			p.advance()
			return Reset{Option: p.selector()}
		},
	}
}

func verdict(p *parser) Statement { return p.verdict() }

// verdict reads a verdict.
func (p *parser) verdict() Verdict {
	v := Verdict{Kind: VerdictKind(p.tok.text)}
	switch v.Kind {
	case Accept, Drop, Continue, Return, Break:
		p.advance()
	case Jump, Goto:
		p.advance()
		if p.is('{') {
			p.block(func() { v.Rules = append(v.Rules, p.rule()) })
		} else {
			v.Chain = p.name("the name of a chain")
		}
	default:
		p.fail("a verdict such as accept")
	}
	return v
}

// selection reads the statements that begin with an expression: a match, a verdict map, or one that sets.
func (p *parser) selection() Statement {
	left := p.keyed(selectors)
	switch {
	case p.takeWord("vmap"):
		return VerdictMap{Key: left, Data: p.mapData()}
	case p.isWord("set"):
		p.advance()
		return p.mangle(left)
	}
	m := Match{Left: left}
	flags := isFlag(left)
	switch p.tok.kind {
	case opEq:
		m.Op = "=="
	case opNe:
		m.Op = "!="
	case '<':
		m.Op = "<"
	case '>':
		m.Op = ">"
	case opLe:
		m.Op = "<="
	case opGe:
		m.Op = ">="
	case '!':
		m.Op = "!"
	}
	implicit := m.Op == ""
	if !implicit {
		p.advance()
	}
	m.Right = p.right(flags)
	if flags && p.take('/') {
		m.Left = Binary{Op: "&", Left: left, Right: p.right(true)}
		m.Slash = true
	} else if implicit && flags && isValue(m.Right) {
		m.Op = "in"
	}
	if m.Op == "" {
		m.Op = "=="
	}
	return m
}

// isValue reports whether an expression is a constant, and no set.
func isValue(e Expr) bool {
	switch e.(type) {
	case Literal, List:
		return true
	}
	return false
}

// right reads the right side of a match, where a slash is for a mask of flags, or for a prefix.
func (p *parser) right(flags bool) Expr {
	switch {
	case p.is('{'):
		return AnonymousSet{Elements: p.elements()}
	case p.is('@'):
		return p.setRef()
	case flags:
		return p.list(p.binary(values), values)
	}
	return p.list(p.concat(values), values)
}

// list reads the rest of flags behind a comma.
func (p *parser) list(first Expr, m mode) Expr {
	if !p.is(',') {
		return first
	}
	l := List{first}
	for p.take(',') {
		l = append(l, p.binary(m))
	}
	return l
}

// mangle reads the value behind "set".
func (p *parser) mangle(key Expr) Statement {
	value := p.list(p.keyed(any), any)
	if ct, ok := key.(CT); ok && ct.Direction == "" {
		switch ct.Key {
		case "helper", "timeout", "expectation":
			return ObjectRef{Kind: "ct " + ct.Key, Name: value}
		}
	}
	if meta, ok := key.(Meta); ok && meta.Key == "secmark" {
		if _, ok := value.(Literal); ok {
			return ObjectRef{Kind: "secmark", Name: value}
		}
	}
	return Mangle{Key: key, Value: value}
}
