package pastedrules

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/pasted"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// readPasted reads rules out of any text; nil: there are none.
func readPasted(text string, options iptables.Options) *Input {
	all := slices.Collect(strings.Lines(text))
	var restored []int // numbers of lines
	for i, line := range all {
		if all[i] = pasted.Restore(line); all[i] != strings.TrimRight(line, "\r\n") {
			restored = append(restored, i+1)
		}
	}
	lines, others := undecorateAll(all)
	if len(lines) == 0 {
		return nil
	}
	g := &gatherer{}
	statements := make([]statement, len(lines))
	width := cutWidth(all)
	for i, l := range lines {
		statements[i] = parseStatement(l)
		if width > 0 && utf8.RuneCountInString(all[l.number-1]) == width {
			statements[i].cutOff()
		}
		g.add(&statements[i])
	}
	g.endLoose()
	g.suspectCuts()
	a := &assembler{options: options}
	for _, b := range g.blocks {
		a.place(b)
	}
	a.dropCopies()
	for _, d := range a.dumps {
		a.finish(d, g)
	}
	a.in.Dumps = slices.DeleteFunc(a.in.Dumps, func(d *iptables.Dump) bool { return len(d.Tables) == 0 })
	if len(a.in.Dumps) == 0 {
		return nil
	}
	a.noteWarnings(g)
	if len(g.gaps) > 0 {
		a.note(g.gaps[0], "lines are left out here: the chains of this table may have more rules")
	}
	if width > 0 {
		a.in.Notes = append(a.in.Notes, cutNote(width))
	}
	if len(restored) > 0 {
		a.note(restored[0], "of %s the spaces, quotes, dashes or colours of an editor or a terminal are read as what they stand for", quantity.Count(len(restored), "line"))
	}
	a.noteLines(lines, all, others)
	slices.SortStableFunc(a.in.Notes, func(x, y iptables.Note) int { return cmp.Compare(x.Line, y.Line) })
	return &a.in
}

// mostNamed is how many chains a note names.
const mostNamed = 8

// assembler puts blocks together to dumps.
type assembler struct {
	options iptables.Options
	in      Input
	dumps   []*assembly
}

// assembly is a dump while its tables are collected.
type assembly struct {
	origin
	drafts []*draft // one for each table
}

func (a *assembler) note(line int, format string, args ...any) {
	a.in.Notes = append(a.in.Notes, iptables.Note{Line: line, Text: fmt.Sprintf(format, args...)})
}

// place adds a block to the last dump that it may be of, or begins another.
func (a *assembler) place(b *block) {
	if b.Family == iptables.FamilyUnknown {
		b.Family = b.shownFamily()
	}
	if iptables.BuiltinChains(b.table) == nil {
		a.note(b.number, "there is no table %.40q: its lines are not read", b.table)
		return
	}
	d := newDraft(b)
	if b.form == formLoose {
		are := "are"
		if len(b.lines) < 2 {
			are = "is"
		}
		a.note(b.number, "%s %s in no table: read as table %s, %s", b.span(), are, b.table, whyTable(b.lines, b.table))
	}
	for _, of := range slices.Backward(a.dumps) {
		if of.agrees(b.origin) {
			if of.accept(d) {
				of.origin = of.and(b.origin)
				return
			}
			break
		}
	}
	a.dumps = append(a.dumps, &assembly{origin: b.origin, drafts: []*draft{d}})
}

// accept adds a table, or more chains to one that was printed chain by chain. false: it is of another dump.
func (as *assembly) accept(d *draft) bool {
	i := slices.IndexFunc(as.drafts, func(old *draft) bool { return old.table == d.table })
	if i < 0 {
		as.drafts = append(as.drafts, d)
		return true
	}
	old := as.drafts[i]
	if !old.sameTitle(d.origin) {
		return false
	}
	if old.form == formSaved && d.form == formSaved || old.block.complete() && d.block.complete() {
		return false
	}
	texts, more := old.textsByChain(), d.textsByChain()
	for chain, rules := range more {
		if known, ok := texts[chain]; ok && !slices.Equal(known, rules) && !old.completes(d, chain, known, rules) {
			return false
		}
	}
	old.notes = append(old.notes, d.notes...)
	old.undeclared = append(old.undeclared, d.undeclared...)
	old.rules = slices.DeleteFunc(old.rules, func(r *iptables.Rule) bool { return isPart(texts[r.Chain], more[r.Chain]) })
	for _, r := range d.rules {
		if isPart(texts[r.Chain], more[r.Chain]) || !slices.Contains(texts[r.Chain], ruleText(r)) && !isPart(more[r.Chain], texts[r.Chain]) {
			old.rules = append(old.rules, r)
		}
	}
	if d.grep == "" {
		old.grep = ""
	}
	old.greps = append(old.greps, d.grep)
	for _, c := range d.chains {
		if old.names[c.Name] == nil {
			old.names[c.Name] = c
			old.chains = append(old.chains, c)
		}
		old.known[c.Name] = old.known[c.Name] || d.known[c.Name]
	}
	old.lines = append(old.lines, d.lines...)
	return true
}

// completes reports whether two outputs show parts of one chain: somebody printed lines with one word, and then those with another. The
// same command twice shows a change.
func (d *draft) completes(more *draft, chain string, known, rules []string) bool {
	if d.grep == "" && more.grep == "" || more.grep == d.block.grep || slices.Contains(d.greps, more.grep) {
		return false
	}
	return isPart(known, rules) || isPart(rules, known) || slices.Contains(dispatchers, chain)
}

// dispatchers are chains of which the order of the rules counts for nothing: each has a destination of its own.
var dispatchers = []string{kubechains.Services, kubechains.NodePorts, kubechains.ExternalServices}

// isPart reports whether the texts are among those of a longer list, in their order.
func isPart(texts, of []string) bool {
	if len(texts) >= len(of) {
		return false
	}
	for _, text := range of {
		if len(texts) > 0 && texts[0] == text {
			texts = texts[1:]
		}
	}
	return len(texts) == 0
}

// countersOption is what iptables -S -v prints within a rule.
var countersOption = regexp.MustCompile(` -c \d+ \d+`)

func ruleText(r *iptables.Rule) string { return countersOption.ReplaceAllString(r.String(), "") }

// textsByChain are the rules of each chain that has any, as texts without counters.
func (d *draft) textsByChain() map[string][]string {
	texts := make(map[string][]string)
	for _, r := range d.rules {
		texts[r.Chain] = append(texts[r.Chain], ruleText(r))
	}
	return texts
}

// dropCopies leaves out dumps that are there already: a text that was pasted twice.
func (a *assembler) dropCopies() {
	for i := len(a.dumps) - 1; i > 0; i-- {
		for _, earlier := range a.dumps[:i] {
			if a.dumps[i].agrees(earlier.origin) && a.dumps[i].copies(earlier) {
				a.note(a.dumps[i].drafts[0].number, "the same rules as those from line %d are not read again", earlier.drafts[0].number)
				a.dumps = slices.Delete(a.dumps, i, i+1)
				break
			}
		}
	}
}

func (as *assembly) copies(of *assembly) bool {
	return slices.EqualFunc(as.drafts, of.drafts, func(x, y *draft) bool {
		return x.table == y.table && slices.EqualFunc(x.chains, y.chains, func(c, d *iptables.Chain) bool { return c.Name == d.Name && c.Policy == d.Policy }) &&
			maps.EqualFunc(x.textsByChain(), y.textsByChain(), slices.Equal[[]string])
	})
}

// finish makes the dump: rules with matches and targets, and a listing if rules may be missing.
func (a *assembler) finish(as *assembly, g *gatherer) {
	d := &iptables.Dump{Family: cmp.Or(as.Family, a.options.Family, iptables.IPv4), Backend: as.Backend, Written: as.Written, Host: as.host, Title: cmp.Or(as.title, as.host)}
	a.in.Dumps = append(a.in.Dumps, d)
	listing := &iptables.Listing{}
	partial, whole := false, len(g.gaps) == 0
	var lost []iptables.Note
	for _, of := range as.drafts {
		a.in.Notes = append(a.in.Notes, of.notes...)
		d.Tables = append(d.Tables, &iptables.Table{Name: of.table, Line: of.number, Chains: of.chains, Rules: of.rules})
		whole = whole && of.form == formSaved && !of.alone && of.block.complete() && (of.committed || of.ended)
		listing.Cut = listing.Cut || of.form == formSaved && !of.committed && !of.ended
		partial = a.typeDraft(d, of, &lost) || partial
	}
	d.Notes = iptables.MergeNotes(lost)
	a.in.Notes = append(a.in.Notes, d.Notes...)
	hidden := g.hiddenFrom(as.origin, d)
	for _, s := range hidden {
		listing.Hidden = append(listing.Hidden, s.table)
		d.Backend = cmp.Or(d.Backend, iptables.BackendNFT)
		listing.Incomplete = append(listing.Incomplete, iptables.Note{Line: s.number, Text: fmt.Sprintf("table %s is incompatible with iptables, which does not print it: its rules are not known; see \"nft list table %s %s\"",
			s.table, nftFamily(d.Family), s.table)})
	}
	if whole && !partial && len(hidden) == 0 {
		return
	}
	if d.Listing = listing; whole {
		listing.Empty = slices.DeleteFunc(iptables.TableNames(), func(name string) bool { return d.Table(name) != nil || slices.Contains(listing.Hidden, name) })
	}
	for _, of := range as.drafts {
		for _, c := range of.chains {
			c.Open = !of.known[c.Name]
		}
	}
	d.NoteUnlisted()
}

// hiddenFrom are the tables of a dump that iptables could not print.
func (g *gatherer) hiddenFrom(o origin, d *iptables.Dump) []*statement {
	var hidden []*statement
	for i := range g.hidden {
		if g.origins[i].agrees(o) && d.Table(g.hidden[i].table) == nil {
			hidden = append(hidden, &g.hidden[i])
		}
	}
	return hidden
}

func nftFamily(f iptables.Family) string {
	if f == iptables.IPv6 {
		return "ip6"
	}
	return "ip"
}

// typeDraft sets the matches and targets of a table's rules. It reports whether chains are missing.
func (a *assembler) typeDraft(d *iptables.Dump, of *draft, lost *[]iptables.Note) (partial bool) {
	if of.form == formSaved && len(of.undeclared) > 0 {
		partial = true
		a.note(of.names[of.undeclared[0]].Line, "chains of table %s that are not declared are read as if they were: %s", of.table, quantity.Some(of.undeclared, mostNamed))
	}
	declared := make(map[string]bool)
	for _, c := range of.chains {
		declared[c.Name] = true
	}
	faults := make(map[int]*iptables.Error)
	for _, s := range of.lines {
		if s.fault != nil {
			faults[s.number] = s.fault
		}
	}
	var missing []string
	for _, r := range of.rules {
		target := jumpWord(&statement{rule: r})
		if target != "" && !declared[target] && iptables.IsChainName(target) {
			declared[target] = true
			missing = append(missing, target)
		}
		texts, e := mend(r, d.Family, of.table, declared)
		for _, text := range texts {
			*lost = append(*lost, iptables.Note{Line: r.Line, Text: text})
		}
		if t := r.JumpsTo(); isMaskedChain(t) {
			r.Target = iptables.UnknownTarget{Target: t}
			e = cmp.Or(e, &iptables.Error{Problem: fmt.Sprintf("the name of chain %.40q is masked, and may stand for several", t)})
		}
		if fault := faults[r.Line]; fault != nil {
			e = fault
			r.Matches = append(r.Matches, iptables.UnknownMatch{Match: iptables.Unreadable})
		}
		if e != nil {
			if r.Target == nil { // it may have had one
				r.Target = iptables.UnknownTarget{Target: iptables.Unreadable}
			}
		}
		if e != nil && e != errCutOff {
			a.note(r.Line, "%s: %s", e.Problem, effectOf(r, of.table))
		}
	}
	return partial || len(missing) > 0
}
