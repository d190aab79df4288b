package iptables

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/parallel"
	"github.com/nfqproxy/nfqproxy/datapath/pasted"
)

// Options are information that a dump may not have.
type Options struct {
	// Family is used if neither the header of iptables-save nor any address shows it;
	// FamilyUnknown: then IPv4.
	Family Family
	// Mend keeps a rule of a listing that cannot be read, with an [UnknownMatch] and mostly an [UnknownTarget], and notes it.
	Mend bool
}

// Parse reads a dump. An error is that of r, or joins all faults of the text: see [Errors]. An
// unknown match or target is no fault: see [UnknownMatch].
func Parse(r io.Reader, options Options) (*Dump, error) {
	text, err := pasted.Read(r)
	if err != nil {
		return nil, err
	}
	return parse(text, options)
}

func parse(text string, options Options) (*Dump, error) {
	p := reader{dump: &Dump{}}
	p.read(text)
	p.settleFamily(options.Family)
	for i, t := range p.dump.Tables {
		p.typeRules(t, p.all[i])
	}
	p.dump.Notes = MergeNotes(p.lost)
	p.dump.Backend, p.dump.Written = p.header.Backend, p.header.Written
	if err := p.errors.err(); err != nil {
		return nil, err
	}
	return p.dump, nil
}

// reader goes through the lines of a dump.
type reader struct {
	dump   *Dump
	table  *Table // nil: outside of any
	number int    // of the line, from 1
	before []string
	header Header // the first that shows the family
	addrs  Family // by the first address
	errors errorList
	rest   string            // of the text, behind the line
	chains map[string]bool   // which the table declares
	all    []map[string]bool // of each table
	// undeclared are the columns of the chains of rules that no line before declares.
	undeclared map[*Rule]int
	lost       []Note
	words      []Token // of the line, used again for the next one
	rules      slab[Rule]
	declared   slab[Chain]
}

func (p *reader) fail(column int, problem, want string) {
	p.errors.add(p.number, &Error{Column: column, Problem: problem, Want: want})
}

func (p *reader) read(text string) {
	unterminated := text != "" && !strings.HasSuffix(text, "\n")
	for len(text) > 0 {
		p.number++
		if p.errors.tooMany(p.number) {
			return
		}
		var line string
		var breaks int
		line, text, breaks = cutRule(text)
		p.rest = text
		begin := 0
		for begin < len(line) && blank(line[begin]) {
			begin++
		}
		if i := strings.IndexByte(line, 0); i >= 0 {
			p.fail(i+1, "a NUL byte", "text")
			continue
		}
		p.line(line, begin)
		p.number += breaks
	}
	if p.table != nil {
		p.number++
		p.fail(1, fmt.Sprintf("the file ends inside table %s", p.table.Name), "COMMIT")
		p.table.After = p.take()
	}
	p.dump.After = p.take()
	p.dump.Unterminated = unterminated
}

// line reads one line, whose first byte after spaces is at line[begin].
func (p *reader) line(line string, begin int) {
	content := strings.TrimRight(line[begin:], " \t\r")
	if content == "" || content[0] == '#' {
		if p.header.Family == FamilyUnknown && content != "" {
			if h, ok := ParseHeader(content); ok {
				p.header = h
			}
		}
		p.before = append(p.before, line)
		return
	}
	column := begin + 1
	switch {
	case content[0] == '*':
		p.begin(content, column)
	case content[0] == ':':
		p.chain(content, column)
	case content == "COMMIT":
		if p.table == nil {
			p.fail(column, "COMMIT outside of a table", `"*table" or a comment`)
			return
		}
		p.table.After, p.table = p.take(), nil
	case content[0] == '-', content[0] == '[':
		p.rule(content, column)
	case p.table == nil:
		p.fail(column, fmt.Sprintf("unknown line %.40q", content), `"*table" or a comment`)
	default:
		p.fail(column, fmt.Sprintf("unknown line %.40q", content), `":chain", "-A chain", COMMIT or a comment`)
	}
}

func (p *reader) take() []string {
	lines := p.before
	p.before = nil
	return lines
}

func (p *reader) begin(content string, column int) {
	name := content[1:]
	if p.table != nil {
		p.fail(column, fmt.Sprintf("table %.40s begins inside table %s", name, p.table.Name), "COMMIT")
	}
	// An unknown table is read, too, for the faults in it.
	if BuiltinChains(name) == nil {
		p.fail(column+1, fmt.Sprintf("unknown table %.40q", name), strings.Join(TableNames(), ", "))
	} else if old := p.dump.Table(name); old != nil {
		p.fail(column+1, fmt.Sprintf("table %s is there already, at line %d", name, old.Line), "each table once, and one family in a file")
	}
	p.table = &Table{Before: p.take(), Name: name, Line: p.number}
	chains := 0
	for line := range strings.Lines(p.rest) {
		if !strings.HasPrefix(line, ":") {
			break
		}
		chains++
	}
	p.chains = make(map[string]bool, chains)
	p.dump.Tables, p.all = append(p.dump.Tables, p.table), append(p.all, p.chains)
}

// maxChainName is the longest name of a chain: XT_EXTENSION_MAXNAMELEN less the NUL.
const maxChainName = 28

// chain reads ":name policy [packets:bytes]".
func (p *reader) chain(content string, column int) {
	if p.table == nil {
		p.fail(column, "a chain outside of a table", `"*table" before it`)
		return
	}
	words, _ := appendWords(p.words[:0], strings.ReplaceAll(content, `"`, "\x00"), column)
	p.words = words
	name := words[0].Text[1:]
	switch {
	case strings.Contains(content, `"`) || name == "":
		p.fail(column+1, fmt.Sprintf("%.40q cannot be the name of a chain", name), "a name")
		return
	case len(name) > maxChainName && !Builtin(p.table.Name, name):
		p.fail(column+1, fmt.Sprintf("the chain's name %.40q is too long", name), fmt.Sprintf("at most %d characters", maxChainName))
		return
	case p.chains[name]:
		return // iptables-nft takes it a second time
	}
	c := &p.declared.take(1)[0]
	*c = Chain{Before: p.take(), Name: name, Line: p.number}
	p.chains[name] = true
	p.table.Chains = append(p.table.Chains, c)
	if len(words) < 2 {
		p.fail(column+len(content), "the chain's policy is missing", "ACCEPT, DROP or -")
		return
	}
	switch policy := words[1]; policy.Text {
	case "-":
	case "ACCEPT":
		c.Policy = PolicyAccept
	case "DROP":
		c.Policy = PolicyDrop
	default:
		p.fail(policy.Column, fmt.Sprintf("unknown policy %.40q", policy.Text), "ACCEPT, DROP or -")
		return
	}
	if !Builtin(p.table.Name, name) {
		c.Policy = PolicyNone // iptables-nft ignores it
	}
	if len(words) > 2 {
		c.Counters = ParseCounters(words[2].Text) // without --counters, iptables-restore ignores what follows
	}
}

// ParseCounters reads "[12:3456]"; nil: the text is something else.
func ParseCounters(text string) *Counters {
	inner, ok := strings.CutPrefix(text, "[")
	inner, closed := strings.CutSuffix(inner, "]")
	packets, bytes, colon := strings.Cut(inner, ":")
	if !ok || !closed || !colon {
		return nil
	}
	p, err1 := strconv.ParseUint(packets, 10, 64)
	b, err2 := strconv.ParseUint(bytes, 10, 64)
	if err1 != nil || err2 != nil {
		return nil
	}
	return &Counters{p, b}
}

// rule reads "[packets:bytes] -A chain words...".
func (p *reader) rule(content string, column int) {
	if p.table == nil {
		p.fail(column, "a rule outside of a table", `"*table" before it`)
		return
	}
	if p.addrs != FamilyUnknown && p.savedRule(content, column) {
		return
	}
	words, e := appendWords(p.words[:0], content, column)
	if e != nil {
		p.errors.add(p.number, e)
		return
	}
	p.words = words
	r := Rule{Line: p.number}
	if strings.HasPrefix(words[0].Text, "[") {
		if r.Counters = ParseCounters(words[0].Text); r.Counters == nil || words[0].Quoted {
			p.fail(column, fmt.Sprintf("%.40q are no counters", words[0].Text), "[packets:bytes]")
			return
		}
		words = words[1:]
	}
	end := column + len(content)
	command, words, rest := cutCommand(words)
	switch {
	case len(words)+len(rest) == 0 && command.Text == "":
		p.fail(end, "no rule behind the counters", "-A")
		return
	case !command.Is("-A"):
		p.fail(command.Column, fmt.Sprintf("command %.40q", command.Text), "-A, the only one that iptables-save writes")
		return
	case len(rest) == 0:
		p.fail(end, "-A without a chain", "its name")
		return
	}
	// A chain's name is printed without quotes: a name that needs quotes cannot be declared.
	chain := rest[0]
	if len(words) == 0 { // as iptables-save prints it
		words = rest[1:]
	} else {
		words = append(words[:len(words):len(words)], rest[1:]...)
	}
	r.Chain = chain.Text
	for _, args := range Separate(words) {
		args = slices.Clone(args)
		r.words = &args
		p.add(r, chain.Column)
	}
	if p.addrs == FamilyUnknown {
		p.addrs = FamilyOf(words)
	}
}

// savedRule takes a rule as iptables-save prints it; false: it may be another. Its words are not looked at yet.
func (p *reader) savedRule(content string, column int) bool {
	r := Rule{Line: p.number}
	text := content
	if content[0] == '[' {
		var counters string
		counters, text, _ = strings.Cut(content, " ")
		if r.Counters = ParseCounters(counters); r.Counters == nil {
			return false
		}
	}
	text, ok := strings.CutPrefix(text, "-A ")
	if r.Chain, r.Text, _ = strings.Cut(text, " "); !ok || r.Chain == "" || r.Text == "" || strings.ContainsAny(r.Chain, "\t\r\"") || strings.Contains(r.Text, ",") {
		return false
	}
	column += len(content) - len(r.Text)
	r.column = uint32(column)
	p.add(r, column-1-len(r.Chain))
	return true
}

// add adds a rule to the table; chain is the column of its chain.
func (p *reader) add(r Rule, chain int) {
	one := &p.rules.take(1)[0]
	*one = r
	if before := p.take(); before != nil {
		if p.table.before == nil {
			p.table.before = make(map[*Rule][]string)
		}
		p.table.before[one] = before
	}
	n := len(p.table.Rules)
	if n == cap(p.table.Rules) {
		p.table.Rules = slices.Grow(p.table.Rules, n+1)
	}
	if (n == 0 || p.table.Rules[n-1].Chain != r.Chain || p.undeclared != nil) && !p.chains[r.Chain] {
		if p.undeclared == nil {
			p.undeclared = make(map[*Rule]int)
		}
		p.undeclared[one] = chain
	}
	p.table.Rules = append(p.table.Rules, one)
}

// settleFamily chooses the family: by the header, or else by the first address, or else by the
// caller's option.
func (p *reader) settleFamily(given Family) {
	for _, f := range []Family{p.header.Family, p.addrs, given, IPv4} {
		if f != FamilyUnknown {
			p.dump.Family = f
			return
		}
	}
}

// typeRules sets the matches and targets of a table's rules; declared are its chains.
func (p *reader) typeRules(t *Table, declared map[string]bool) {
	foreign := make(map[*Rule]bool)
	for _, found := range parallel.Chunks(len(t.Rules), func(from, to int) typed {
		return p.typeSome(t, declared, t.Rules[from:to])
	}) {
		p.errors = append(p.errors, found.errors...)
		p.lost = append(p.lost, found.lost...)
		for _, r := range found.foreign {
			foreign[r] = true
		}
	}
	if len(foreign) > 0 {
		t.Rules = slices.DeleteFunc(t.Rules, func(r *Rule) bool { return foreign[r] })
	}
}

// typed is what was found in typing rules, in their order.
type typed struct {
	errors  errorList
	lost    []Note
	foreign []*Rule
}

// typeSome sets the matches and targets of some rules of a table. It does not change the reader.
func (p *reader) typeSome(t *Table, declared map[string]bool, rules []*Rule) (found typed) {
	a := analysis{family: p.dump.Family, table: t.Name, declared: declared}
	var words []Token // of the rule, used again for the next one
	for _, r := range rules {
		if column, ok := p.undeclared[r]; ok && !declared[r.Chain] && !Builtin(t.Name, r.Chain) {
			found.errors.add(r.Line, &Error{
				Column:  column,
				Problem: fmt.Sprintf("table %s has no chain %.40q", t.Name, r.Chain),
				Want:    fmt.Sprintf("a line \":%.40s - [0:0]\" in the table", r.Chain),
			})
		}
		args, e := r.appendArgs(words[:0])
		if words = args; e == nil {
			e = a.analyse(r, args)
		}
		if e != nil {
			found.errors.add(r.Line, e)
			continue
		}
		if a.foreign {
			a.lost = append(a.lost, "the rule is for the other family (-4 or -6) and left out")
			found.foreign = append(found.foreign, r)
		}
		for _, text := range a.lost {
			found.lost = append(found.lost, Note{Line: r.Line, Text: text})
		}
	}
	return found
}
