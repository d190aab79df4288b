// Package nftrules turns rulesets of nftables into the rules of package iptables, which package netfilter walks:
// conditions that both have become the same matches, and all others an [iptables.Native], which the model of package
// rules evaluates.
//
// It is a front end: what a ruleset says is package nftables', and what becomes of a packet package netfilter's.
package nftrules

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
)

// Compile makes the rules of a ruleset that packets of a family meet; nil: there are none. Notes are what of the ruleset is
// left out.
func Compile(rs *nftables.Ruleset, family iptables.Family) (d *iptables.Dump, notes []iptables.Note) {
	d = &iptables.Dump{Family: family, Backend: iptables.BackendNative, Ruleset: rs}
	for _, t := range rs.Tables {
		note := func(format string, args ...any) {
			notes = append(notes, iptables.Note{Text: fmt.Sprintf(format, args...), Line: t.Line})
		}
		switch t.Family {
		case nftables.FamilyIP, nftables.FamilyIP6, nftables.FamilyINet:
			if slices.Contains(t.Flags, "dormant") {
				note("table %s is dormant: its rules have no effect", t.Name)
				continue
			}
			if !applies(t.Family, family) {
				continue
			}
			d.Tables = append(d.Tables, tableOf(t, family))
			for _, f := range t.Flowtables {
				note("flowtable %s: packets of connections in it pass no rules, which is not simulated", f.Name)
			}
		default:
			if len(t.Chains) > 0 {
				note("table %s %s is not simulated: its rules are for packets below the network layer", t.Family, t.Name)
			}
		}
	}
	if len(d.Tables) == 0 {
		return nil, notes
	}
	return d, notes
}

// applies reports whether packets of a family meet the tables of one.
func applies(table nftables.Family, family iptables.Family) bool {
	switch table {
	case nftables.FamilyIP:
		return family == iptables.IPv4
	case nftables.FamilyIP6:
		return family == iptables.IPv6
	}
	return true
}

// compiler compiles one table.
type compiler struct {
	family  iptables.Family
	sets    map[string]*nftables.Set
	objects map[string]*nftables.Object // by kind and name
	dynamic map[string]bool             // the sets that rules change
	tables  map[tableKey]*table
	out     *iptables.Table
	terse   bool // kube-proxy's sets have elements, and nft -t did not print them
	json    bool // the ruleset is JSON, all of which nft prints in one line
	blocks  int  // chains without a name
}

func (c *compiler) is4() bool { return c.family == iptables.IPv4 }

func tableOf(t *nftables.Table, family iptables.Family) *iptables.Table {
	c := &compiler{
		family: family, sets: make(map[string]*nftables.Set), objects: make(map[string]*nftables.Object),
		dynamic: make(map[string]bool), tables: make(map[tableKey]*table),
		out: &iptables.Table{Name: string(t.Family) + " " + t.Name, Line: t.Line},
	}
	elements := 0
	for _, s := range t.Sets {
		c.sets[s.Name] = s
		elements += len(s.Elements)
	}
	c.terse = t.Name == nftproxy.Table && elements == 0 && slices.ContainsFunc(t.Chains, func(ch *nftables.Chain) bool {
		_, ok := nftproxy.ParseName(ch.Name)
		return ok && len(ch.Rules) > 0
	})
	for _, o := range t.Objects {
		c.objects[o.Kind+" "+o.Name] = o
	}
	rules := 0
	for _, ch := range t.Chains {
		rules += len(ch.Rules)
		for _, r := range ch.Rules {
			c.json = c.json || r.Text == ""
			c.findDynamic(r)
		}
	}
	c.out.Chains, c.out.Rules = make([]*iptables.Chain, 0, len(t.Chains)), make([]*iptables.Rule, 0, rules)
	for _, ch := range t.Chains {
		c.chain(ch)
	}
	return c.out
}

// findDynamic finds the sets that a rule changes.
func (c *compiler) findDynamic(r *nftables.Rule) {
	for _, s := range r.Statements {
		switch s := s.(type) {
		case nftables.SetStatement:
			c.dynamic[s.Set] = true
		case nftables.Meter:
			c.dynamic[s.Name] = true
			if c.sets[s.Name] == nil {
				c.sets[s.Name] = &nftables.Set{Name: s.Name, Size: s.Size, Meter: true}
			}
		case nftables.Verdict:
			for _, inner := range s.Rules {
				c.findDynamic(inner)
			}
		}
	}
}

func (c *compiler) chain(ch *nftables.Chain) {
	out := &iptables.Chain{Name: ch.Name, Line: ch.Line}
	if c.json {
		out.Line = 0
	}
	if b := ch.Base; b != nil && isHook(b.Hook) {
		out.Base = &iptables.Base{Type: b.Type, Hook: b.Hook, Priority: b.Priority}
		if out.Policy = iptables.PolicyAccept; b.Policy == "drop" {
			out.Policy = iptables.PolicyDrop
		}
	}
	c.out.Chains = append(c.out.Chains, out)
	c.rules(ch.Name, ch.Rules)
}

// isHook reports whether the machine walks a hook. Those of devices are below the network layer.
func isHook(hook string) bool {
	return slices.Contains([]string{"prerouting", "input", "forward", "output", "postrouting"}, hook)
}

func (c *compiler) rules(chain string, list []*nftables.Rule) {
	for _, r := range list {
		c.out.Rules = append(c.out.Rules, c.rule(chain, r))
	}
}

// anonymous adds a chain of a rule that has no name.
func (c *compiler) anonymous(list []*nftables.Rule) string {
	c.blocks++
	name := fmt.Sprintf("{%d}", c.blocks)
	c.out.Chains = append(c.out.Chains, &iptables.Chain{Name: name})
	c.rules(name, list)
	return name
}

// builder collects what a rule becomes.
type builder struct {
	matches []iptables.Match
	target  iptables.Target
	// mark is the target that is the same as the statement at markAt; nil: there is none.
	mark   iptables.Target
	markAt int
	// frameType: a condition reads the raw type of the Ethernet frame.
	frameType bool
}

func (b *builder) add(n iptables.Native) {
	b.matches = append(b.matches, iptables.NativeMatch{Native: n})
}

// needs adds the condition on the protocol that nft leaves out where a field implies it.
func (b *builder) needs(protocol uint8) {
	m := iptables.Protocol{Number: protocol}
	if protocol != 0 && !slices.Contains(b.matches, iptables.Match(m)) {
		b.matches = append(b.matches, m)
	}
}

// needsFirst adds the condition on the protocol of a reject statement: nft puts it in front of the whole rule
// (reject_payload_gen_dependency, src/evaluate.c).
func (b *builder) needsFirst(protocol uint8) {
	m := iptables.Match(iptables.Protocol{Number: protocol})
	if !slices.Contains(b.matches, m) {
		b.matches = slices.Insert(b.matches, 0, m)
	}
}

// neverFirst does the same with the condition on the family, if the rule has none.
func (b *builder) neverFirst(words, why string) {
	is := func(m iptables.Match) bool {
		n, _ := m.(iptables.NativeMatch)
		f, ok := n.Native.(fixed)
		return ok && f.result == iptables.False
	}
	if !slices.ContainsFunc(b.matches, is) {
		b.matches = slices.Insert(b.matches, 0, iptables.Match(iptables.NativeMatch{Native: never(words, why)}))
	}
}

func (c *compiler) rule(chain string, r *nftables.Rule) *iptables.Rule {
	b := new(builder)
	if r.Comment != "" {
		b.matches = append(b.matches, iptables.Comment{Text: r.Comment})
	}
	var counters *iptables.Counters
	for _, s := range r.Statements {
		switch s := s.(type) {
		case nftables.Counter:
			if s.Given {
				counters = &iptables.Counters{Packets: s.Packets, Bytes: s.Bytes}
			}
			continue
		case nftables.Log, nftables.Last:
			continue // no rule sees their effect
		}
		if b.target != nil {
			b.target = nil
			b.add(unsupported(nftables.Text(s), "a statement behind a verdict or a translation is not supported"))
			break
		}
		c.statement(b, s)
	}
	if b.mark != nil && b.target == nil && b.markAt == len(b.matches)-1 {
		b.matches, b.target = b.matches[:b.markAt], b.mark
	}
	native := r.Text
	if native == "" {
		native = r.String()
	}
	line := r.Line
	if c.json {
		line = 0
	}
	return &iptables.Rule{
		Chain: chain, Line: line, Handle: r.Handle, Counters: counters, Matches: b.matches, Target: b.target, Native: true, Text: strings.TrimSpace(native),
	}
}

// statement compiles one statement.
func (c *compiler) statement(b *builder, s nftables.Statement) {
	switch err := c.compile(b, s); {
	case errors.Is(err, errFamily):
		b.add(never(nftables.Text(s), c.otherFamily()))
	case err != nil:
		b.add(unsupported(nftables.Text(s), err.Error()))
	}
}

// otherFamily is why no packet has something.
func (c *compiler) otherFamily() string { return fmt.Sprintf("it is a packet of %s", c.family) }

// compile adds what a statement becomes.
func (c *compiler) compile(b *builder, s nftables.Statement) error {
	words := func() string { return nftables.Text(s) }
	switch s := s.(type) {
	case nftables.Match:
		return c.match(b, s)
	case nftables.Verdict:
		t, err := c.verdict(s)
		b.target = t
		return err
	case nftables.VerdictMap:
		return c.verdictMap(b, s)
	case nftables.Mangle:
		return c.mangle(b, s)
	case nftables.NAT:
		return c.nat(b, s)
	case nftables.Reject:
		return c.reject(b, s)
	case nftables.Limit, nftables.Quota, nftables.ConnLimit:
		place := new(int)
		b.add(newStateful(s, words(), place))
	case nftables.ObjectRef:
		return c.object(b, s)
	case nftables.SetStatement:
		return c.setStatement(b, s, s.Op, s.Set, s.Element)
	case nftables.Meter:
		return c.setStatement(b, s, "update", s.Name, s.Element)
	case nftables.Notrack:
		says := func(*iptables.Context) string { return "connection tracking will ignore it" }
		b.add(&effect{words: words(), facts: iptables.FactShared, says: says, do: func(ctx *iptables.Context) iptables.Truth {
			ctx.Host.Untrack()
			return iptables.True
		}})
	case nftables.Queue:
		b.target = iptables.NFQueue{Bypass: slices.Contains(s.Flags, "bypass")}
	case nftables.TProxy:
		return c.tproxy(b, s)
	case nftables.Dup:
		copied := "a copy is sent to " + nftables.Text(s.Address)
		if s.Device != nil {
			copied += " on " + nftables.Text(s.Device)
		}
		b.add(&effect{words: words(), says: func(*iptables.Context) string { return copied }})
	case nftables.FlowAdd:
		b.add(&effect{words: words(), says: func(*iptables.Context) string { return "its connection enters the flowtable " + s.Flowtable }})
	case nftables.Reset:
		return c.strip(b, s)
	case nftables.Synproxy:
		b.needs(protoTCP)
		b.target = iptables.NativeTarget{Lookup: synproxy(words())}
	case nftables.XT:
		if s.Comment == "" { // a module of iptables, as nft prints those that it cannot translate
			return fmt.Errorf("nft does not print what the module %s of iptables does: give the output of iptables-save too", s.Name)
		}
		b.matches = append(b.matches, iptables.Comment{Text: s.Comment})
	default:
		return fmt.Errorf("%s is not supported", words())
	}
	return nil
}

// tproxy gives the packet to a transparent socket (nft_tproxy.c); without one the rule ends.
func (c *compiler) tproxy(b *builder, s nftables.TProxy) error {
	if s.Family == nftables.FamilyIP && !c.is4() || s.Family == nftables.FamilyIP6 && c.is4() {
		return errFamily
	}
	var to iptables.NATRange
	if s.Address != nil {
		if err := c.setTarget(&to, s.Address); err != nil {
			return err
		}
	}
	if s.Port != nil {
		if err := setPorts(&to, s.Port); err != nil {
			return err
		}
	}
	none := func(*iptables.Context) string { return "no transparent socket listens there" }
	b.add(&effect{words: nftables.Text(s), facts: iptables.FactShared, why: none, do: func(ctx *iptables.Context) iptables.Truth {
		if ctx.Host.Assign(to.First, to.FirstPort) {
			return iptables.True
		}
		return iptables.False
	}})
	return nil
}
