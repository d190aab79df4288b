package nftables

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// parser reads a text. After the first error, which it keeps, all tokens are the end of the file: loops end, and the
// functions need not look.
type parser struct {
	*builder
	state
	err    *Error
	scope  *scope
	joined bool // an element stands behind another one in its line
	// script: the text has commands besides tables, as no listing has.
	script bool
	// depth is how deep blocks and expressions are in each other.
	depth int
	// pending are the elements of the sets that are being read.
	pending []Element
	// selectors are the expressions already read, so that each exists once.
	selectors map[Expr]Expr
}

// state is a place in the text; a copy is a place to return to.
type state struct {
	lexer
	tok, ahead token
	peeked     bool
	prevEnd    int // where the token in front of the current one ends
	// replaced are the tokens of variables that are still to be read, the innermost last.
	replaced [][]token
}

// maxDepth bounds how deep blocks and expressions may be in each other: nft's own is lower (MAX_INCLUDE_DEPTH, scopes).
const maxDepth = 60

// scope has the variables of a block.
type scope struct {
	outer *scope
	vars  map[string][]token
}

func (s *scope) find(name string) (*scope, bool) {
	for ; s != nil; s = s.outer {
		if _, ok := s.vars[name]; ok {
			return s, true
		}
	}
	return nil, false
}

func readText(name, src string, b *builder) *Error {
	p := &parser{builder: b, scope: &scope{vars: map[string][]token{}}, selectors: map[Expr]Expr{}}
	p.lexer = lexer{file: name, src: src, line: 1}
	p.commands()
	return p.err
}

// fail keeps the first error and ends reading.
func (p *parser) fail(want string) {
	p.failAt(p.tok, want)
}

func (p *parser) failAt(t token, want string) {
	if p.err == nil {
		p.err = &Error{Position: p.at(t), Found: t.describe(), Want: want}
	}
	p.stop()
}

func (p *parser) stop() {
	p.tok = token{kind: endOfFile, line: p.tok.line, column: p.tok.column, start: p.tok.start, end: p.tok.start}
	p.peeked, p.replaced, p.pos = false, nil, len(p.src)
}

// describe is how an error names what stands there.
func (t token) describe() string {
	switch t.kind {
	case endOfFile:
		return "the end of the file"
	case newline:
		return "the end of the line"
	case quoted:
		return fmt.Sprintf("%q", t.text)
	}
	if t.kind < ' ' || t.kind == '?' || t.kind >= 127 && t.text == "" {
		return fmt.Sprintf("the character %q", t.text)
	}
	return "“" + t.text + "”"
}

func (p *parser) at(t token) Position { return Position{File: p.file, Line: t.line, Column: t.column} }

// advance goes to the next token.
func (p *parser) advance() {
	p.prevEnd = p.tok.end
	if p.peeked {
		p.tok, p.peeked = p.ahead, false
		return
	}
	p.tok = p.read()
}

// peek is the token behind the current one.
func (p *parser) peek() token {
	if !p.peeked {
		p.ahead, p.peeked = p.read(), true
	}
	return p.ahead
}

// read takes the next token from a variable or from the file, and replaces variables.
func (p *parser) read() token {
	for range 1000 { // a variable may be another one, and nothing
		t := p.lexerOrReplaced()
		if t.kind != '$' {
			return t
		}
		name := p.lexerOrReplaced()
		s, ok := p.scope.find(name.text)
		if !ok || name.kind != word {
			p.failAt(t, "a variable that is defined in front of here, not $"+name.text)
			return p.tok
		}
		var value []token
		for _, v := range s.vars[name.text] {
			v.line, v.column, v.start, v.end = t.line, t.column, t.start, name.end
			value = append(value, v)
		}
		if len(p.replaced) < maxDepth {
			p.replaced = append(p.replaced[:len(p.replaced):len(p.replaced)], value)
		}
	}
	p.fail("a variable that has a value")
	return p.tok
}

func (p *parser) lexerOrReplaced() token {
	for n := len(p.replaced); n > 0; n = len(p.replaced) {
		if top := p.replaced[n-1]; len(top) > 0 {
			// The slices are copied, since a place to return to has them too.
			rest := append(p.replaced[:n-1:n-1], top[1:])
			p.replaced = rest
			return top[0]
		}
		p.replaced = p.replaced[:n-1]
	}
	return p.next()
}

// is reports whether the current token is this punctuation.
func (p *parser) is(k kind) bool { return p.tok.kind == k }

// isWord reports whether the current token is this word.
func (p *parser) isWord(w string) bool { return p.tok.kind == word && p.tok.text == w }

// take goes on if the current token is this punctuation.
func (p *parser) take(k kind) bool {
	if p.tok.kind == k {
		p.advance()
		return true
	}
	return false
}

func (p *parser) takeWord(w string) bool {
	if p.isWord(w) {
		p.advance()
		return true
	}
	return false
}

func (p *parser) expect(k kind) {
	if !p.take(k) {
		p.fail("“" + string(rune(k)) + "”")
	}
}

func (p *parser) expectWord(w string) {
	if !p.takeWord(w) {
		p.fail("“" + w + "”")
	}
}

// name takes a word of any kind.
func (p *parser) name(what string) string {
	t := p.tok
	switch t.kind {
	case word, quoted:
		p.advance()
		return t.text
	}
	p.fail(what)
	return ""
}

// number takes a number.
func (p *parser) number() uint64 {
	if p.is(number) {
		if n, ok := parseNumber(p.tok.text); ok {
			p.advance()
			return n
		}
	}
	p.fail("a number")
	return 0
}

// duration takes a time.
func (p *parser) duration() time.Duration {
	if p.is(number) || p.is(word) || p.is(quoted) {
		if d, ok := parseDuration(p.tok.text); ok {
			if d > time.Minute && p.is(word) && strings.Trim(p.tok.text, digits) == "s" {
				p.ruleset.Seconds = true
			}
			p.advance()
			return d
		}
	}
	p.fail("a time such as 1h30m")
	return 0
}

// atEnd reports whether a statement ends here, as far as the text is concerned.
func (p *parser) atEnd() bool {
	switch p.tok.kind {
	case newline, ';', '}', endOfFile:
		return true
	}
	return false
}

// endStatement takes the end of a line or statement; a brace that closes the block also ends it.
func (p *parser) endStatement() {
	switch p.tok.kind {
	case newline, ';':
		p.advance()
	case '}', endOfFile:
	default:
		p.fail("the end of the line or “;”")
	}
}

func (p *parser) newlines() {
	for p.is(newline) {
		p.advance()
	}
}

// enter goes one block deeper; leave comes back.
func (p *parser) enter() {
	if p.depth++; p.depth > maxDepth {
		p.fail(fmt.Sprintf("at most %d blocks in each other", maxDepth))
	}
}

func (p *parser) leave() { p.depth-- }

// block reads { LINES }: one says how a line is read, of which the words before its end are left to endStatement. It
// returns the handle behind the brace.
func (p *parser) block(one func()) (handle uint64) {
	p.enter()
	defer p.leave()
	outer := p.scope
	p.scope = &scope{outer: outer}
	p.expect('{')
	handle = p.tok.handle()
	for !p.is('}') && p.err == nil {
		switch {
		case p.is(endOfFile):
			p.fail("“}”")
		case p.is(newline), p.is(';'):
			p.advance()
		case p.common():
		default:
			one()
			p.endStatement()
		}
	}
	p.scope = outer
	p.expect('}')
	return handle
}

// priority reads a priority: a number, a name, or a name and a number.
func (p *parser) priority(family Family) (value int32, spelled string) {
	first := p.tok
	if p.is(quoted) { // a variable may be: define prio = "filter - 10"
		sub := &parser{builder: p.builder, scope: p.scope, depth: p.depth, state: state{lexer: lexer{file: p.file, src: p.tok.text, line: 1}}}
		if sub.enter(); sub.depth > maxDepth {
			p.fail("a priority")
			return 0, ""
		}
		sub.advance()
		value, spelled = sub.priority(family)
		if sub.err != nil || !sub.is(endOfFile) {
			p.fail("a priority: a number, or a name such as filter")
		}
		p.advance()
		return value, spelled
	}
	var base int64
	switch {
	case p.is(word):
		named, ok := priorityOf(family, p.tok.text)
		if !ok {
			p.fail("a priority: a number, or a name such as filter")
			return 0, ""
		}
		base, spelled = int64(named), p.tok.text
		p.advance()
		for _, sign := range []struct {
			kind   kind
			factor int64
		}{{'+', 1}, {'-', -1}} {
			if p.take(sign.kind) {
				n := p.number()
				base += sign.factor * int64(min(n, math.MaxInt32))
				spelled = fmt.Sprintf("%s %c %d", spelled, rune(sign.kind), n)
				break
			}
		}
	default:
		negative := p.take('-')
		n := p.number()
		v, ok := signed32(n, negative)
		if !ok {
			p.failAt(first, "a priority of 32 bits")
		}
		base, spelled = int64(v), fmt.Sprint(v)
	}
	if base < math.MinInt32 || base > math.MaxInt32 {
		p.failAt(first, "a priority of 32 bits")
		return 0, ""
	}
	return int32(base), spelled
}
