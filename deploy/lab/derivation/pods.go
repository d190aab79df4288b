package derivation

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// servesFamily reports whether a service or a pod is of the family.
func (d *derivation) servesFamily(f decision.Family) bool {
	for _, s := range d.services {
		if s.Family == f {
			return true
		}
	}
	return slices.ContainsFunc(d.pods, func(p *derivedPod) bool {
		_, ok := decision.AddressOf(p.Addresses, f)
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
			block, ok := decision.PrefixOf(n.declared, f)
			switch {
			case ok && !d.fits(block, n, blocks):
				d.guessNode(n, "its pod CIDR %s has addresses of other hosts, or is too small: each of its pods has a route of its own", block)
				block = netip.Prefix{}
			case !ok && len(own) > 0:
				if block = assumedNetwork(own[0]); d.fits(block, n, blocks) {
					d.guessNode(n, "its pods are in %s, as the pods in the objects are", block)
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
		d.makeCIDRs(f, blocks)
	}
	return nil
}

// fits reports whether a node can have the block: all its addresses in use are those of the
// node's own pods, those of the network and the gateway are free, and it is large enough.
func (d *derivation) fits(block netip.Prefix, n *derivedNode, earlier []netip.Prefix) bool {
	if c, ok := decision.PrefixOf(d.options.ClusterCIDRs, decision.FamilyOf(block.Addr())); ok && (c.Bits() > block.Bits() || !c.Contains(block.Addr())) {
		return false
	}
	if _, taken := labfile.Overlap(block, earlier); taken || block.Addr().BitLen()-block.Bits() < 2 {
		return false
	}
	for a, h := range d.at {
		p, isPod := h.(*derivedPod)
		if block.Contains(a) && (!isPod || p.Node != n.Name || a == block.Addr() || a == labfile.Gateway(block)) {
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

// makeCIDRs makes a pod CIDR up for each node without pods, for its client pod; a node stays
// without one if no network is free.
func (d *derivation) makeCIDRs(f decision.Family, blocks []netip.Prefix) {
	cluster, limited := decision.PrefixOf(d.options.ClusterCIDRs, f)
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
		if _, ok := decision.PrefixOf(n.PodCIDRs, f); ok {
			continue
		}
		p, err := d.free(candidates)
		if err != nil {
			return // all networks around are in use
		}
		n.PodCIDRs = append(n.PodCIDRs, p)
		d.guessNode(n, "its pods are in %s: made up, because the objects have none", p)
	}
}

// checkClusterCIDRs finds the prefixes of all pods, or checks the given ones for addresses
// of other hosts.
func (d *derivation) checkClusterCIDRs() error {
	for _, f := range families {
		if given, ok := decision.PrefixOf(d.options.ClusterCIDRs, f); ok {
			if other := d.foreignAddress(given, nil); other != "" {
				return fmt.Errorf("--cluster-cidr %s contains %s: a lab recognizes pods by their addresses", given, other)
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
		if other := d.foreignAddress(cover, d.services); other != "" {
			d.guess("no cluster CIDR for %s: the smallest prefix with all pods, %s, also contains %s; flows from outside the cluster are not masqueraded for that reason", f, cover, other)
			continue
		}
		d.guess("cluster CIDR %s: the smallest prefix with all pods; --cluster-cidr overrides it", cover)
		d.spec.ClusterCIDRs = append(d.spec.ClusterCIDRs, cover)
		d.use(cover)
	}
	return nil
}

// foreignAddress describes the lowest address in a prefix that belongs to a host other than a pod,
// or to one of the services; empty: there is none.
func (d *derivation) foreignAddress(p netip.Prefix, services []*decision.ServicePort) string {
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
			see(a, "an endpoint of Service %s that is not a pod", h.service)
		}
	}
	for _, s := range services {
		see(s.ClusterIP, "Service %s", s.Name.Service())
	}
	return found
}

// covering is the smallest prefix that contains both; p may be the zero Prefix.
func covering(p, q netip.Prefix) netip.Prefix {
	if !p.IsValid() {
		return q
	}
	bits := min(p.Bits(), q.Bits())
	for ; !netip.PrefixFrom(p.Addr(), bits).Contains(q.Addr()); bits-- {
	}
	return netip.PrefixFrom(p.Addr(), bits).Masked()
}

// addHosts adds a client pod to each node.
func (d *derivation) addHosts() error {
	var shells []string
	for _, n := range d.nodes {
		p := &derivedPod{Pod: labapi.Pod{Name: "shell", Namespace: "default", Node: n.Name}, choice: choice{chosen: true}}
		for _, f := range families {
			c, ok := decision.PrefixOf(n.PodCIDRs, f)
			switch {
			case !ok:
			case !c.IsSingleIP():
				if a, ok := d.freeAddress(c, labfile.Gateway(c).Next()); ok {
					p.Addresses = append(p.Addresses, a)
				}
			default:
				// The next free one, because the network's range is not known.
				within, limited := decision.PrefixOf(d.spec.ClusterCIDRs, f)
				if !limited {
					within = assumedNetwork(c.Addr())
				}
				if a, ok := d.freeAddress(within, c.Addr()); ok {
					p.Addresses = append(p.Addresses, a)
					n.PodCIDRs = append(n.PodCIDRs, single(a))
				}
			}
		}
		if len(p.Addresses) == 0 {
			d.guessNode(n, "no free address for a client pod")
			continue
		}
		if len(d.nodes) > 1 || d.names[p.Name] {
			p.Name = d.newName("shell")
		}
		d.addPod(p)
		shells = append(shells, p.Name)
	}
	if len(shells) > 0 {
		d.guess("client pods are made up, one on each node: %s", nearest.Some(shells))
	}
	return nil
}
