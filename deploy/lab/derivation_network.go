package lab

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

var families = []decision.Family{decision.IPv4, decision.IPv6}

// networkBits are the sizes of the networks that are guessed.
func networkBits(f decision.Family) int {
	if f == decision.IPv4 {
		return 24
	}
	return 64
}

// around is the network that an address is taken to be in.
func around(a netip.Addr) netip.Prefix {
	return netip.PrefixFrom(a, networkBits(decision.FamilyOf(a))).Masked()
}

// siblings are networks of that size, the first of which has the address: those that
// differ from it in the last byte of the network's part.
func siblings(first netip.Addr) []netip.Prefix {
	bits := networkBits(decision.FamilyOf(first))
	all := make([]netip.Prefix, 256)
	for i := range all {
		b := around(first).Addr().AsSlice()
		b[bits/8-1] += byte(i)
		a, _ := netip.AddrFromSlice(b)
		all[i] = netip.PrefixFrom(a, bits)
	}
	return all
}

// made are the networks that are used where objects say nothing: those for
// documentation (RFC 5737, RFC 3849), and the one for benchmarks (RFC 2544).
func made(f decision.Family) []netip.Prefix {
	if f == decision.IPv6 {
		return siblings(netip.MustParseAddr("2001:db8::"))
	}
	return append([]netip.Prefix{
		netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
	}, siblings(netip.MustParseAddr("198.18.0.0"))...)
}

// madePods is where pods are said to be if there is none.
func madePods(f decision.Family) netip.Addr {
	if f == decision.IPv6 {
		return netip.MustParseAddr("fd00:10:244::")
	}
	return netip.MustParseAddr("10.244.0.0")
}

// use keeps what is made up from now on off the prefix.
func (d *derivation) use(p netip.Prefix) { d.used = append(d.used, p) }

// free takes the first of the networks that nothing has.
func (d *derivation) free(candidates []netip.Prefix) (netip.Prefix, error) {
	for _, p := range candidates {
		if _, taken := overlaps(p, d.used); !taken {
			d.use(p)
			return p, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("no network is left to make up addresses in: the objects or --cluster-cidr have all from %s to %s", candidates[0], candidates[len(candidates)-1])
}

// freeAddress takes the first address of a prefix, from one on, that nothing has; but for
// the first and, as in IPv4 it is for broadcasts, the last.
func (d *derivation) freeAddress(in netip.Prefix, from netip.Addr) (netip.Addr, bool) {
	for a := from; in.Contains(a); a = a.Next() {
		last := a.Is4() && !in.Contains(a.Next())
		if !d.taken(a) && !last && a != in.Addr() && !d.inOtherBlock(a, in) {
			d.use(single(a))
			return a, true
		}
	}
	return netip.Addr{}, false
}

// inOtherBlock says whether an address is in a pod CIDR that is not the prefix itself.
func (d *derivation) inOtherBlock(a netip.Addr, in netip.Prefix) bool {
	return slices.ContainsFunc(d.nodes, func(n *derivedNode) bool {
		return slices.ContainsFunc(n.PodCIDRs, func(c netip.Prefix) bool { return c != in && c.Contains(a) })
	})
}

// taken says whether something has the very address.
func (d *derivation) taken(a netip.Addr) bool {
	return d.at[a] != nil || slices.Contains(d.used, single(a))
}

// assignNetworks finds networks for nodes and machines, and makes addresses up for nodes
// whose own are not known.
func (d *derivation) assignNetworks() error {
	for _, n := range d.nodes {
		for _, a := range n.Addresses {
			if err := d.networkFor(a, "node "+n.Name); err != nil {
				return err
			}
		}
	}
	for _, m := range d.machines {
		d.guess("client %s is the endpoint %s of Service %s, which is no node's and no pod's", m.Name, m.Addresses[0], m.service)
		if err := d.networkFor(m.Addresses[0], "the endpoint of Service "+m.service); err != nil {
			return err
		}
	}
	// The outside first: it has the network that everyone knows for examples.
	outside := &derivedMachine{Client: Client{Name: "outside"}, chosen: true}
	if d.names[outside.Name] {
		outside.Name = d.newName(outside.Name)
	}
	for _, f := range families {
		if !d.servesFamily(f) {
			continue
		}
		a, err := d.newNetwork(f)
		if err != nil {
			return err
		}
		for range 8 { // .10, as in the built-in labs
			a = a.Next()
		}
		outside.Addresses = append(outside.Addresses, a)
	}
	d.guess("client %s at %s is made up, to ask from outside", outside.Name, texts(outside.Addresses))
	d.machines = append(d.machines, outside)
	for _, f := range families {
		if !d.servesFamily(f) {
			continue
		}
		var next netip.Addr
		for _, n := range d.nodes {
			if _, ok := address(n.Addresses, f); ok {
				continue
			}
			if !next.IsValid() {
				var err error
				if next, err = d.newNetwork(f); err != nil {
					return err
				}
			}
			n.Addresses = append(n.Addresses, next)
			d.guessNode(n, "its %s address %s is made up", f, next)
			next = next.Next()
		}
	}
	return nil
}

// newNetwork makes a network up and gives its first address after the gateway's.
func (d *derivation) newNetwork(f decision.Family) (netip.Addr, error) {
	p, err := d.free(made(f))
	if err != nil {
		return netip.Addr{}, err
	}
	d.spec.Networks = append(d.spec.Networks, Network{CIDR: p, Gateway: gateway(p)})
	return gateway(p).Next(), nil
}

// networkFor sees to it that there is a network for an address: the one around it, or as
// much of that as leaves the pods alone.
func (d *derivation) networkFor(a netip.Addr, whose string) error {
	if d.spec.network(a) != nil {
		return nil
	}
	const least = 2 // bits of the host's part
	for bits := networkBits(decision.FamilyOf(a)); bits <= a.BitLen()-least; bits++ {
		p := netip.PrefixFrom(a, bits).Masked()
		if d.hasPods(p) {
			continue
		}
		if g, ok := d.freeAddress(p, p.Addr().Next()); ok {
			d.spec.Networks = append(d.spec.Networks, Network{CIDR: p, Gateway: g})
			d.use(p)
			return nil
		}
	}
	return fmt.Errorf("%s: no network has its address %s, a router's, and none of the pods'", whose, a)
}

// hasPods says whether a network overlaps with others, or with what only pods may have.
func (d *derivation) hasPods(p netip.Prefix) bool {
	if _, ok := overlaps(p, d.spec.ClusterCIDRs); ok {
		return true
	}
	for _, n := range d.nodes {
		for _, c := range n.PodCIDRs {
			if !c.IsSingleIP() && c.Overlaps(p) {
				return true
			}
		}
	}
	return slices.ContainsFunc(d.spec.Networks, func(n Network) bool { return n.CIDR.Overlaps(p) })
}
