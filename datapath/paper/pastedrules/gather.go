package pastedrules

import (
	"cmp"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// origin is the program that printed some rules, as far as a text shows it.
type origin struct {
	iptables.Header      // what the text shows of it
	header          bool // a header of iptables-save names the program
	// host is the one that a prompt names; empty: none does.
	host string
	// title is the line above that names a host or a file. Two of them may be of one host.
	title string
}

// agrees reports whether both may be one program.
func (o origin) agrees(with origin) bool {
	if o.Family != iptables.FamilyUnknown && with.Family != iptables.FamilyUnknown && o.Family != with.Family {
		return false
	}
	if o.host != "" && with.host != "" && o.host != with.host {
		return false
	}
	if o.Backend == iptables.BackendUnknown && !o.header || with.Backend == iptables.BackendUnknown && !with.header {
		return true
	}
	return o.Backend == with.Backend
}

// and adds what the other shows.
func (o origin) and(with origin) origin {
	return origin{
		Header: iptables.Header{Family: cmp.Or(o.Family, with.Family), Backend: cmp.Or(o.Backend, with.Backend), Written: cmp.Or(o.Written, with.Written)},
		header: o.header || with.header, host: cmp.Or(o.host, with.host), title: cmp.Or(o.title, with.title),
	}
}

// sameTitle reports whether no title separates them.
func (o origin) sameTitle(as origin) bool {
	return o.title == "" || as.title == "" || o.title == as.title
}

// form is how a table came into a text.
type form uint8

const (
	formSaved    form = iota // "*nat", and COMMIT
	formListed               // below "iptables -t nat -S"
	formCommands             // each line is a command
	formLoose                // lines of no named table
)

// block is a run of lines of one table.
type block struct {
	origin
	form      form
	table     string
	lines     []*statement
	number    int  // of its first line
	committed bool // of formSaved
	ended     bool // of formSaved: the text goes on behind it
	filtered  bool // only some lines or chains were printed
	alone     bool // only this table was printed
	// grep is the command that printed it, if that selects lines.
	grep string
}

// gatherer puts statements into blocks.
type gatherer struct {
	blocks  []*block
	loose   []*statement // in no block yet
	scripts []*block
	current *block
	origin  origin
	shown   *statement // the command that printed what follows
	hidden  []statement
	warned  []statement
	origins []origin // of hidden
	gaps    []int    // numbers of the lines that stand for others
	// looseGap is set if there is one among the loose lines.
	looseGap bool
}

func (g *gatherer) add(s *statement) {
	switch s.op {
	case opRemark, opOther:
	case opCompleted:
		g.ended()
	case opElided:
		g.elided(s)
	case opBody:
		if g.current == nil || !g.current.takeBody(s) {
			g.elided(s)
		}
	case opTitle:
		g.begin(origin{host: g.origin.host, title: s.text}, nil)
	case opHeader:
		g.begin(origin{Header: s.Header, header: true, host: g.origin.host, title: g.origin.title}, nil)
	case opPrint:
		g.begin(g.originOf(s), s)
	case opIncompatible:
		g.hidden, g.origins = append(g.hidden, *s), append(g.origins, g.origin)
	case opWarning:
		g.warned = append(g.warned, *s)
	case opTable:
		g.endLoose()
		g.ended()
		b := &block{form: formSaved, table: s.table, origin: g.origin, number: s.number}
		if g.shown != nil {
			b.filtered, b.alone, b.grep = g.shown.filter, g.shown.table != "", g.shown.selection()
		}
		g.open(b)
	case opCommit:
		g.endLoose()
		if g.current != nil {
			g.current.committed = true
		}
		g.current = nil
	default:
		g.addRule(s)
	}
}

// begin is the beginning of another output.
func (g *gatherer) begin(o origin, shown *statement) {
	g.endLoose()
	g.origin, g.shown, g.current, g.scripts = o, shown, nil, nil
}

// selection is the command, if it printed selected lines only; s may be nil.
func (s *statement) selection() string {
	if s == nil || !s.filter {
		return ""
	}
	return s.text
}

// originOf is the program that a command line runs, and the host on which it does.
func (g *gatherer) originOf(s *statement) origin {
	o := origin{Header: s.Header, host: cmp.Or(s.host(), g.origin.host), title: g.origin.title}
	if o.host != g.origin.host {
		o.title = ""
	}
	return o
}

// ended is where more text of the same output follows a table, so that a missing COMMIT was left out.
func (g *gatherer) ended() {
	if g.current != nil {
		g.current.ended = true
	}
}

// takeBody adds a rule without its beginning to the chain that it names. false: it names none.
func (b *block) takeBody(s *statement) bool {
	words := iptables.Fields(s.text)
	for i, w := range words {
		if w.Is("-j", "-g") {
			break
		}
		if iptables.Builtin(b.table, w.Text) || slices.ContainsFunc(b.lines, func(l *statement) bool { return l.op == opDeclare && l.chain == w.Text }) {
			s.op, s.chain = opAppend, w.Text
			args := words[i+1:]
			s.rule = &iptables.Rule{Line: s.number, Chain: s.chain}
			s.rule.SetArgs(args)
			b.lines = append(b.lines, s)
			return true
		}
	}
	return false
}

// suspectCuts takes a table without COMMIT for one that was cut off if others have theirs. Without any, somebody left them out.
func (g *gatherer) suspectCuts() {
	if slices.ContainsFunc(g.blocks, func(b *block) bool { return b.committed }) {
		for _, b := range g.blocks {
			b.ended = false
		}
	}
}

// elided is where somebody left lines out.
func (g *gatherer) elided(s *statement) {
	g.gaps = append(g.gaps, s.number)
	if g.current != nil {
		g.current.filtered = true
	}
	for _, b := range g.scripts {
		b.filtered = true
	}
	g.looseGap = len(g.loose) > 0
}

func (g *gatherer) open(b *block) {
	g.current = b
	g.blocks = append(g.blocks, b)
}

func (g *gatherer) addRule(s *statement) {
	switch {
	case s.table != "":
		g.script(s)
		return
	case g.current != nil && g.current.form == formListed && len(g.current.lines) > 0 && beginsTable(g.current.lines[len(g.current.lines)-1], s):
		g.current, g.shown = nil, nil
	}
	if g.current == nil && g.shown != nil && g.shown.table != "" && len(g.loose) == 0 {
		g.open(&block{form: formListed, table: g.shown.table, origin: g.origin, number: s.number, filtered: g.shown.filter || g.shown.chain != "", grep: g.shown.selection()})
	}
	if g.current == nil {
		g.loose = append(g.loose, s)
		return
	}
	g.current.lines = append(g.current.lines, s)
}

// script adds a whole command to the block of its table.
func (g *gatherer) script(s *statement) {
	o := g.origin
	if s.named {
		o = g.originOf(s)
	}
	for _, b := range g.scripts {
		if b.table == s.table && b.origin == o {
			b.lines = append(b.lines, s)
			return
		}
	}
	b := &block{form: formCommands, table: s.table, origin: o, number: s.number, lines: []*statement{s}, filtered: true}
	g.scripts, g.blocks = append(g.scripts, b), append(g.blocks, b)
}

// endLoose makes blocks of the lines without a table.
func (g *gatherer) endLoose() {
	lines, gap := g.loose, g.looseGap
	g.loose, g.looseGap = nil, false
	if len(lines) == 0 {
		return
	}
	inferTables(lines)
	var b *block
	for i, s := range lines {
		if i == 0 || s.table != b.table || beginsTable(lines[i-1], s) {
			b = &block{form: formLoose, table: s.table, origin: g.origin, number: s.number, filtered: gap || g.shown != nil && g.shown.filter, grep: g.shown.selection()}
			g.blocks = append(g.blocks, b)
		}
		b.lines = append(b.lines, s)
	}
}

// shownFamily is the family by the first address in the rules, if nothing else shows it.
func (b *block) shownFamily() iptables.Family {
	for _, s := range b.lines {
		if s.rule != nil {
			if f := iptables.FamilyOf(s.rule.Args()); f != iptables.FamilyUnknown {
				return f
			}
		}
	}
	return iptables.FamilyUnknown
}

// hasBuiltin reports whether the block has a built-in chain, as each table of iptables-save has.
func (b *block) hasBuiltin() bool {
	return slices.ContainsFunc(b.lines, func(s *statement) bool { return iptables.Builtin(b.table, s.chain) })
}

// complete reports whether the block has all rules of its table.
func (b *block) complete() bool {
	if b.form == formSaved {
		return !b.filtered && b.hasBuiltin()
	}
	var policies []string
	for _, s := range b.lines {
		if s.op == opPolicy || s.op == opDeclare && s.chainUp.Policy != iptables.PolicyNone {
			policies = append(policies, s.chain)
		}
	}
	return !b.filtered && b.form != formCommands && !slices.ContainsFunc(iptables.BuiltinChains(b.table), func(chain string) bool {
		// Before Linux 2.6.34 table nat had no INPUT.
		return !slices.Contains(policies, chain) && (b.table != "nat" || chain != "INPUT")
	})
}
