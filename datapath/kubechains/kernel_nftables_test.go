//go:build linux

package kubechains

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// Given is a cluster that a test of package kubechains_test made.
type Given struct {
	Table   *decision.Table
	Sources []netip.Addr // of packets
	Targets []netip.Addr // of packets besides the services' own addresses
	// ServiceCIDRs are those of the API server.
	ServiceCIDRs []netip.Prefix
}

// world has what there is of the family.
func (g *Given) world(f decision.Family) *world {
	of := func(addrs []netip.Addr) []netip.Addr {
		return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return decision.FamilyOf(a) != f })
	}
	services := slices.DeleteFunc(slices.Clone(g.Table.Services()), func(s *decision.ServicePort) bool { return s.Family != f })
	node := *g.Table.Node()
	node.Addresses = of(node.Addresses)
	return &world{
		Rand: rand.New(rand.NewPCG(1, 0)), family: f, table: decision.NewTable(1, time.Time{}, node, services),
		sources: of(g.Sources), targets: of(g.Targets),
	}
}

// CompareNFTables sends packets of each family through the tables that kube-proxy wrote in mode nftables,
// as nft lists them, and the same ones through the kernel's copy of nfqproxy's service table, and compares
// the results of both with what Decide allows. It returns how often something came up.
func CompareNFTables(t *testing.T, g *Given, rules []string) map[string]int {
	t.Helper()
	const batches, packets = 12, 100
	seen := make(tally)
	w4, w6 := g.world(decision.IPv4), g.world(decision.IPv6)
	theirs, ours := newKernelNode(t, w4, w6), newKernelNode(t, w4, w6)
	for _, table := range rules { // one transaction for each: those of an ordinary user are limited (SO_SNDBUF)
		mustRun(t, theirs.node, table, "nft", "-f", "-")
	}
	for _, w := range []*world{w4, w6} {
		installed := ours.loadCopy(t, w)
		nftables := &experiment{world: w, rules: "mode nftables:", node: theirs, memory: affinity.New(), seen: seen, differs: g.nftablesDiffers}
		copied := &experiment{world: w, rules: "the copy:", node: ours, seen: make(tally), differs: (*experiment).beyondCopy, bound: make(map[netip.AddrPort]*affinity.Table)}
		for range batches {
			nftables.packets = nil
			nftables.generate(packets)
			copied.packets = nftables.packets
			for _, e := range []*experiment{nftables, copied} {
				check(t, netns.OnOneCPU(e.perform))
				e.compare(t)
			}
		}
		check(t, installed.Remove())
	}
	return seen
}

// nftablesDiffers knows where mode nftables differs from mode iptables, whose decisions Decide makes
// (pkg/proxy/nftables/proxier.go).
func (g *Given) nftablesDiffers(e *experiment, p *decision.Packet, d *decision.Decision, got outcome) bool {
	if len(e.table.Candidates(p)) > 1 || e.table.Contested(p.Destination, p.Protocol) {
		return true // one of the service ports has the element of the map
	}
	to := p.Destination.Addr()
	if d.Entry == decision.EntryNodePort && (to.IsLoopback() || !e.table.OpensNodePorts(to)) {
		// Node ports have no rules at all on loopback addresses, and where they are not opened; mode iptables
		// still refuses and drops there.
		return got.verdict == decision.Accept
	}
	switch d.Reason {
	case decision.NotAService:
		// Chain cluster-ips-check: other ports of a ClusterIP are refused, addresses without a service dropped.
		if slices.ContainsFunc(e.table.Services(), func(s *decision.ServicePort) bool { return s.ClusterIP == to }) {
			return got.verdict == decision.Reject
		}
		return got.verdict == decision.Drop && slices.ContainsFunc(g.ServiceCIDRs, func(c netip.Prefix) bool { return c.Contains(to) })
	case decision.NotFiltered:
		// Chain service-endpoints-check is in all filter hooks.
		return got.verdict == decision.Reject || got.verdict == decision.Drop
	case decision.NoEndpoints:
		// Chains firewall-*: source ranges apply before all else, to a service without endpoints, too.
		s := d.ServicePort
		return got.verdict == decision.Drop && d.Entry == decision.EntryLoadBalancer && len(s.SourceRanges) > 0 &&
			!slices.ContainsFunc(s.SourceRanges, func(r netip.Prefix) bool { return r.Contains(p.Source.Addr()) })
	}
	return remoteHairpin(d, got) // set hairpin-connections
}
