package iptables

import (
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/pasted"
)

// Backend is one of the two places in the kernel that iptables writes rules to, or nftables. A host may have
// rules in all of them at once; its packets pass all.
type Backend uint8

// The back ends.
const (
	BackendUnknown Backend = iota
	BackendLegacy          // ip_tables, ip6_tables
	BackendNFT             // nf_tables
	BackendNative          // nf_tables without iptables: rules of nft
)

var backendNames = []string{"unknown", "iptables-legacy", "iptables-nft", "nftables"}

func (b Backend) String() string { return backendNames[b] }

// Input is what a file with rules holds.
type Input struct {
	// Dumps are the rule sets of the file, each of one family and one back end, in their order.
	Dumps []*Dump
	// Notes say what was inferred, and what was ignored, by line.
	Notes []Note
}

// ReadInput reads rules as people bring them: dumps of iptables-save, see [Parse], listings, see [ParseListing], and
// what becomes of them in mails, pages and logs: the output of iptables -S, selected lines, commands, quoted, numbered
// or masked lines, and several outputs after one another.
//
// A well-formed dump is read as Parse reads it. Of other text a line that cannot be read costs that line: its rule has
// an [UnknownMatch] or [UnknownTarget]. A dump that may lack rules has a [Listing]. The error of a text without any rule
// is that of Parse.
func ReadInput(r io.Reader, options Options) (*Input, error) {
	text, err := pasted.Read(r)
	if err != nil {
		return nil, err
	}
	in, err := readFolded(text, options)
	if in == nil {
		in, err = readForm(text, options)
	}
	if err != nil || !in.hasTables() {
		if other, otherErr := readOtherForm(text, options, err); other != nil || otherErr != nil {
			in, err = other, otherErr
		}
	}
	if err != nil {
		return nil, err
	}
	if !printsAll(text) {
		for _, d := range in.Dumps {
			in.Notes = append(in.Notes, markUnprinted(d)...)
		}
	}
	return in, nil
}

func (in *Input) hasTables() bool {
	return slices.ContainsFunc(in.Dumps, func(d *Dump) bool { return len(d.Tables) > 0 })
}

// readForm reads a dump, a listing, or what becomes of a dump in mails, pages and logs.
func readForm(text string, options Options) (*Input, error) {
	read := readSaved
	if isListing(text) {
		read = readListed
	}
	in, err := read(text, options)
	if err != nil && !strings.ContainsRune(text, 0) {
		if loose := readPasted(text, options); loose != nil {
			return loose, nil
		}
	}
	return in, err
}

// readOtherForm reads what becomes of a listing in mails, pages and logs, and rules in the strings of JSON and the like.
// err is the error without, and nil, nil is returned if there is none either way.
func readOtherForm(text string, options Options, err error) (*Input, error) {
	if cleaned, lost, ok := undecorateListing(text); ok {
		in, err := readListed(cleaned, options)
		if err == nil {
			in.Notes = append(in.Notes, lost.notes()...)
		}
		return in, err
	}
	if line := nftLine(text); line > 0 {
		return nil, &Error{Line: line, Column: 1, Problem: "this is the output of nft, but not as nft prints it", Want: "the output of nft list ruleset in a file of its own"}
	}
	if inner, ok := pasted.UnquoteStrings(text, hasContent); ok {
		return readStrings(inner, options)
	}
	if at := listedRow.FindStringIndex(text); at != nil {
		return nil, &Error{Line: 1 + strings.Count(text[:at[0]], "\n"), Column: 1, Problem: "this is a rule of iptables -L without the line of its chain", Want: "the whole listing, or the output of iptables-save"}
	}
	for i, line := range strings.Split(text, "\n") {
		if incompatible.MatchString(strings.TrimSpace(line)) {
			return nil, &Error{Line: i + 1, Column: 1, Problem: "iptables does not print this table, which is incompatible with it", Want: "the output of nft list ruleset"}
		}
	}
	return nil, err
}

// readFolded reads rules in strings that YAML folded behind each line: its lines look like rules. nil: there are none.
func readFolded(text string, options Options) (*Input, error) {
	if !strings.Contains(text, "\\n\\\n") {
		return nil, nil
	}
	inner, ok := pasted.UnquoteStrings(text, hasContent)
	if !ok {
		return nil, nil
	}
	return readStrings(inner, options)
}

func readStrings(inner string, options Options) (*Input, error) {
	in, err := readForm(inner, options)
	if err == nil {
		in.Notes = slices.Insert(in.Notes, 0, Note{Text: "the rules are in strings with escapes, as in JSON: lines are counted in the text of these strings"})
	}
	return in, err
}

func readListed(text string, options Options) (*Input, error) {
	d, err := parseListing(text, options)
	if err != nil {
		return nil, err
	}
	return &Input{Dumps: []*Dump{d}}, nil
}

// readSaved reads the output of one iptables-save.
func readSaved(text string, options Options) (*Input, error) {
	d, masked, err := parseMasked(text, options)
	if err != nil {
		return nil, err
	}
	heads := headsOf(d)
	if masked || slices.ContainsFunc(d.Tables, hasTraces) {
		if loose := readPasted(text, options); loose != nil {
			return loose, nil
		}
	}
	if slices.ContainsFunc(d.Tables, isSelected) || slices.ContainsFunc(heads, func(s statement) bool {
		return s.op == opIncompatible || s.op == opWarning || s.op == opElided || s.op == opHeader && (s.family != heads[0].family || s.backend != heads[0].backend)
	}) {
		if loose := readPasted(text, options); loose != nil {
			return loose, nil
		}
	}
	if len(heads) > 0 {
		d.Backend, d.Written = heads[0].backend, heads[0].written
	}
	return &Input{Dumps: []*Dump{d}, Notes: d.Notes}, nil
}

// headsOf are the remarks of iptables in a dump: headers first.
func headsOf(d *Dump) []statement {
	var heads, others []statement
	add := func(lines []string) {
		for _, line := range lines {
			content := strings.TrimSpace(line)
			if pasted.IsElision(content) {
				others = append(others, statement{op: opElided})
			} else if remarkContent.MatchString(content) {
				switch s := parseStatement(pastedLine{text: content}); s.op {
				case opHeader:
					heads = append(heads, s)
				case opIncompatible, opWarning:
					others = append(others, s)
				}
			}
		}
	}
	for _, t := range d.Tables {
		add(t.Before)
		add(t.After)
	}
	add(d.After)
	return append(heads, others...)
}

// isSelected reports whether the table has chains, and none of those that iptables-save prints of each table: somebody
// selected lines.
func isSelected(t *Table) bool {
	return len(t.Chains)+len(t.Rules) > 0 && !slices.ContainsFunc(t.Chains, func(c *Chain) bool { return Builtin(t.Name, c.Name) }) &&
		!slices.ContainsFunc(t.Rules, func(r *Rule) bool { return Builtin(t.Name, r.Chain) })
}

// mayBeMasked is a fast test for what isMasked finds.
func mayBeMasked(text string) bool {
	return strings.ContainsAny(text, "<$") || strings.Contains(text, "**") || strings.Contains(text, "{{") || strings.Contains(text, "REDACTED") ||
		strings.Contains(text, "redacted") || strings.Contains(text, "xx") || strings.Contains(text, "XX")
}

// isMasked reports whether a word of a rule is masked, of those that look like the name of a device or of a chain.
func isMasked(args []Token) bool {
	for i, w := range args {
		if i > 0 && strings.HasPrefix(args[i-1].Text, "-") && args[i-1].is("-i", "-o", "-j", "-g", "--in-interface", "--out-interface", "--jump", "--goto") && mayBeMasked(w.Text) && pasted.IsMask(w.Text) {
			return true
		}
	}
	return false
}

// hasTraces reports whether a name or an option has characters that an editor or a terminal added.
func hasTraces(t *Table) bool {
	added := func(text string) bool { return pasted.Restore(text) != text }
	return slices.ContainsFunc(t.Chains, func(c *Chain) bool { return added(c.Name) }) || slices.ContainsFunc(t.Rules, func(r *Rule) bool {
		return added(r.Chain) || (r.Text == "" || added(r.Text)) && slices.ContainsFunc(r.Args(), func(w Token) bool { return !w.Quoted && added(w.Text) })
	})
}

// listedRow is a rule in a listing: its protocol, options and addresses.
var listedRow = regexp.MustCompile(`(?m)^.*\s(all|tcp|udp|icmp|\d+)\s+(--|-f)\s+(\S+\s+\S+\s+)?(anywhere|!?\d+\.\d+\.\d+\.\d+(/\d+)?|!?[0-9a-f:]*::[0-9a-f:/]*)\s`)

var nftTable = regexp.MustCompile(`^\s*(>\s*)?(table (ip|ip6|inet|arp|bridge|netdev) \S+ \{|\{"nftables":)`)

// nftLine is the number of the line in which the output of nft begins; 0: there is none.
func nftLine(text string) int {
	number := 0
	for line := range strings.Lines(text) {
		number++
		if nftTable.MatchString(line) {
			return number
		}
	}
	return 0
}
