package nftables

import (
	"fmt"
	"strconv"
	"strings"
)

// tableBlock reads the braces of a table.
func (p *parser) tableBlock(t *tableIndex) {
	handle := p.block(func() {
		switch {
		case p.takeWord("flags"):
			t.Flags = append(t.Flags, p.wordList()...)
		case p.takeComment(&t.Comment):
		default:
			at := p.tok
			kind := p.kindOfThing()
			switch kind {
			case "", "rule", "table", "element":
				p.failAt(at, "chain, set, map, flowtable or an object of the table")
			default:
				p.thing(t, kind, p.at(at))
			}
		}
	})
	if handle != 0 {
		t.Handle = handle
	}
}

// wordList reads words and commas.
func (p *parser) wordList() (all []string) {
	for {
		all = append(all, p.name("a word"))
		if !p.take(',') {
			return all
		}
	}
}

// thing reads what a table has: NAME { ... }, or the short form of a command.
func (p *parser) thing(t *tableIndex, kind string, at Position) {
	name := p.name("a name")
	if p.err != nil {
		return
	}
	switch kind {
	case "chain":
		p.chainBlock(t, t.chain(name, at))
	case "set", "map", "meter":
		s := t.set(name, at)
		s.Map, s.Meter = kind == "map", kind == "meter"
		if p.is('{') {
			handle := p.block(func() { p.setLine(s) })
			s.Handle = max(s.Handle, handle)
			s.sortFlags()
		}
	case "flowtable":
		f := &Flowtable{Position: at, Name: name}
		t.Flowtables = append(t.Flowtables, f)
		if p.is('{') {
			f.Handle = p.block(func() { p.flowtableLine(t.Family, f) })
		}
	default:
		t.addObject(p.object(kind, name, at))
	}
}

func (p *parser) chainBlock(t *tableIndex, c *Chain) {
	if !p.is('{') {
		return
	}
	handle := p.block(func() {
		// A rule may begin with words such as "type" only in these forms.
		switch next := p.peek(); {
		case p.isWord("type") && next.kind == word:
			p.hook(t, c)
		case p.isWord("policy") && (next.text == "accept" || next.text == "drop"):
			p.advance()
			policy := p.name("accept or drop")
			if c.Base != nil {
				c.Base.Policy = policy
			}
		case p.takeWord("flags"):
			c.Flags = append(c.Flags, p.wordList()...)
		case p.isWord("devices") && next.kind == '=':
			p.advance()
			devices := p.devices()
			if c.Base != nil {
				c.Base.Devices = devices
			}
		default:
			back, comment := p.state, ""
			if p.takeComment(&comment) && p.atEnd() {
				c.Comment = comment
				return
			}
			if p.err == nil {
				p.state = back // a rule may begin with a comment that was a match of iptables
			}
			c.Rules = append(c.Rules, p.rule())
		}
	})
	if handle != 0 {
		c.Handle = handle
	}
}

// hook reads "type filter hook input priority filter", behind which a semicolon stands.
func (p *parser) hook(t *tableIndex, c *Chain) {
	if c.Base != nil && len(c.Rules) > 0 && !p.script {
		p.fail(fmt.Sprintf("one ruleset: chain %s of table %s is in line %d, too, as if these were those of two hosts", c.Name, t.Name, c.Line))
	}
	b := &Base{}
	p.expectWord("type")
	b.Type = p.name("filter, nat or route")
	p.expectWord("hook")
	b.Hook = p.name("a hook")
	switch {
	case p.takeWord("device"):
		b.Devices = []string{p.name("a device")}
	case p.takeWord("devices"):
		b.Devices = p.devices()
	}
	p.expectWord("priority")
	b.Priority, b.PriorityText = p.priority(t.Family)
	if p.err == nil {
		c.Base = b
	}
}

// devices reads = { "a", "b" }.
func (p *parser) devices() []string {
	p.expect('=')
	return p.deviceList(nil)
}

func (p *parser) deviceList(all []string) []string {
	p.enter()
	defer p.leave()
	p.expect('{')
	for p.newlines(); !p.is('}') && p.err == nil; p.newlines() {
		if p.is('{') { // a variable that is a list
			all = p.deviceList(all)
		} else {
			all = append(all, p.name("a device"))
		}
		if p.newlines(); !p.is('}') {
			p.expect(',')
		}
	}
	p.expect('}')
	return all
}

func (p *parser) setLine(s *Set) {
	at := p.tok
	switch {
	case p.takeWord("type"), p.takeWord("typeof"):
		s.Key = p.setType(at.text == "typeof")
		if p.take(':') {
			interval := p.takeWord("interval")
			s.Map, s.Value = true, p.setType(at.text == "typeof")
			s.Value.Interval = interval
		}
	case p.takeWord("flags"):
		s.Flags = append(s.Flags, p.wordList()...)
	case p.takeWord("timeout"):
		s.Timeout = p.duration()
	case p.takeWord("gc-interval"):
		s.GCInterval = p.duration()
	case p.takeWord("size"):
		s.Size = p.number()
		if n, found := strings.CutPrefix(p.tok.text, "count "); found && p.is(newline) {
			s.Count, _ = strconv.ParseUint(n, 10, 64)
		}
	case p.takeWord("policy"):
		s.Policy = p.name("performance or memory")
	case p.takeWord("auto-merge"):
		s.AutoMerge = true
	case p.takeComment(&s.Comment):
	case p.takeWord("elements"):
		p.expect('=')
		p.joined = false
		s.Elements = append(s.Elements, p.elements()...)
		p.ruleset.Joined = p.ruleset.Joined || p.joined && s.apart()
	default:
		for !p.atEnd() {
			stmt := p.stateful()
			if stmt == nil {
				p.fail("a property of the set such as type or elements")
				return
			}
			s.Statements = append(s.Statements, stmt)
		}
	}
}

// setType reads the types behind type, or the expressions behind typeof.
func (p *parser) setType(of bool) (t Type) {
	if of && p.isWord("verdict") {
		of = false
	}
	if of {
		t.Of = p.concat(selectors)
		return t
	}
	for {
		name := p.name("a type")
		switch {
		case name == "ct" && p.is(word): // a map of objects
			name += " " + p.name("helper")
		}
		t.Names = append(t.Names, name)
		if !p.take('.') {
			return t
		}
	}
}

func (p *parser) flowtableLine(family Family, f *Flowtable) {
	at := p.tok
	switch p.name("hook, devices, flags or counter") {
	case "hook":
		f.Hook = p.name("a hook")
		p.expectWord("priority")
		f.Priority, _ = p.priority(family)
	case "devices":
		f.Devices = p.devices()
	case "flags":
		f.Flags = append(f.Flags, p.wordList()...)
	case "counter":
		f.Counter = true
	default:
		p.failAt(at, "hook, devices, flags or counter")
	}
}

// object reads a stateful object, in braces or in the short form of a command.
func (p *parser) object(kind, name string, at Position) *Object {
	o := &Object{Position: at, Kind: kind, Name: name}
	start, src := p.tok, p.src
	back, depth := p.state, p.depth
	body := p.newBody(kind)
	if body == nil {
		p.fail("a known kind of object")
	} else if p.is('{') {
		o.Handle = p.block(func() {
			if !p.takeComment(&o.Comment) {
				body.line()
			}
		})
	} else if !p.atEnd() {
		body.line()
	}
	if p.err == nil {
		if body != nil {
			o.Body = body.value()
		}
		return o
	}
	err := p.err
	p.err, p.state, p.depth = nil, back, depth
	end := p.skip()
	if p.err == nil {
		text := strings.TrimSpace(src[start.start:max(end, start.start)])
		if inner, ok := strings.CutPrefix(text, "{"); ok {
			text = strings.TrimSpace(strings.TrimSuffix(inner, "}"))
		}
		o.Body = Unknown{Position: p.at(start), Text: text, Err: err}
	}
	return o
}

// skip goes to the end of a statement, over blocks, and says where its text ends.
func (p *parser) skip() (end int) {
	end = p.tok.start
	for depth := 0; ; p.advance() {
		switch p.tok.kind {
		case '{':
			depth++
		case '}':
			if depth == 0 {
				return end
			}
			depth--
		case newline, ';':
			if depth == 0 {
				return end
			}
		case endOfFile:
			if depth > 0 {
				p.fail("“}”")
			}
			return end
		}
		end = p.tok.end
	}
}
