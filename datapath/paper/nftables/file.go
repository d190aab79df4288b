package nftables

import (
	"fmt"
	"strings"
)

// commands reads the file.
func (p *parser) commands() {
	p.advance()
	warning := ""
	for !p.is(endOfFile) && p.err == nil {
		switch {
		case p.is(newline), p.is(';'):
			if p.is(newline) && strings.HasPrefix(p.tok.text, "Warning:") {
				warning = p.tok.text
			}
			p.advance()
		case p.common():
		default:
			if t := p.command(); t != nil && warning != "" {
				t.Warning = warning
			}
			warning = ""
			if p.is('}') {
				p.fail("a command")
			}
			p.endStatement()
		}
	}
}

// common reads what may stand in each block: definitions, and includes, of which the files are not there.
func (p *parser) common() bool {
	if !p.is(word) {
		return false
	}
	switch p.tok.text {
	case "include":
		p.advance()
		at := p.tok
		if !p.is(quoted) {
			p.fail("the name of a file in quotation marks")
			return true
		}
		p.advance()
		if p.endStatement(); p.err == nil {
			p.err = &Error{Position: p.at(at), Err: fmt.Errorf("%q is not read: there is no folder for includes", at.text)}
			p.stop()
		}
	case "define", "redefine":
		redefine := p.tok.text == "redefine"
		p.advance()
		name := p.name("the name of a variable")
		if !p.is('=') {
			p.fail("“=”")
			return true
		}
		value := p.value()
		in := p.scope
		if s, ok := p.scope.find(name); ok && redefine {
			in = s
		}
		if in.vars == nil {
			in.vars = map[string][]token{}
		}
		in.vars[name] = value
		p.endStatement()
	case "undefine":
		p.advance()
		if s, ok := p.scope.find(p.name("the name of a variable")); ok {
			delete(s.vars, p.tok.text)
		}
		p.endStatement()
	default:
		return false
	}
	return true
}

// value takes the tokens of a variable, from behind "=" to the end of the line outside braces.
func (p *parser) value() (all []token) {
	p.advance()
	depth, operators := 0, false
	for !p.is(endOfFile) && (depth > 0 || !p.atEnd()) {
		switch p.tok.kind {
		case '{':
			depth++
		case '}':
			depth--
		case '|', '&', '^', opShl, opShr:
			operators = operators || depth == 0
		case newline:
			p.advance()
			continue
		}
		if all = append(all, p.tok); len(all) > 1<<20 {
			p.fail("a shorter value")
		}
		p.advance()
	}
	if depth > 0 {
		p.fail("“}”")
	}
	if operators {
		open, end := all[0], all[len(all)-1]
		open.kind, open.text, end.kind, end.text = '(', "(", ')', ")"
		all = append(append([]token{open}, all...), end)
	}
	return all
}

// objectKinds are the kinds of objects of one word.
var objectKinds = bools("counter quota limit secmark synproxy tunnel")

// command reads one command. It returns the table if it was a whole one.
func (p *parser) command() *Table {
	cmd := ruleCommand{verb: "add", index: -1}
	start := p.tok
	p.script = p.script || !p.isWord("table")
	if !p.is(word) {
		p.fail("a command such as table or add")
		return nil
	}
	switch p.tok.text {
	case "add", "create", "insert", "replace", "delete", "destroy":
		cmd.verb = p.tok.text
		p.advance()
	case "flush":
		p.advance()
		p.flushCommand()
		return nil
	case "rename":
		p.advance()
		p.expectWord("chain")
		t := p.tableSpec(true)
		chain := p.name("the name of a chain")
		p.renameChain(t, chain, p.name("the new name of the chain"))
		return nil
	case "list", "reset", "monitor", "describe", "get":
		for !p.atEnd() {
			p.advance()
		}
		return nil
	}
	removes := cmd.verb == "delete" || cmd.verb == "destroy"
	what := p.tok
	kind := p.kindOfThing()
	switch {
	case kind == "":
		p.failAt(what, "table, chain, rule, set, map, element, flowtable or an object")
	case kind == "table" && removes:
		family, name, handle := p.family(), "", uint64(0)
		if p.takeWord("handle") {
			handle = p.number()
		} else {
			name = p.name("the name of a table")
		}
		is := named(name, handle)
		p.deleteTable(func(t *Table) bool { return t.Family == family && is(t.Name, t.Handle) })
	case kind == "table":
		t := p.tableSpec(false)
		if p.is('{') {
			p.tableBlock(t)
		} else {
			p.takeComment(&t.Comment)
		}
		return t.Table
	case kind == "rule":
		p.ruleCommand(cmd)
	case kind == "element":
		t := p.tableSpec(removes)
		at := p.at(p.tok)
		name := p.name("the name of a set")
		if elements := p.elements(); removes {
			t.removeElements(name, elements)
		} else if p.err == nil {
			s := t.set(name, at)
			s.Elements = append(s.Elements, elements...)
		}
	case removes:
		t := p.tableSpec(true)
		if p.takeWord("handle") {
			t.remove(kind, named("", p.number()))
		} else {
			t.remove(kind, named(p.name("a name"), 0))
		}
		for !p.atEnd() { // what the thing was
			p.advance()
		}
	default:
		t := p.tableSpec(false)
		p.thing(t, kind, p.at(start))
	}
	return nil
}

// kindOfThing takes the words of what a command or block is about; without any it is a rule.
func (p *parser) kindOfThing() string {
	w := p.tok.text
	if !p.is(word) {
		return ""
	}
	switch {
	case w == "ct":
		p.advance()
		switch p.tok.text {
		case "helper", "timeout", "expectation":
			w += " " + p.name("helper")
			return w
		}
		return ""
	case objectKinds[w]:
	default:
		switch w {
		case "table", "chain", "rule", "set", "map", "meter", "element", "flowtable":
		default:
			if next := p.peek(); next.kind == word || isFamily(w) {
				return "rule" // "add filter input accept"
			}
			return ""
		}
	}
	p.advance()
	return w
}

func (p *parser) family() Family {
	if p.is(word) && isFamily(p.tok.text) && p.peek().kind != '{' {
		f := Family(p.tok.text)
		p.advance()
		return f
	}
	return FamilyIP
}

// tableSpec reads which table a command is for.
func (p *parser) tableSpec(removes bool) *tableIndex {
	at := p.at(p.tok)
	family := p.family()
	name := p.name("the name of a table")
	if removes || p.err != nil {
		return p.existing(family, name)
	}
	return p.table(family, name, at)
}

func (p *parser) flushCommand() {
	kind := p.name("ruleset, table, chain or set")
	switch kind {
	case "ruleset":
		var f Family
		if p.is(word) && isFamily(p.tok.text) {
			f = Family(p.name("a family"))
		}
		p.flushRuleset(f)
	case "table":
		p.tableSpec(true).flush(kind, "")
	case "chain", "set", "map", "meter":
		t := p.tableSpec(true)
		t.flush(kind, p.name("a name"))
	default:
		p.fail("ruleset, table, chain or set in front of here")
	}
}

func (p *parser) ruleCommand(cmd ruleCommand) {
	removes := cmd.verb == "delete" || cmd.verb == "destroy"
	t := p.tableSpec(removes)
	at := p.at(p.tok)
	name := p.name("the name of a chain")
	c := t.chains[name]
	if c == nil && removes {
		c = &Chain{}
	} else if c == nil {
		c = t.chain(name, at)
	}
	switch {
	case p.takeWord("handle"), p.takeWord("position"):
		cmd.handle = p.number()
	case p.takeWord("index"):
		cmd.index = int(min(p.number(), 1<<30))
	}
	if removes {
		c.apply(cmd, nil)
		return
	}
	c.apply(cmd, p.rule())
}

// takeComment takes a comment, if there is one.
func (p *parser) takeComment(into *string) bool {
	if !p.takeWord("comment") {
		return false
	}
	*into = p.name("a comment")
	return true
}
