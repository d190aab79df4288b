package iptables

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Listing is the missing information of a dump from the output of iptables -L.
type Listing struct {
	// Incomplete has one note for each kind of missing information, in the order of
	// their lines.
	Incomplete []Note
	// Hidden are tables that exist, and that iptables could not print.
	Hidden []string
	// Empty are tables that are not in the text because they have no rules.
	Empty []string
	// Cut: a text of iptables-save ends within a table, and others may follow.
	Cut bool
}

// Lists reports whether all rules of a chain are known. A dump of iptables-save has those of all chains; a listing only
// those of the listed chains, and selected lines of a dump those of none.
func (d *Dump) Lists(table, chain string) bool {
	t := d.Table(table)
	switch {
	case t == nil:
		return (d.Listing == nil || slices.Contains(d.Listing.Empty, table)) && Builtin(table, chain)
	case d.Listing == nil:
		return t.Has(chain)
	}
	c := t.Chain(chain)
	return c != nil && !c.Open
}

// Hides reports whether iptables could not print a table that the host has, because another program has changed it
// (Table `nat' is incompatible).
func (d *Dump) Hides(table string) bool {
	return d.Listing != nil && slices.Contains(d.Listing.Hidden, table)
}

// Read reads rules in either form: a dump of iptables-save, see [Parse], or listings: the output of iptables -L or ip6tables -L,
// of version 1.4 or newer and either back end, with or without -n, -v, -x and --line-numbers, also through column -t: one listing
// or several of one family. Comments, prompts and command lines may precede each. The table is that of the last command line,
// such as "# iptables -t nat -L KUBE-SERVICES -n"; without one it is guessed.
//
// The dump of a listing is the output of iptables-save, as far as the listing shows it: the missing parts are in [Dump.Listing].
// A chain that was not listed is not declared, even if rules jump to it: see [Dump.Lists]. An ambiguous text is an
// [UnknownMatch]: text of unknown modules, under its first word; names of hosts and users, and rare ones of ports; and the end of
// a line that was cut off. Runs of spaces in comments are one space. Errors are those of [Parse].
func Read(text string, options Options) (*Dump, error) {
	if isListing(text) {
		return parseListing(text, options)
	}
	return parse(text, options)
}

// isListing looks for the first line that only one of the two forms has.
func isListing(text string) bool {
	for line := range strings.Lines(text) {
		words := Fields(line)
		switch {
		case len(words) == 0:
		case isChainLine(words), isListCommand(words):
			return true
		case strings.ContainsRune("*:-", rune(words[0].Text[0])), words[0].Text == "COMMIT":
			return false
		}
	}
	return false
}

func parseListing(text string, options Options) (*Dump, error) {
	l := lister{
		dump: &Dump{Listing: &Listing{}}, mend: options.Mend, noted: make(map[string]bool),
		chains: make(map[tableChain]bool), declared: make(map[string]map[string]*Chain),
	}
	l.read(text)
	l.settleFamily(options.Family)
	l.guessTables()
	for _, p := range l.parts {
		l.addPart(p)
	}
	if err := l.errors.err(); err != nil {
		return nil, err
	}
	l.dump.NoteUnlisted()
	return l.dump, nil
}

// lister goes through the lines of a listing.
type lister struct {
	dump    *Dump
	mend    bool // see Options
	number  int  // of the line, from 1
	parts   []*part
	chain   *listedChain // the last one; nil: none yet
	command listCommand  // the last one
	errors  errorList
	// unnamed: no line has the names of the columns, as if grep -v had taken them.
	unnamed bool
	bare    errorList       // of chains with nothing below
	noted   map[string]bool // kinds of notes
	// chains are those that any part lists, and declared those of each table so far.
	chains   map[tableChain]bool
	declared map[string]map[string]*Chain
}

type tableChain struct{ table, chain string }

// part is a run of chains of one table.
type part struct {
	command listCommand // the zero value: none
	table   string      // empty: not known yet
	chains  []*listedChain
	names   map[string]bool // of the chains
	builtin []string        // names of those with a policy, in order
}

// listedChain is a chain as it was listed.
type listedChain struct {
	Chain
	column  int      // of its name
	columns *columns // nil: the column names have not come yet
	broken  bool     // the column names were wrong
	ended   bool     // a prompt is below it
	rows    []*row
}

func (l *lister) fail(column int, problem, want string) {
	l.errors.add(l.number, &Error{Column: column, Problem: problem, Want: want})
}

// note keeps the first of its kind.
func (l *lister) note(kind string, line int, format string, args ...any) {
	if !l.noted[kind] {
		l.noted[kind] = true
		l.dump.Listing.Incomplete = append(l.dump.Listing.Incomplete, Note{line, fmt.Sprintf(format, args...)})
	}
}

func (l *lister) read(text string) {
	l.unnamed = !NamesColumns(text)
	for line := range strings.Lines(text) {
		l.number++
		if l.errors.tooMany(l.number) {
			return
		}
		line = strings.TrimRight(line, "\r\n")
		if i := strings.IndexByte(line, 0); i >= 0 {
			l.fail(i+1, "a NUL byte", "text")
			continue
		}
		if words := Fields(line); len(words) > 0 {
			l.line(words)
		}
	}
	if l.chain == nil && len(l.errors) == 0 {
		l.number = max(l.number, 1)
		l.fail(1, "the file ends without any chain", `"Chain NAME (...)", as iptables -L prints it`)
	}
	l.endOfChain()
	if !l.noted["columns"] {
		l.errors = append(l.errors, l.bare...)
	}
}

func (l *lister) line(words []Token) {
	var r *row
	var fault *Error
	if l.chain != nil && l.chain.columns != nil {
		r, fault = l.chain.columns.row(words)
	}
	command, isCommand := parseListCommand(words)
	switch {
	case IsLegacyWarning(words):
		l.dump.LegacyToo, l.dump.Backend = true, BackendNFT
	case words[0].Text[0] == '#' && !isCommand:
	case isChainLine(words):
		l.startChain(words)
	case r != nil && words[0].Text[0] != '#' && !l.chain.ended:
		l.addRow(r)
	case isCommand:
		l.startCommand(command)
	case l.chain != nil && l.chain.columns == nil:
		l.startRows(words)
	case isPrompt(words):
		if l.chain != nil {
			l.chain.ended = true
		}
	case l.chain != nil && l.chain.ended:
		if !l.noted["ended"] {
			l.noted["ended"] = true
			l.dump.Notes = append(l.dump.Notes, Note{l.number, "the lines below a prompt are left out: the name of their chain is missing"})
		}
	case l.chain != nil && l.chain.broken:
	case fault != nil:
		l.errors.add(l.number, fault)
	default:
		l.fail(words[0].Column, fmt.Sprintf("unknown line %.40q", words[0].Text),
			`"Chain NAME (...)", a command line like "$ iptables -t nat -L", or "#" in front of a comment`)
	}
}

// IsLegacyWarning recognizes "# Warning: iptables-legacy tables present, use iptables-legacy to see them", with or without its sign.
func IsLegacyWarning(words []Token) bool {
	i := slices.IndexFunc(words, func(w Token) bool { return strings.TrimLeft(w.Text, "#") == "Warning:" })
	return (i == 0 || i == 1 && words[0].Text == "#") && len(words) > i+2 && strings.HasSuffix(words[i+1].Text, "tables-legacy") && words[i+2].Text == "tables"
}

const wantColumns = `the names of the columns: "target prot opt source destination"`

// startRows reads the names of the columns.
func (l *lister) startRows(words []Token) {
	c, ok := parseColumns(words)
	if !ok && l.unnamed {
		if c, ok = inferColumns(words); ok {
			l.note("columns", l.number, "the names of the columns are missing: they are inferred from the rules")
			l.chain.columns = &c
			l.line(words)
			return
		}
	}
	if !ok {
		l.fail(words[0].Column, fmt.Sprintf("%.40q below the line of chain %s", words[0].Text, l.chain.Name), wantColumns)
	}
	l.chain.columns, l.chain.broken = &c, !ok
}

// addRow takes a line that is a rule.
func (l *lister) addRow(r *row) {
	r.line = l.number
	l.chain.rows = append(l.chain.rows, r)
	l.noteRounded(r.rounded)
	if !l.chain.columns.interfaces {
		l.note("interfaces", l.number, "listed without -v, so interfaces are not shown: a rule with -i or -o, "+
			"like \"-i lo -j ACCEPT\", looks like a rule for every interface")
	}
}

func (l *lister) noteRounded(rounded bool) {
	if rounded {
		l.note("counters", l.number, "counters are rounded (K is 1000, M a million): list with -x to see all digits")
	}
}

func (l *lister) startCommand(c listCommand) {
	if c.table.Text != "" && BuiltinChains(c.table.Text) == nil {
		l.fail(c.table.Column, fmt.Sprintf("unknown table %.40q", c.table.Text), strings.Join(TableNames(), ", "))
	}
	if f := l.command.family; f != FamilyUnknown && f != c.family {
		l.fail(c.column, fmt.Sprintf("a listing of %s behind one of %s", c.family, f), "one family in a file")
	}
	c.line = l.number
	l.endOfChain()
	l.command, l.chain = c, nil
	l.parts = append(l.parts, newPart(c))
}

// endOfChain reports a chain without column names.
func (l *lister) endOfChain() {
	if l.chain != nil && l.chain.columns == nil {
		l.bare.add(l.chain.Line, &Error{Column: l.chain.column, Problem: fmt.Sprintf("nothing below the line of chain %s", l.chain.Name), Want: wantColumns})
	}
}

// IsChainLine reports whether a line is the first one of a chain in a listing.
func IsChainLine(line string) bool { return isChainLine(Fields(line)) }

func isChainLine(words []Token) bool {
	return len(words) > 2 && words[0].Text == "Chain" && strings.HasPrefix(words[2].Text, "(")
}

// startChain reads "Chain NAME (2 references)" and "Chain NAME (policy ACCEPT 5
// packets, 300 bytes)".
func (l *lister) startChain(words []Token) {
	l.endOfChain()
	name := words[1]
	c := &listedChain{Chain: Chain{Name: name.Text, Line: l.number}, column: name.Column}
	l.chain = c
	if !l.header(c, words[2:]) {
		l.fail(words[2].Column, fmt.Sprintf("%.60q behind the name of chain %.40s", joined(words[2:]), name.Text),
			`"(2 references)", "(policy ACCEPT)" or "(policy ACCEPT 5 packets, 300 bytes)"`)
		return
	}
	if fault := chainNameFault(name.Text); fault != "" {
		l.fail(name.Column, fault, "the name of a chain")
	}
	p := l.part(c)
	p.chains, p.names[name.Text] = append(p.chains, c), true
	if c.Policy != PolicyNone {
		p.builtin = append(p.builtin, c.Name)
	}
}

// part returns the part that the chain belongs to. If no command line names the table, another
// part begins with a repeated chain, and with one that cannot be of the table whose built-in
// chains are complete.
func (l *lister) part(c *listedChain) *part {
	if n := len(l.parts); n == 0 || l.parts[n-1].table == "" && l.parts[n-1].endsBefore(c) {
		l.parts = append(l.parts, newPart(listCommand{}))
	}
	return l.parts[len(l.parts)-1]
}

func (p *part) endsBefore(c *listedChain) bool {
	if p.names[c.Name] {
		return true
	}
	// Only the filter table is recognized by its built-in chains before the next part begins.
	filter := BuiltinChains("filter")
	slices.Sort(filter)
	return c.Policy != PolicyNone && !Builtin("filter", c.Name) && len(p.builtin) == len(filter) && slices.Equal(p.builtins(), filter)
}

// builtins are the built-in chains, sorted: those with a policy.
func (p *part) builtins() []string { return slices.Sorted(slices.Values(p.builtin)) }

func newPart(c listCommand) *part {
	return &part{command: c, table: c.tableName(), names: make(map[string]bool)}
}

// header reads what is in brackets after a chain's name.
func (l *lister) header(c *listedChain, words []Token) bool {
	inner, opened := strings.CutPrefix(joined(words), "(")
	inner, closed := strings.CutSuffix(inner, ")")
	w := strings.Fields(inner)
	if !opened || !closed || len(w) < 2 {
		return false
	}
	if w[0] != "policy" {
		_, ok := number[uint32](w[0])
		return ok && len(w) == 2 && w[1] == "references"
	}
	switch w[1] {
	case "ACCEPT":
		c.Policy = PolicyAccept
	case "DROP":
		c.Policy = PolicyDrop
	default:
		return false
	}
	if len(w) == 2 {
		return true
	}
	if len(w) != 6 || w[3] != "packets," || w[5] != "bytes" {
		return false
	}
	packets, rounded1, ok1 := parseCount(w[2])
	bytes, rounded2, ok2 := parseCount(w[4])
	c.Counters = &Counters{packets, bytes}
	l.noteRounded(rounded1 || rounded2)
	return ok1 && ok2
}

// settleFamily chooses the family: by a command line, or else by the first address, or else by the
// caller's option.
func (l *lister) settleFamily(given Family) {
	found := l.command.family
	for _, p := range l.parts {
		for _, c := range p.chains {
			for _, r := range c.rows {
				if found == FamilyUnknown {
					found = r.family()
				}
			}
		}
	}
	l.dump.Family = cmp.Or(found, given, IPv4)
}
