// Package iptables is the text of iptables-save and ip6tables-save, and of the ipset save file
// that goes with it: [Parse] reads a dump into tables, chains and rules with typed matches and
// targets, and [Dump.WriteTo] prints it again. [Read] does the same for the output of iptables -L,
// too. Package pastedrules reads what people make of either.
//
// Each match and each target is one file: its text, its form in the kernel, and its effect on a packet,
// which a [Context] evaluates. The order in which tables, chains and rules are evaluated, connection
// tracking, translation and routing are package netfilter's.
package iptables

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

// Dump is the output of one run of iptables-save; or a ruleset of nftables for one family, as package nftrules makes it: its
// tables are named with their family ("inet filter"), and chains with a Base take the place of those that are built in.
type Dump struct {
	// Family is the family of all addresses in the dump; never FamilyUnknown after Parse.
	Family Family
	Tables []*Table
	// After are the comment and blank lines behind the last COMMIT, without line ends.
	After []string
	// Unterminated is set for a file whose last line has no line end, as after copying by hand.
	Unterminated bool
	// Backend is where the kernel has the rules, as far as the text shows it.
	Backend Backend
	// Written is the time in the first line of iptables-save, by the clock of its host; zero: there is none.
	Written time.Time
	// LegacyToo is set if iptables-save warns of rules in the other back end, iptables-legacy, which the text does not have.
	LegacyToo bool
	// Host is the host of the prompt or command line above; empty: there is none.
	Host string
	// Title is what the text calls the host or its file; empty: nothing.
	Title string
	// File is the name of the file that the dump was read from; empty: unknown.
	File string
	// Notes are what could not be read of rules, each once with its first line.
	Notes []Note
	// Listing has the unknown parts of a dump with missing parts, as that of iptables -L; else nil.
	Listing *Listing
	// Ruleset is what rules of nftables were made from; nil: they are of iptables.
	Ruleset *nftables.Ruleset
}

// Table is everything between "*nat" and its COMMIT.
type Table struct {
	// Before are the comment and blank lines in front, without line ends.
	Before []string
	Name   string
	Line   int // counts from 1; 0: was not read from a file
	// Chains are the declared chains. Some programs leave the built-in ones out, although they
	// exist: see [Table.Has].
	Chains []*Chain
	// Rules are those of all chains, in the order of the file. Only the order of the
	// rules of one chain has a meaning.
	Rules []*Rule
	// After are the comment and blank lines before COMMIT.
	After  []string
	before map[*Rule][]string // the comment and blank lines in front of rules
}

// Chain is the declaration ":INPUT ACCEPT [12:3456]".
type Chain struct {
	Before   []string // comment and blank lines in front
	Name     string
	Line     int       // counts from 1; 0: was not read from a file
	Policy   Policy    // PolicyNone for chains that are not built in
	Base     *Base     // of base chains of nftables; else nil
	Counters *Counters // nil: unknown
	Open     bool      // it may have more rules than the text
}

// Counters are how many packets a rule, or a chain's policy, met.
type Counters struct {
	Packets, Bytes uint64
}

func (c Counters) String() string { return fmt.Sprintf("[%d:%d]", c.Packets, c.Bytes) }

// Policy is the verdict at the end of a built-in chain.
type Policy uint8

// The policies; the kernel knows no others (ip_tables.c, check_underflow).
const (
	PolicyNone Policy = iota // "-"
	PolicyAccept
	PolicyDrop
)

func (p Policy) String() string {
	switch p {
	case PolicyAccept:
		return "ACCEPT"
	case PolicyDrop:
		return "DROP"
	}
	return "-"
}

// Rule is one line "-A chain ...", or a rule of nftables. A file may have a million of them.
type Rule struct {
	Line     int    // counts from 1; 0: was not read from a file
	File     string // the name of the file that Line counts in; empty: all rules are of one file
	Chain    string
	Counters *Counters // nil: dumped without -c
	// Matches are in the order of the text. All must succeed for the rule to match; those with a
	// side effect (limit, recent, statistic) are evaluated only if all before them succeeded,
	// except that the kernel evaluates the generic ones first.
	Matches []Match
	// Target is nil for a rule that only counts.
	Target Target
	// Text is what follows "-A chain"; of a rule of nftables, the rule in nft's words. Empty: see Args.
	Text   string
	Native bool   // it is a rule of nftables
	column uint32 // of the text, in bytes from 1; 0: unknown
	Handle uint64 // of a rule of nftables; 0: not known
	words  *[]Token
}

// Args are the words behind "-A chain", which are what is printed.
func (r *Rule) Args() []Token {
	args, _ := r.appendArgs(nil) // the reader refuses words that cannot be split
	return args
}

// SetArgs changes what is printed, and neither Matches nor Target; [Tokens] makes words from those.
func (r *Rule) SetArgs(args []Token) { r.Text, r.words = "", &args }

// Comment is the rule's first comment; empty: it has none.
func (r *Rule) Comment() string {
	for _, m := range r.Matches {
		if c, ok := m.(Comment); ok {
			return c.Text
		}
	}
	return ""
}

// JumpsTo is the chain that the rule jumps or goes to; empty: it does neither.
func (r *Rule) JumpsTo() string {
	switch t := r.Target.(type) {
	case Jump:
		return t.Chain
	case Goto:
		return t.Chain
	}
	return ""
}

func (r *Rule) appendArgs(to []Token) ([]Token, *Error) {
	if r.words != nil {
		return append(to, *r.words...), nil
	}
	return appendWords(to, r.Text, int(r.column))
}

// String is the rule's line without counters. That of a rule of nftables has no chain.
func (r *Rule) String() string {
	if r.Native {
		return r.Text
	}
	var b strings.Builder
	b.WriteString("-A ")
	b.WriteString(r.Chain)
	for _, t := range r.Args() {
		b.WriteByte(' ')
		b.WriteString(t.String())
		if !t.Quoted && t.Text == accountingName {
			b.WriteByte(' ') // iptables-save prints two (nfacct_print_name, libxt_nfacct.c)
		}
	}
	return b.String()
}

// builtin are the tables with their built-in chains, in the order in which
// iptables-save prints them (iptable_*.c, valid_hooks).
var builtin = []struct {
	table  string
	chains []string
}{
	{"raw", []string{"PREROUTING", "OUTPUT"}},
	{"mangle", []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}},
	{"nat", []string{"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"}},
	{"filter", []string{"INPUT", "FORWARD", "OUTPUT"}},
	{"security", []string{"INPUT", "FORWARD", "OUTPUT"}},
}

// TableNames are the tables of the kernel.
func TableNames() []string {
	var names []string
	for _, b := range builtin {
		names = append(names, b.table)
	}
	return names
}

// BuiltinChains returns the chains in which the table's hooks begin; none if there is no such
// table.
func BuiltinChains(table string) []string {
	for _, b := range builtin {
		if b.table == table {
			return slices.Clone(b.chains)
		}
	}
	return nil
}

// Builtin reports whether it is a built-in chain of the table.
func Builtin(table, chain string) bool {
	for _, b := range builtin {
		if b.table == table {
			return slices.Contains(b.chains, chain)
		}
	}
	return false
}

// Table is the table of that name, or nil.
func (d *Dump) Table(name string) *Table {
	for _, t := range d.Tables {
		if t.Name == name {
			return t
		}
	}
	return nil
}

// Chain is the declaration of a chain, or nil.
func (t *Table) Chain(name string) *Chain {
	for _, c := range t.Chains {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Has reports whether there is such a chain: declared, or built in.
func (t *Table) Has(chain string) bool {
	return Builtin(t.Name, chain) || t.Chain(chain) != nil
}

// ByChain returns the rules of each chain that has any, in order. It goes through the whole table:
// keep the result.
func (t *Table) ByChain() map[string][]*Rule {
	rules := make(map[string][]*Rule)
	for _, r := range t.Rules {
		rules[r.Chain] = append(rules[r.Chain], r)
	}
	return rules
}

// NameRules sets the file of all rules.
func (d *Dump) NameRules(file string) {
	for _, t := range d.Tables {
		for _, r := range t.Rules {
			r.File = file
		}
	}
}

// String is the text that WriteTo writes, without lines that cannot be written.
func (d *Dump) String() string {
	var b bytes.Buffer
	_, _ = d.WriteTo(&b)
	return b.String()
}

// WriteTo prints the dump. A dump from iptables-save is printed unchanged, byte for byte; others
// with one space between words, quotes as iptables-save sets them, and the chains of a table
// before its rules. A line end in a word or comment is an error, because the format cannot
// represent it.
func (d *Dump) WriteTo(w io.Writer) (int64, error) {
	p := printer{}
	for _, t := range d.Tables {
		p.lines(t.Before)
		p.line("*", t.Name)
		for _, c := range t.Chains {
			p.lines(c.Before)
			if c.Counters == nil {
				p.line(":", c.Name, " ", c.Policy.String())
			} else {
				p.line(":", c.Name, " ", c.Policy.String(), " ", c.Counters.String())
			}
		}
		for _, r := range t.Rules {
			p.lines(t.before[r])
			if r.Counters == nil {
				p.line(r.String())
			} else {
				p.line(r.Counters.String(), " ", r.String())
			}
		}
		p.lines(t.After)
		p.line("COMMIT")
	}
	p.lines(d.After)
	if d.Unterminated {
		p.text = bytes.TrimSuffix(p.text, []byte("\n"))
	}
	n, err := w.Write(p.text)
	if err != nil {
		return int64(n), err
	}
	return int64(n), p.err
}

type printer struct {
	text []byte
	err  error
}

func (p *printer) lines(lines []string) {
	for _, l := range lines {
		p.line(l)
	}
}

func (p *printer) line(parts ...string) {
	begin := len(p.text)
	for _, s := range parts {
		p.text = append(p.text, s...)
	}
	line := string(p.text[begin:])
	// Only quotes in a rule may have a line end in them.
	if _, rest, _ := cutRule(line + "\n"); rest != "" || strings.ContainsRune(line, 0) {
		if p.err == nil {
			p.err = fmt.Errorf("a line end inside a line cannot be written: %q", line)
		}
		p.text = p.text[:begin]
		return
	}
	p.text = append(p.text, '\n')
}
