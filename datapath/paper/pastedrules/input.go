// Package pastedrules reads rules of iptables from a text as people paste it. It finds the lines of iptables in the text (paste.go),
// reads each as a statement (command.go), gathers the statements of a table into blocks (gather.go), infers tables that nothing names
// (infer.go), and assembles dumps of hosts and families from the blocks (draft.go, assemble.go). What it cannot read it keeps as
// unknown (mend.go), and says so.
//
// The dumps are those of package iptables, which reads what iptables itself prints.
package pastedrules

import (
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/pasted"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// Input is what a text with rules holds.
type Input struct {
	// Dumps are the rule sets of the text, each of one family and one back end, in their order.
	Dumps []*iptables.Dump
	// Notes say what was inferred, and what was ignored, by line.
	Notes []iptables.Note
}

// Read reads rules as people bring them: dumps of iptables-save, listings, and what becomes of them in mails, pages and logs: the
// output of iptables -S, selected lines, commands, quoted, numbered or masked lines, and several outputs after one another.
//
// A well-formed dump or listing is read as [iptables.Read] reads it. Of other text a line that cannot be read costs that line: its
// rule has an [iptables.UnknownMatch] or [iptables.UnknownTarget]. A dump that may lack rules has an [iptables.Listing]. The error of
// a text without any rule is that of iptables.Read.
func Read(r io.Reader, options iptables.Options) (*Input, error) {
	text, err := pasted.Read(r)
	if err != nil {
		return nil, err
	}
	text, width := cutRows(text)
	options.Mend = width > 0
	in, err := readFolded(text, options)
	if in == nil {
		in, err = readForm(text, options)
	}
	commands := listingWithCommands(text)
	if err != nil || !in.hasTables() || commands > 0 {
		if other, otherErr := readOtherForm(text, options, err); other != nil || otherErr != nil {
			in, err = other, otherErr
		}
	}
	if err != nil {
		return nil, err
	}
	if commands > 0 {
		in.Notes = append(in.Notes, iptables.Note{Line: commands, Text: "commands that change rules are left out beside a listing, which has the rules that there were"})
	}
	if width > 0 {
		in.Notes = slices.Insert(in.Notes, 0, cutNote(width))
	}
	if !printsAll(text) {
		for _, d := range in.Dumps {
			in.Notes = append(in.Notes, markUnprinted(d)...)
		}
	}
	return in, nil
}

var (
	changingCommand = regexp.MustCompile(`(?m)^\W*(sudo )?ip6?tables (-t \w+ )?-[AIDP] `)
	saveLine        = regexp.MustCompile(`(?m)^[^A-Za-z\n]*(-[ANP] \S|\*(raw|mangle|nat|filter)\b|:\S+ (ACCEPT|DROP|-))`)
)

// listingWithCommands is the line of the first command, if a text has a listing and, besides it, only commands that change rules: what
// somebody did, or may do.
func listingWithCommands(text string) int {
	at := changingCommand.FindStringIndex(text)
	if at == nil || !strings.Contains(text, "\nChain ") || saveLine.MatchString(text) {
		return 0
	}
	return 1 + strings.Count(text[:at[0]], "\n")
}

func (in *Input) hasTables() bool {
	return slices.ContainsFunc(in.Dumps, func(d *iptables.Dump) bool { return len(d.Tables) > 0 })
}

// readForm reads a dump, a listing, or what becomes of a dump in mails, pages and logs.
func readForm(text string, options iptables.Options) (*Input, error) {
	d, err := iptables.Read(text, options)
	changed := err != nil || d.Listing == nil && !isWhole(d)
	if changed && !strings.ContainsRune(text, 0) {
		if loose := readPasted(text, options); loose != nil {
			return loose, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return &Input{Dumps: []*iptables.Dump{d}, Notes: d.Notes}, nil
}

// readOtherForm reads what becomes of a listing in mails, pages and logs, and rules in the strings of JSON and the like.
// err is the error without, and nil, nil is returned if there is none either way.
func readOtherForm(text string, options iptables.Options, err error) (*Input, error) {
	if cleaned, lost, ok := undecorateListing(text); ok {
		options.Mend = true
		joined, rests := joinRows(cleaned, text)
		d, err := iptables.Read(joined, options)
		if err != nil {
			return nil, err
		}
		if len(rests) > 0 {
			lost = append(lost, iptables.Note{Line: rests[0], Text: quantity.Count(len(rests), "line") + " below a row: read as its rest, which was wrapped"})
		}
		lost = append(lost, d.Notes...)
		return &Input{Dumps: []*iptables.Dump{d}, Notes: iptables.MergeNotes(lost)}, nil
	}
	if line := nftLine(text); line > 0 {
		return nil, &iptables.Error{Line: line, Column: 1, Problem: "this is the output of nft, but not as nft prints it", Want: "the output of nft list ruleset in a file of its own"}
	}
	if inner, ok := pasted.UnquoteStrings(text, hasContent); ok {
		return readStrings(inner, options)
	}
	if at := listedRow.FindStringIndex(text); at != nil {
		return nil, &iptables.Error{Line: 1 + strings.Count(text[:at[0]], "\n"), Column: 1, Problem: "this is a rule of iptables -L without the line of its chain", Want: "the whole listing, or the output of iptables-save"}
	}
	for i, line := range strings.Split(text, "\n") {
		if incompatible.MatchString(strings.TrimSpace(line)) {
			return nil, &iptables.Error{Line: i + 1, Column: 1, Problem: "iptables does not print this table, which is incompatible with it", Want: "the output of nft list ruleset"}
		}
	}
	return nil, err
}

// readFolded reads rules in strings that YAML folded behind each line: its lines look like rules. nil: there are none.
func readFolded(text string, options iptables.Options) (*Input, error) {
	if !strings.Contains(text, "\\n\\\n") {
		return nil, nil
	}
	inner, ok := pasted.UnquoteStrings(text, hasContent)
	if !ok {
		return nil, nil
	}
	return readStrings(inner, options)
}

func readStrings(inner string, options iptables.Options) (*Input, error) {
	in, err := readForm(inner, options)
	if err == nil {
		in.Notes = slices.Insert(in.Notes, 0, iptables.Note{Text: "the rules are in strings with escapes, as in JSON: lines are counted in the text of these strings"})
	}
	return in, err
}

// isWhole reports whether a dump is the unchanged output of one iptables-save.
func isWhole(d *iptables.Dump) bool {
	var first *iptables.Header
	changed := func(lines []string) bool {
		return slices.ContainsFunc(lines, func(line string) bool {
			content := strings.TrimSpace(line)
			if !remarkContent.MatchString(content) {
				return pasted.IsElision(content)
			}
			s := parseStatement(pastedLine{text: content})
			if s.op != opHeader {
				return s.op == opIncompatible || s.op == opWarning
			}
			if first == nil {
				first = &s.Header
			}
			return s.Family != first.Family || s.Backend != first.Backend
		})
	}
	return !changed(d.After) && !slices.ContainsFunc(d.Tables, func(t *iptables.Table) bool {
		return changed(t.Before) || changed(t.After) || isSelected(t) || hasMasks(t) || hasTraces(t)
	})
}

// isSelected reports whether the table has chains, and none of those that iptables-save prints of each table: somebody
// selected lines.
func isSelected(t *iptables.Table) bool {
	return len(t.Chains)+len(t.Rules) > 0 && !slices.ContainsFunc(t.Chains, func(c *iptables.Chain) bool { return iptables.Builtin(t.Name, c.Name) }) &&
		!slices.ContainsFunc(t.Rules, func(r *iptables.Rule) bool { return iptables.Builtin(t.Name, r.Chain) })
}

// hasMasks reports whether the name of a chain, a target or a device is masked.
func hasMasks(t *iptables.Table) bool {
	return slices.ContainsFunc(t.Chains, func(c *iptables.Chain) bool { return pasted.IsMask(c.Name) }) || slices.ContainsFunc(t.Rules, func(r *iptables.Rule) bool {
		target, isUnknown := r.Target.(iptables.UnknownTarget)
		return isUnknown && pasted.IsMask(target.Target) || slices.ContainsFunc(r.Matches, func(m iptables.Match) bool {
			in, isIn := m.(iptables.InInterface)
			out, isOut := m.(iptables.OutInterface)
			return isIn && pasted.IsMask(in.Interface.Name) || isOut && pasted.IsMask(out.Interface.Name)
		})
	})
}

// hasTraces reports whether a name or an option has characters that an editor or a terminal added.
func hasTraces(t *iptables.Table) bool {
	added := func(text string) bool { return pasted.Restore(text) != text }
	return slices.ContainsFunc(t.Chains, func(c *iptables.Chain) bool { return added(c.Name) }) || slices.ContainsFunc(t.Rules, func(r *iptables.Rule) bool {
		return added(r.Chain) || (r.Text == "" || added(r.Text)) && slices.ContainsFunc(r.Args(), func(w iptables.Token) bool { return !w.Quoted && added(w.Text) })
	})
}

// listedRow is a rule in a listing: its protocol, options and addresses.
var listedRow = regexp.MustCompile(`(?m)^(.*\s)?(all|tcp|udp|icmp|\d+)\s+(--|-f)\s+(\S+\s+\S+\s+)?(anywhere|!?\d+\.\d+\.\d+\.\d+(/\d+)?|!?[0-9a-f:]*::[0-9a-f:/]*)\s`)

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
