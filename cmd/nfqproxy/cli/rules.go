package cli

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/paper/savednode"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftrules"
	"github.com/nfqproxy/nfqproxy/datapath/paper/pastedrules"
)

// ruleFile is a file with rules.
type ruleFile struct {
	name    string // in messages
	path    string // of the flag; empty: a file of a bundle
	open    func() (io.ReadCloser, error)
	family  iptables.Family  // FamilyUnknown: the text shows it, or the question
	backend iptables.Backend // BackendUnknown: the text shows it
}

// ruleFiles are the files of a flag, "-" for standard input.
func ruleFiles(stdin io.Reader, paths []string) ([]ruleFile, error) {
	files := make([]ruleFile, len(paths))
	for i, path := range paths {
		if slices.Contains(paths[:i], path) {
			return nil, fmt.Errorf("%s is given twice: give each file once", rulesName(path))
		}
		if savednode.IsBundle(path) {
			return nil, fmt.Errorf("%s: is a directory or an archive: want a file with rules (--node takes a bundle)", path)
		}
		files[i] = ruleFile{name: rulesName(path), path: path, open: func() (io.ReadCloser, error) { return openInput(stdin, path) }}
	}
	return files, nil
}

// readRules reads the files with rules of a command: all dumps and listings in them, in their order. The family is used
// where the text does not show it. What was assumed in reading goes to stderr, in one block. An error names the file.
func readRules(stderr io.Writer, files []ruleFile, family iptables.Family) ([]*iptables.Dump, error) {
	var dumps []*iptables.Dump
	var notes []string
	for _, f := range files {
		in, err := f.read(cmp.Or(f.family, family))
		if err != nil {
			return nil, err
		}
		for _, d := range in.Dumps {
			d.File, d.Backend = f.name, cmp.Or(d.Backend, f.backend)
			if len(files) > 1 {
				d.NameRules(d.File)
			}
		}
		for _, n := range in.Notes {
			text := n.String()
			if len(files) > 1 {
				text = f.name + ": " + text
			}
			notes = append(notes, text)
		}
		dumps = append(dumps, in.Dumps...)
	}
	writeAssumptions(stderr, notes)
	return dumps, nil
}

// read reads one file. It has at least one dump, and each dump a table.
func (f *ruleFile) read(family iptables.Family) (*pastedrules.Input, error) {
	name := f.name
	in, err := f.open()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	input, err := readInput(name, in, family)
	faults := iptables.Errors(err)
	switch {
	case len(faults) > 1:
		return nil, fmt.Errorf("%s: %w (and %d more)", name, faults[0], len(faults)-1)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, withoutPath(err))
	}
	input.Dumps = slices.DeleteFunc(input.Dumps, func(d *iptables.Dump) bool { return len(d.Tables) == 0 })
	if len(input.Dumps) == 0 && len(input.Notes) > 0 {
		return nil, fmt.Errorf("%s: no rules: %s", name, input.Notes[0])
	}
	if len(input.Dumps) == 0 {
		return nil, fmt.Errorf("%s: no rules: want the output of iptables-save or nft list ruleset", name)
	}
	return input, nil
}

// readInput reads rules of iptables or nftables. Those of nftables are rules of both families.
func readInput(name string, in io.Reader, family iptables.Family) (*pastedrules.Input, error) {
	text := sized{bufio.NewReaderSize(in, 1<<16), in}
	begin, _ := text.Peek(peeked)
	if lacksBeginning(begin) {
		return nil, errors.New("the beginning of the ruleset is missing, with the name of its table: give all of the output of nft list ruleset")
	}
	if !looksLikeRuleset(string(begin)) {
		what := foreign(string(begin), "--rules")
		input, err := pastedrules.Read(text, iptables.Options{Family: family})
		if err != nil && what != "" {
			return nil, errors.New(what)
		}
		return input, err
	}
	ruleset, err := readRuleset(name, text)
	if err != nil {
		return nil, err
	}
	input := &pastedrules.Input{}
	for _, f := range []iptables.Family{iptables.IPv4, iptables.IPv6} {
		d, notes := nftrules.Compile(ruleset, f)
		if d != nil {
			input.Dumps = append(input.Dumps, d)
		}
		for _, n := range notes {
			if !slices.Contains(input.Notes, n) {
				input.Notes = append(input.Notes, n)
			}
		}
	}
	return input, nil
}

// sized is a buffered file whose size can be asked for, so that what reads all of it makes room once.
type sized struct {
	*bufio.Reader
	file io.Reader
}

// Stat describes the file.
func (s sized) Stat() (fs.FileInfo, error) {
	if f, ok := s.file.(fs.File); ok {
		return f.Stat()
	}
	return nil, errors.ErrUnsupported
}

// maxAssumptions keeps the block of assumptions readable.
const maxAssumptions = 20

// writeAssumptions prints what was inferred and ignored in reading.
func writeAssumptions(w io.Writer, notes []string) {
	if len(notes) == 0 {
		return
	}
	var b strings.Builder
	b.WriteString("nfqproxy: read with assumptions:\n")
	for _, n := range notes[:min(len(notes), maxAssumptions)] {
		fmt.Fprintf(&b, "  %s\n", n)
	}
	if more := len(notes) - maxAssumptions; more > 0 {
		fmt.Fprintf(&b, "  and %d more\n", more)
	}
	_, _ = io.WriteString(w, b.String())
}

// hostRulesOf are the dumps of one family, which have to be of one host: one, or those of both back ends and of nftables. What
// nft lists of the rules of iptables is left out where these are given.
func hostRulesOf(dumps []*iptables.Dump, family iptables.Family) ([]*iptables.Dump, error) {
	var of []*iptables.Dump
	for _, d := range dumps {
		if d.Ruleset != nil {
			d = nftrules.WithoutIPTables(d, dumps)
		}
		if d != nil && d.Family == family {
			of = append(of, d)
		}
	}
	if len(of) == 0 {
		return nil, fmt.Errorf("%s: no rules of %s: give the output of %s", filesOf(dumps), family, map[iptables.Family]string{iptables.IPv4: "iptables-save or nft list ruleset", iptables.IPv6: "ip6tables-save or nft list ruleset"}[family])
	}
	for i, d := range of {
		for _, other := range of[:i] {
			if !mayShareHost(other, d) {
				what := family.String()
				if a, b := other.Written, d.Written; other.Backend != d.Backend && !a.IsZero() && !b.IsZero() {
					what += fmt.Sprintf(", written at different times (%s and %s)", a.Format(time.DateTime), b.Format(time.DateTime))
				} else if b := cmp.Or(d.Backend, other.Backend); b != iptables.BackendUnknown {
					what = fmt.Sprintf("%s for %s", b, family)
				}
				return nil, fmt.Errorf("%s and %s are both rules of %s: give the rules of one host at one time, with one file for each back end",
					dumpName(other, of), dumpName(d, of), what)
			}
		}
	}
	return of, nil
}

// sameTime is how far the dumps of one host may be apart: containers have other time zones than their host.
const sameTime = 24 * time.Hour

// mayShareHost reports whether two dumps of one family may be the two back ends of one host. Two of a file that show
// neither are more likely of two hosts.
func mayShareHost(a, b *iptables.Dump) bool {
	switch {
	case a.Host != "" && b.Host != "" && a.Host != b.Host:
		return false
	case a.File == b.File && !a.Written.IsZero() && !b.Written.IsZero() && a.Written.Sub(b.Written).Abs() > sameTime:
		return false
	case a.Backend == b.Backend:
		return a.Backend == iptables.BackendUnknown && a.File != b.File
	}
	return true
}

// familiesOf are the families of the dumps, IPv4 first.
func familiesOf(dumps []*iptables.Dump) []iptables.Family {
	var families []iptables.Family
	for _, d := range dumps {
		if !slices.Contains(families, d.Family) {
			families = append(families, d.Family)
		}
	}
	slices.Sort(families)
	return families
}

// filesOf names the files of the dumps.
func filesOf(dumps []*iptables.Dump) string {
	var names []string
	for _, d := range dumps {
		if d.File != diagnose.DaemonRules && !slices.Contains(names, d.File) {
			names = append(names, d.File)
		}
	}
	return strings.Join(names, " and ")
}

// dumpName names a dump: its file, where in it the dump begins if the file has several, and the host if the text names it.
func dumpName(d *iptables.Dump, all []*iptables.Dump) string {
	for _, other := range all {
		if other == d || other.File != d.File {
			continue
		}
		if d.Title != "" {
			return fmt.Sprintf("%s, line %d (%s)", d.File, d.Tables[0].Line, d.Title)
		}
		return fmt.Sprintf("%s, line %d", d.File, d.Tables[0].Line)
	}
	return d.File
}

// openInput opens a file to read from, or standard input for -. An error names the file.
func openInput(stdin io.Reader, path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(stdin), nil
	}
	return openFile(path)
}

// openFile opens a file to read from. An error names it.
func openFile(name string) (*os.File, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, withoutPath(err))
	}
	if info, err := file.Stat(); err == nil && info.IsDir() {
		_ = file.Close()
		return nil, fmt.Errorf("%s: is a directory: want a file", name)
	}
	return file, nil
}

// rulesName is the file's name in messages.
func rulesName(path string) string {
	if path == "-" {
		return "standard input"
	}
	return path
}

// rulesNames are the names of files in messages.
func rulesNames(paths []string) string {
	names := make([]string, len(paths))
	for i, p := range paths {
		names[i] = rulesName(p)
	}
	return strings.Join(names, ", ")
}

// withoutPath removes the file's name from an error.
func withoutPath(err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// peeked is how much of a text shows what it is.
const peeked = 64 << 10

// looksLikeRuleset reports whether a text that begins so is a ruleset of nftables.
func looksLikeRuleset(begin string) bool {
	if nftables.Looks(begin) {
		return true
	}
	_, ok := pastedrules.UncoverRuleset(begin)
	return ok
}

// readRuleset reads a ruleset of nftables. An error has the line and the column, and not the file.
func readRuleset(name string, in io.Reader) (*nftables.Ruleset, error) {
	ruleset, err := nftables.ReadExcerpt(name, in, pastedrules.UncoverRuleset)
	if fault := (*nftables.Error)(nil); errors.As(err, &fault) {
		if strings.HasPrefix(fault.Problem(), "the end of the file") {
			return nil, fmt.Errorf("line %d: the end of the ruleset is missing (%s): give all of the output of nft list ruleset", fault.Line, fault.Problem())
		}
		return nil, fmt.Errorf("line %d, column %d: %s", fault.Line, fault.Column, fault.Problem())
	}
	return ruleset, err
}

// lacksBeginning reports whether a text begins within a table of nftables, whose name is missing.
func lacksBeginning(begin []byte) bool {
	inside, table := insideRuleset.FindIndex(begin), tableBegins.FindIndex(begin)
	return inside != nil && (table == nil || inside[0] < table[0])
}

var (
	insideRuleset = regexp.MustCompile(`(?m)^\s*((chain|set|map) \S+ \{|type \w+ hook \w+ priority .*;|elements = \{ .*)$`)
	tableBegins   = regexp.MustCompile(`\b(table (ip|ip6|inet|arp|bridge|netdev)|add|create) \S+`)
)
