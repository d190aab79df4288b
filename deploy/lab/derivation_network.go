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

// servesFamily says whether a service or a pod is of the family.
func (d *derivation) servesFamily(f decision.Family) bool {
	for _, s := range d.services {
		if s.Family == f {
			return true
		}
	}
	return slices.ContainsFunc(d.pods, func(p *derivedPod) bool {
		_, ok := address(p.Addresses, f)
		return ok
	})
}

// assignCIDRs gives the nodes pod CIDRs that have their pods.
func (d *derivation) assignCIDRs() error {
	for _, s := range d.services {
		for _, a := range slices.Concat([]netip.Addr{s.ClusterIP}, s.ExternalIPs, s.LoadBalancerIPs) {
			d.use(single(a))
		}
	}
	for a := range d.at {
		d.use(single(a))
	}
	pods := make(map[string][]netip.Addr) // of a node
	for _, p := range d.pods {
		pods[p.Node] = append(pods[p.Node], p.Addresses...)
	}
	for _, f := range families {
		if !d.servesFamily(f) {
			continue
		}
		var blocks []netip.Prefix
		for _, n := range d.nodes {
			own := slices.DeleteFunc(slices.Clone(pods[n.Name]), func(a netip.Addr) bool { return decision.FamilyOf(a) != f })
			slices.SortFunc(own, netip.Addr.Compare)
			block, ok := cidr(n.declared, f)
			switch {
			case ok && !d.suits(block, n, blocks):
				d.guessNode(n, "its pod CIDR %s has addresses of others, or is too small: each of its pods has a route of its own", block)
				block = netip.Prefix{}
			case !ok && len(own) > 0:
				if block = around(own[0]); d.suits(block, n, blocks) {
					d.guessNode(n, "its pods are in %s, where those that the objects tell of are", block)
				} else {
					block = netip.Prefix{}
				}
			}
			if block.IsValid() {
				blocks = append(blocks, block)
				n.PodCIDRs = append(n.PodCIDRs, block)
			}
			for _, a := range own {
				if !block.IsValid() || !block.Contains(a) {
					n.PodCIDRs = append(n.PodCIDRs, single(a))
				}
			}
		}
		for _, b := range blocks {
			d.use(b)
		}
		if err := d.makeCIDRs(f, blocks); err != nil {
			return err
		}
	}
	return nil
}

// suits says whether a node can have the block: it has addresses of the node's own pods
// only, and none where the network and the gateway have theirs, and there is room.
func (d *derivation) suits(block netip.Prefix, n *derivedNode, earlier []netip.Prefix) bool {
	if c, ok := cidr(d.options.ClusterCIDRs, decision.FamilyOf(block.Addr())); ok && (c.Bits() > block.Bits() || !c.Contains(block.Addr())) {
		return false
	}
	if _, taken := overlaps(block, earlier); taken || block.Addr().BitLen()-block.Bits() < 2 {
		return false
	}
	for a, h := range d.at {
		p, isPod := h.(*derivedPod)
		if block.Contains(a) && (!isPod || p.Node != n.Name || a == block.Addr() || a == gateway(block)) {
			return false
		}
	}
	for _, s := range d.services {
		if block.Contains(s.ClusterIP) {
			return false
		}
	}
	return true
}

// makeCIDRs makes a pod CIDR up for each node that needs none, to have something to ask
// from; where the cluster's has no room it stays without.
func (d *derivation) makeCIDRs(f decision.Family, blocks []netip.Prefix) error {
	cluster, limited := cidr(d.options.ClusterCIDRs, f)
	first := madePods(f)
	switch {
	case limited:
		first = cluster.Addr()
	case len(blocks) > 0:
		first = blocks[0].Addr()
	}
	candidates := slices.DeleteFunc(siblings(first), func(p netip.Prefix) bool {
		return limited && (cluster.Bits() > p.Bits() || !cluster.Contains(p.Addr()))
	})
	for _, n := range d.nodes {
		if _, ok := cidr(n.PodCIDRs, f); ok {
			continue
		}
		p, err := d.free(candidates)
		if err != nil {
			if limited {
				continue
			}
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
		n.PodCIDRs = append(n.PodCIDRs, p)
		d.guessNode(n, "its pods are in %s: made up, as the objects tell of none", p)
	}
	return nil
}

// checkClusterCIDRs finds the prefixes of all pods, or holds those that were given against
// the addresses of others.
func (d *derivation) checkClusterCIDRs() error {
	for _, f := range families {
		if given, ok := cidr(d.options.ClusterCIDRs, f); ok {
			if other := d.stranger(given, nil); other != "" {
				return fmt.Errorf("--cluster-cidr %s: %s is in it: the lab tells pods from others by their addresses", given, other)
			}
			d.use(given)
			continue
		}
		var cover netip.Prefix
		for _, n := range d.nodes {
			for _, c := range n.PodCIDRs {
				if decision.FamilyOf(c.Addr()) == f {
					cover = covering(cover, c)
				}
			}
		}
		if !cover.IsValid() {
			continue
		}
		if other := d.stranger(cover, d.services); other != "" {
			d.guess("no cluster CIDR for %s: the least that has all pods, %s, also has %s; nothing is masqueraded for coming from outside of the cluster", f, cover, other)
			continue
		}
		d.guess("cluster CIDR %s: the least that has all pods; --cluster-cidr says otherwise", cover)
		d.spec.ClusterCIDRs = append(d.spec.ClusterCIDRs, cover)
		d.use(cover)
	}
	return nil
}

// stranger tells of the least of the addresses in a prefix that are another host's, or of
// one of the services; empty: there is none.
func (d *derivation) stranger(p netip.Prefix, services []*decision.ServicePort) string {
	var least netip.Addr
	found := ""
	see := func(a netip.Addr, format string, args ...any) {
		if p.Contains(a) && (found == "" || a.Less(least)) {
			least, found = a, fmt.Sprintf("the address %s of ", a)+fmt.Sprintf(format, args...)
		}
	}
	for a, h := range d.at {
		switch h := h.(type) {
		case *derivedNode:
			see(a, "node %s", h.Name)
		case *derivedMachine:
			see(a, "an endpoint of Service %s that is no pod's", h.service)
		}
	}
	for _, s := range services {
		see(s.ClusterIP, "Service %s", s.Name.Service())
	}
	return found
}

// covering is the least prefix that has both; p may be the zero Prefix.
func covering(p, q netip.Prefix) netip.Prefix {
	if !p.IsValid() {
		return q
	}
	bits := min(p.Bits(), q.Bits())
	for ; !netip.PrefixFrom(p.Addr(), bits).Contains(q.Addr()); bits-- {
	}
	return netip.PrefixFrom(p.Addr(), bits).Masked()
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

// addHosts adds to each node a pod to ask from.
func (d *derivation) addHosts() error {
	var shells []string
	for _, n := range d.nodes {
		p := &derivedPod{Pod: Pod{Name: "shell", Namespace: "default", Node: n.Name}, chosen: true}
		for _, f := range families {
			c, ok := cidr(n.PodCIDRs, f)
			switch {
			case !ok:
			case !c.IsSingleIP():
				if a, ok := d.freeAddress(c, gateway(c).Next()); ok {
					p.Addresses = append(p.Addresses, a)
				}
			default:
				// The next one that nobody has, as the network's own range is not known.
				within, limited := cidr(d.spec.ClusterCIDRs, f)
				if !limited {
					within = around(c.Addr())
				}
				if a, ok := d.freeAddress(within, c.Addr()); ok {
					p.Addresses = append(p.Addresses, a)
					n.PodCIDRs = append(n.PodCIDRs, single(a))
				}
			}
		}
		if len(p.Addresses) == 0 {
			d.guessNode(n, "there is no room for a pod to ask from")
			continue
		}
		if len(d.nodes) > 1 || d.names[p.Name] {
			p.Name = d.newName("shell")
		}
		d.addPod(p)
		shells = append(shells, p.Name)
	}
	if len(shells) > 0 {
		d.guess("pods to ask from are made up, one on each node: %s", some(shells))
	}
	return nil
}
