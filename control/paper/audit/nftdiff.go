package audit

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/listdiff"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftrules"
)

// part is a chain, a set or map, an object or a flowtable of a table, as far as it is compared. Those of one name and kind are
// compared with each other.
type part struct {
	name        string
	hooked      bool // a chain with a hook
	declaration []*partLine
	// ordered are rules, others elements, whose order has no meaning.
	ordered, others []*partLine
}

// partLine is a line of a part: a rule, an element, or one of the declaration.
type partLine struct {
	text    string
	line    int
	rule    *nftables.Rule    // nil: none
	element *nftables.Element // nil: none
}

// stateless leaves out what the kernel counts.
var stateless = nftables.Format{Stateless: true, Terse: true, Canonical: true}

// partsOf are the parts of a table in their order; of none: none.
func partsOf(t *nftables.Table) []*part {
	if t == nil {
		return nil
	}
	var parts []*part
	add := func(name string, line int, only nftables.Table) *part {
		only.Family, only.Name = t.Family, t.Name
		p := &part{name: name, declaration: declarationOf(&only, line)}
		parts = append(parts, p)
		return p
	}
	if len(t.Flags) > 0 { // dormant, for one
		parts = append(parts, &part{name: "flags", others: []*partLine{{text: "flags " + strings.Join(t.Flags, ", "), line: t.Line}}})
	}
	for _, o := range t.Objects {
		add(o.Kind+" "+o.Name, o.Line, nftables.Table{Objects: []*nftables.Object{o}})
	}
	for _, s := range t.Sets {
		kind := "set "
		if s.Map {
			kind = "map "
		}
		empty := *s
		empty.Elements, empty.Count = nil, 0
		empty.Flags = slices.DeleteFunc(slices.Clone(s.Flags), func(f string) bool { return f == "dynamic" }) // which the JSON of nft 1.0 lacks
		p := add(kind+s.Name, s.Line, nftables.Table{Sets: []*nftables.Set{&empty}})
		if len(empty.Flags) < len(s.Flags) { // packets add the elements
			continue
		}
		for i := range s.Elements {
			e := s.Elements[i]
			e.Timeout, e.Expires = 0, 0
			p.others = append(p.others, &partLine{text: oneLine(e.Format(stateless)), line: cmp.Or(e.Line, s.Line), element: &s.Elements[i]})
		}
	}
	for _, f := range t.Flowtables {
		add("flowtable "+f.Name, f.Line, nftables.Table{Flowtables: []*nftables.Flowtable{f}})
	}
	for _, c := range t.Chains {
		empty := *c
		empty.Rules, empty.Comment = nil, "" // the JSON of nft 1.0 lacks comments of chains
		if c.Base != nil {
			base := *c.Base
			base.PriorityText = "" // "filter" is 0
			empty.Base = &base
		}
		p := add(c.Name, c.Line, nftables.Table{Chains: []*nftables.Chain{&empty}})
		p.hooked = c.Base != nil
		for _, r := range c.Rules {
			p.ordered = append(p.ordered, &partLine{text: oneLine(r.Format(stateless)), line: r.Line, rule: r})
		}
	}
	return parts
}

// declarationOf are the lines between the braces of the only part of a table.
func declarationOf(only *nftables.Table, line int) (lines []*partLine) {
	var b strings.Builder
	_, _ = (&nftables.Ruleset{Tables: []*nftables.Table{only}}).Print(&b, stateless)
	all := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	for _, text := range all[min(2, len(all)):max(len(all)-2, min(2, len(all)))] {
		lines = append(lines, &partLine{text: strings.TrimSpace(text), line: line})
	}
	return lines
}

// oneLine joins the lines of a rule with a chain in it.
func oneLine(text string) string {
	if !strings.Contains(text, "\n") {
		return text
	}
	return strings.Join(strings.Fields(text), " ")
}

// tableOf finds the table of a family and name, which may be nil.
func tableOf(r *nftables.Ruleset, family nftables.Family, name string) *nftables.Table {
	for _, t := range r.Tables {
		if t.Family == family && t.Name == name {
			return t
		}
	}
	return nil
}

// diffNFTables compares two tables of one name, of which one may be nil. explained reports whether a line need not be told, and a
// part as a whole, if it is added or removed.
func diffNFTables(before, after *nftables.Table, explained func(*part, *partLine) bool) TableChange {
	t := cmp.Or(after, before)
	d := TableChange{Name: string(t.Family) + " " + t.Name, Change: changeOf(before == nil, after == nil), Chains: []ChainChange{}}
	was := make(map[string]*part)
	for _, p := range partsOf(before) {
		was[p.name] = p
	}
	for _, p := range partsOf(after) {
		d.addPart(was[p.name], p, explained)
		delete(was, p.name)
	}
	for _, p := range partsOf(before) {
		if was[p.name] != nil {
			d.addPart(p, nil, explained)
		}
	}
	return d
}

// addPart adds what changed in a part, of which one may be nil.
func (d *TableChange) addPart(before, after *part, explained func(*part, *partLine) bool) {
	p := cmp.Or(after, before)
	c := ChainChange{Name: p.name, Change: changeOf(before == nil, after == nil)}
	none := &part{}
	before, after = cmp.Or(before, none), cmp.Or(after, none)
	tell := func(change Change, was, is *partLine) {
		l := cmp.Or(is, was)
		if explained(p, l) {
			return
		}
		r := RuleChange{Change: change, Rule: l.text}
		if was != nil {
			r.LineBefore = was.line
		}
		if is != nil {
			r.LineAfter = is.line
		}
		c.Rules = append(c.Rules, r)
	}
	compare := func(before, after []*partLine, ordered bool) {
		pairs := listdiff.Compare(before, after, func(l *partLine) string { return l.text })
		if len(pairs) > 0 { // perhaps for names and numbers
			pairs = listdiff.Compare(before, after, func(l *partLine) string { return nftrules.Numbers(l.text) })
		}
		for _, l := range pairs {
			switch {
			case l.Before != nil && l.After != nil:
				if ordered {
					tell(Moved, l.Before, l.After)
				}
			default:
				tell(changeOf(l.Before == nil, l.After == nil), l.Before, l.After)
			}
		}
	}
	if c.Change == Changed || p.hooked {
		compare(before.declaration, after.declaration, true)
	}
	compare(before.ordered, after.ordered, true)
	compare(before.others, after.others, false)
	if len(c.Rules) > 0 || c.Change != Changed && !explained(p, nil) {
		d.Chains = append(d.Chains, c)
	}
}
