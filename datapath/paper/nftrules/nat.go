package nftrules

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// errFamily is for what depends on a header of the other family.
var errFamily = errors.New("the other family")

// nat compiles a translation (nft_nat.c, nft_masq.c, nft_redir.c).
func (c *compiler) nat(b *builder, n nftables.NAT) error {
	if n.Family == nftables.FamilyIP && !c.is4() || n.Family == nftables.FamilyIP6 && c.is4() {
		return c.natOfOther(b, n)
	}
	flags := iptables.NATRange{
		Random: slices.Contains(n.Flags, "random"), RandomFully: slices.Contains(n.Flags, "fully-random"), Persistent: slices.Contains(n.Flags, "persistent"),
	}
	if _, ok := n.Address.(nftables.Map); n.Prefix && !ok {
		return c.netmap(b, n)
	}
	t, err := c.translation(b, n, flags)
	if err == nil {
		b.target = t
	}
	return err
}

// natOfOther is a translation of the other family (nft_nat_inet_eval): the rule goes on, if the maps have something for the
// packet.
func (c *compiler) natOfOther(b *builder, n nftables.NAT) error {
	for _, e := range []nftables.Expr{n.Address, n.Port} {
		m, ok := e.(nftables.Map)
		if !ok {
			continue
		}
		t, err := c.lookup(b, m)
		if err != nil {
			return err
		}
		b.add(&membership{table: t, of: nftables.Match{Op: "==", Left: m.Key, Right: m.Data}})
	}
	b.add(inert(nftables.Text(n)))
	return nil
}

// lookup is the map of an expression.
func (c *compiler) lookup(b *builder, m nftables.Map) (*table, error) {
	fields, err := c.fields(m.Key)
	if err != nil {
		return nil, err
	}
	if neverOf(fields) {
		return nil, errFamily
	}
	b.needs(needsOf(fields))
	return c.table(m.Data, fields)
}

func (c *compiler) addressField() *field {
	f := &field{Value: rules.Const(make([]byte, 16)), kind: kindAddr6, expr: nftables.Literal{Text: "an address"}}
	if c.is4() {
		f.Value, f.kind = rules.Const(make([]byte, 4)), kindAddr4
	}
	return f
}

func portField() *field {
	return &field{Value: rules.Const(make([]byte, 2)), kind: kindPort, expr: nftables.Literal{Text: "a port"}}
}

// targetOf is the target that translates to a range.
func targetOf(kind string, r iptables.NATRange) iptables.Target {
	switch kind {
	case "snat":
		return iptables.SNAT{To: r}
	case "dnat":
		return iptables.DNAT{To: r}
	case "masquerade":
		return iptables.Masquerade{To: r}
	}
	return iptables.Redirect{To: r}
}

// translation is a target that translates to what maps have for the packet; it is an [iptables.Lookup].
type translation struct {
	of      nftables.NAT
	c       *compiler
	address *table            // of addresses, or of both; nil: there is none
	port    *table            // of ports; nil: there is none
	fixed   iptables.NATRange // what does not depend on the packet
}

// translation is the target that translates to an address and a port, either of which may be nil.
func (c *compiler) translation(b *builder, n nftables.NAT, flags iptables.NATRange) (iptables.Target, error) {
	t := &translation{of: n, c: c, fixed: flags}
	var err error
	switch e := n.Address.(type) {
	case nil:
	case nftables.Map:
		if t.address, err = c.lookup(b, e); err != nil {
			return nil, err
		}
		for _, e := range t.address.elements {
			if _, ok := prefixOf(c.addressField(), e.Value); n.Prefix && !ok {
				return nil, fmt.Errorf("the map has a value that is no network")
			}
			if err := c.setTarget(&iptables.NATRange{}, e.Value); err != nil {
				return nil, err
			}
		}
	default:
		if other(e, c.is4()) {
			return nil, errFamily
		}
		if err := c.setTarget(&t.fixed, e); err != nil {
			return nil, err
		}
	}
	switch e := n.Port.(type) {
	case nil:
	case nftables.Map:
		if t.port, err = c.lookup(b, e); err != nil {
			return nil, err
		}
		for i := range t.port.elements {
			if err := setPorts(&iptables.NATRange{}, t.port.elements[i].Value); err != nil {
				return nil, err
			}
		}
	default:
		if err := setPorts(&t.fixed, e); err != nil {
			return nil, err
		}
	}
	if t.address == nil && t.port == nil {
		return targetOf(n.Kind, t.fixed), nil
	}
	return iptables.NativeTarget{Lookup: t}, nil
}

// other reports whether an address is of the other family.
func other(e nftables.Expr, is4 bool) bool {
	switch e := e.(type) {
	case nftables.Range:
		return other(e.Low, is4)
	case nftables.Prefix:
		return other(e.Address, is4)
	case nftables.Literal:
		a, err := netip.ParseAddr(e.Text)
		return err == nil && a.Is4() != is4
	}
	return false
}

// setTarget sets the addresses, and those of a concatenation with ports.
func (c *compiler) setTarget(to *iptables.NATRange, e nftables.Expr) error {
	if parts, ok := e.(nftables.Concat); ok {
		if len(parts) != 2 {
			return fmt.Errorf("%s is not an address and a port", nftables.Text(e))
		}
		if err := setPorts(to, parts[1]); err != nil {
			return err
		}
		e = parts[0]
	}
	if e == nil {
		return fmt.Errorf("an element of the map has no value")
	}
	r, err := c.addressField().rangeOf(e)
	if err != nil {
		return err
	}
	to.First, _ = netip.AddrFromSlice(r.First)
	to.Last, _ = netip.AddrFromSlice(r.Last)
	return nil
}

func setPorts(to *iptables.NATRange, e nftables.Expr) error {
	if e == nil {
		return fmt.Errorf("an element of the map has no value")
	}
	r, err := portField().rangeOf(e)
	if err != nil {
		return err
	}
	to.FirstPort, to.LastPort = uint16(numberOf(r.First)), uint16(numberOf(r.Last))
	to.PortZero = to.LastPort == 0
	return nil
}

func (t *translation) Text() string { return nftables.Text(t.of) }

// Translates reports whether it is one of the destination.
func (t *translation) Translates() bool { return t.of.Kind == "dnat" || t.of.Kind == "redirect" }
func (t *translation) Chains() []string { return nil }

// Find returns the target with the range that the maps have for the packet.
func (t *translation) Find(c *iptables.Context) (iptables.Target, fmt.Stringer, rules.Truth) {
	to, network := t.fixed, netip.Prefix{}
	var by fmt.Stringer
	for _, m := range []struct {
		table *table
		set   func(e nftables.Expr) error
	}{
		{t.address, func(e nftables.Expr) error {
			network, _ = prefixOf(t.c.addressField(), e)
			return t.c.setTarget(&to, e)
		}},
		{t.port, func(e nftables.Expr) error { return setPorts(&to, e) }},
	} {
		if m.table == nil {
			continue
		}
		e, truth := m.table.find(c)
		if truth != rules.True {
			return nil, nil, truth
		}
		if truth = m.table.runs(c, e); truth != rules.True {
			return nil, nil, truth
		}
		if m.set(e.Value) != nil {
			return nil, nil, rules.Unknown
		}
		if m.table.declared != nil {
			by = found{e, m.table}
		}
	}
	if t.of.Prefix {
		return iptables.Netmap{To: network}, by, rules.True
	}
	return targetOf(t.of.Kind, to), by, rules.True
}

func (t *translation) WhyNot(c *iptables.Context) string {
	m := t.address
	if m == nil {
		m = t.port
	}
	return fmt.Sprintf("the map has nothing for %s", m.described(c))
}

// netmap translates networks to networks of the same size (NF_NAT_RANGE_NETMAP).
func (c *compiler) netmap(b *builder, n nftables.NAT) error {
	p, ok := prefixOf(c.addressField(), n.Address)
	if !ok || n.Port != nil {
		return fmt.Errorf("%s is not supported", nftables.Text(n))
	}
	b.target = iptables.Netmap{To: p}
	return nil
}
