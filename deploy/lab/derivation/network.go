package derivation

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

var families = []decision.Family{decision.IPv4, decision.IPv6}

// networkBits are the sizes of the networks that are guessed.
func networkBits(f decision.Family) int {
	if f == decision.IPv4 {
		return 24
	}
	return 64
}

// assumedNetwork is the assumed network of an address.
func assumedNetwork(a netip.Addr) netip.Prefix {
	return netip.PrefixFrom(a, networkBits(decision.FamilyOf(a))).Masked()
}

// siblings are networks of that size. The first one contains the address; the others differ
// from it in the last byte of the network's part.
func siblings(first netip.Addr) []netip.Prefix {
	bits := networkBits(decision.FamilyOf(first))
	all := make([]netip.Prefix, 256)
	for i := range all {
		b := assumedNetwork(first).Addr().AsSlice()
		b[bits/8-1] += byte(i)
		a, _ := netip.AddrFromSlice(b)
		all[i] = netip.PrefixFrom(a, bits)
	}
	return all
}

// made are the made-up networks: those for documentation (RFC 5737, RFC 3849), and the one
// for benchmarks (RFC 2544).
func made(f decision.Family) []netip.Prefix {
	if f == decision.IPv6 {
		return siblings(netip.MustParseAddr("2001:db8::"))
	}
	return append([]netip.Prefix{
		netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
	}, siblings(netip.MustParseAddr("198.18.0.0"))...)
}

// madePods is the made-up network of pods if there are none.
func madePods(f decision.Family) netip.Addr {
	if f == decision.IPv6 {
		return netip.MustParseAddr("fd00:10:244::")
	}
	return netip.MustParseAddr("10.244.0.0")
}

// use marks the prefix as used: later made-up addresses avoid it.
func (d *derivation) use(p netip.Prefix) { d.used = append(d.used, p) }

// free takes the first unused network.
func (d *derivation) free(candidates []netip.Prefix) (netip.Prefix, error) {
	for _, p := range candidates {
		if _, taken := labfile.Overlap(p, d.used); !taken {
			d.use(p)
			return p, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("no free network for made-up addresses: the objects or --cluster-cidr use all from %s to %s", candidates[0], candidates[len(candidates)-1])
}

// freeAddress takes the first unused address of a prefix, starting at from. It leaves out the
// prefix's first address and, in IPv4, its last, the broadcast address.
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

// inOtherBlock reports whether an address is in a pod CIDR other than the prefix.
func (d *derivation) inOtherBlock(a netip.Addr, in netip.Prefix) bool {
	return slices.ContainsFunc(d.nodes, func(n *derivedNode) bool {
		return slices.ContainsFunc(n.PodCIDRs, func(c netip.Prefix) bool { return c != in && c.Contains(a) })
	})
}

// taken reports whether the address is in use.
func (d *derivation) taken(a netip.Addr) bool {
	return d.at[a] != nil || slices.Contains(d.used, single(a))
}

// assignNetworks finds networks for nodes and machines, and makes addresses up for nodes
// without one.
func (d *derivation) assignNetworks() error {
	for _, n := range d.nodes {
		for _, a := range n.Addresses {
			if err := d.networkFor(a, "node "+n.Name); err != nil {
				return err
			}
		}
	}
	for _, m := range d.machines {
		d.guess("client %s is the endpoint %s of Service %s, which is neither a node nor a pod", m.Name, m.Addresses[0], m.service)
		if err := d.networkFor(m.Addresses[0], "the endpoint of Service "+m.service); err != nil {
			return err
		}
	}
	// The external client first: it gets the best-known documentation network.
	outside := &derivedMachine{Client: labapi.Client{Name: "outside"}, choice: choice{chosen: true}}
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
	d.guess("client %s at %s is made up, as an external client", outside.Name, strings.Trim(fmt.Sprint(outside.Addresses), "[]"))
	d.machines = append(d.machines, outside)
	for _, f := range families {
		if !d.servesFamily(f) {
			continue
		}
		var next netip.Addr
		for _, n := range d.nodes {
			if _, ok := decision.AddressOf(n.Addresses, f); ok {
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

// newNetwork makes a network up and returns its first address after the gateway's.
func (d *derivation) newNetwork(f decision.Family) (netip.Addr, error) {
	p, err := d.free(made(f))
	if err != nil {
		return netip.Addr{}, err
	}
	d.spec.Networks = append(d.spec.Networks, labfile.Network{CIDR: p, Gateway: labfile.Gateway(p)})
	return labfile.Gateway(p).Next(), nil
}

// networkFor adds a network for an address, if it has none: the one around it, or the largest
// part of that without pods.
func (d *derivation) networkFor(a netip.Addr, whose string) error {
	if d.spec.Network(a) != nil {
		return nil
	}
	const least = 2 // bits of the host part
	for bits := networkBits(decision.FamilyOf(a)); bits <= a.BitLen()-least; bits++ {
		p := netip.PrefixFrom(a, bits).Masked()
		if d.hasPods(p) {
			continue
		}
		if g, ok := d.freeAddress(p, p.Addr().Next()); ok {
			d.spec.Networks = append(d.spec.Networks, labfile.Network{CIDR: p, Gateway: g})
			d.use(p)
			return nil
		}
	}
	return fmt.Errorf("%s: no network is possible for its address %s: it needs a router's address, and must not overlap with the pods'", whose, a)
}

// hasPods reports whether a network overlaps with other networks, or with prefixes of pods.
func (d *derivation) hasPods(p netip.Prefix) bool {
	if _, ok := labfile.Overlap(p, d.spec.ClusterCIDRs); ok {
		return true
	}
	for _, n := range d.nodes {
		for _, c := range n.PodCIDRs {
			if !c.IsSingleIP() && c.Overlaps(p) {
				return true
			}
		}
	}
	return slices.ContainsFunc(d.spec.Networks, func(n labfile.Network) bool { return n.CIDR.Overlaps(p) })
}

// single is the prefix of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
