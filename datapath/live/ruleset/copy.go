package ruleset

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// The kernel's copy of the service table translates the flows that reach the nat hooks undecided. It
// is data: maps from addresses and node ports to chains that all services with the same policy and as
// many endpoints share, and from there, by a random number, to endpoints. The number of rules does not
// depend on that of services. The nat hooks pass by flows whose entry was written before, so a decided
// flow never meets the copy.
//
// No chain that a map leads to has a map of verdicts of its own: the kernel validates the elements of
// the inner one for each element of the outer one (nf_tables_api.c, nft_chain_validate).
//
// What the copy cannot express is in docs/explanation/limits.md.

// copyMaps are the maps of the copy in one table. A list has the endpoints that a flow may go to: those
// under policy Cluster, or under the policy of the ClusterIP, and those under external policy Local.
type copyMaps struct {
	// address has address, protocol and port of services and the chain for their flows; nodePort
	// likewise, for node ports.
	address, nodePort *set
	// endpoint has the endpoints, by the key of their list and their number in it.
	endpoint, nodePortEndpoint *set
	// hairpin has the endpoints whose own flows to themselves are masqueraded.
	hairpin *set
	// refused has the ClusterIPs of services without endpoints, refusedExternal their other addresses,
	// and refusedPort their node ports.
	refused, refusedExternal, refusedPort *set
	// bound has the endpoints of clients with session affinity. The rules fill it: bind and bindNodePort
	// have the chains that do, for addresses and node ports of services.
	bound, bind, bindNodePort *set
	// sources are the sets of prefixes that may use addresses of load balancers: of 8 bits, of 16, and so on.
	sources []*set
}

func newCopyMaps(addr nftables.SetDatatype, newSet func(name string, types ...nftables.SetDatatype) *set) copyMaps {
	proto, port := nftables.TypeInetProto, nftables.TypeInetService
	// A random number has no type that all versions of nft list; a mark has its size and byte order.
	number := nftables.TypeMark
	endpoint := nftables.MustConcatSetType(addr, port)
	m := copyMaps{
		address:          newSet("copy_address", addr, proto, port).mapTo(nftables.TypeVerdict),
		nodePort:         newSet("copy_nodeport", proto, port).mapTo(nftables.TypeVerdict),
		endpoint:         newSet("copy_endpoint", addr, proto, port, number).mapTo(endpoint),
		nodePortEndpoint: newSet("copy_nodeport_endpoint", proto, port, number).mapTo(endpoint),
		hairpin:          newSet("copy_hairpin", addr, addr, proto, port),
		refused:          newSet("copy_refused", addr, proto, port),
		refusedExternal:  newSet("copy_refused_external", addr, proto, port),
		refusedPort:      newSet("copy_refused_port", proto, port),
		bound:            newSet("copy_bound", addr, addr, proto, port).mapTo(endpoint),
		bind:             newSet("copy_bind", addr, proto, port).mapTo(nftables.TypeVerdict),
		bindNodePort:     newSet("copy_bind_nodeport", proto, port).mapTo(nftables.TypeVerdict),
	}
	m.bound.filledByRules(0, maxBound)
	for bits := 8; bits <= int(addr.Bytes)*8; bits += 8 {
		m.sources = append(m.sources, newSet(fmt.Sprintf("copy_source_%d", bits), addr, proto, port, addr))
	}
	return m
}

// copyKind is the kind of address of a flow, with its policy.
type copyKind string

// The kinds, as in the names of their chains.
const (
	copyInternal      copyKind = "internal" // ClusterIP
	copyExternal      copyKind = "external" // external and load balancer IPs
	copyExternalLocal copyKind = "external_local"
	copyNodePort      copyKind = "nodeport"
	copyNodePortLocal copyKind = "nodeport_local"
)

// copyKinds are all kinds, none after one that its name begins with.
var copyKinds = []copyKind{copyInternal, copyExternalLocal, copyExternal, copyNodePortLocal, copyNodePort}

func (k copyKind) isNodePort() bool { return k == copyNodePort || k == copyNodePortLocal }
func (k copyKind) isLocal() bool    { return k == copyExternalLocal || k == copyNodePortLocal }

// localOffset is the first number of the elements of a list under policy Local.
const localOffset = 1 << 17

// balance is a chain that spreads flows over lists of the same lengths.
type balance struct {
	kind copyKind
	// affinity: clients go where they went before. restricted: from some sources only.
	affinity, restricted bool
	// n is the length of the list and local, for kinds with policy Local, that of their other list.
	n, local int
}

// balancePrefix is what the names of all these chains begin with.
const balancePrefix = "copy_"

// prefix is what the names of chains with other lengths begin with, too.
func (b balance) prefix() string {
	prefix := balancePrefix + string(b.kind)
	if b.affinity {
		prefix += "_affinity"
	}
	if b.restricted {
		prefix += "_restricted"
	}
	return prefix
}

// name is the name of the chain.
func (b balance) name() string {
	if b.kind.isLocal() {
		return fmt.Sprintf("%s_%d_%d", b.prefix(), b.n, b.local)
	}
	return fmt.Sprintf("%s_%d", b.prefix(), b.n)
}

// parseBalance is the inverse of name.
func parseBalance(name string) (b balance, ok bool) {
	for _, b.kind = range copyKinds {
		for _, b.affinity = range []bool{false, true} {
			for _, b.restricted = range []bool{false, true} {
				format, args := b.prefix()+"_%d", []any{&b.n}
				if b.kind.isLocal() {
					format, args = format+"_%d", append(args, &b.local)
				}
				if _, err := fmt.Sscanf(name, format, args...); err == nil && b.name() == name {
					return b, true
				}
			}
		}
	}
	return balance{}, false
}

// balanceChain is the chain.
func (spec *Spec) balanceChain(t *table, b balance) chain {
	key, to := t.serviceKey(), t.copy.endpoint
	if b.kind.isNodePort() {
		key, to = servicePortKey(), t.copy.nodePortEndpoint
	}
	c := chain{name: b.name()}
	if b.restricted {
		c.rules = append(c.rules, t.otherSource())
	}
	add := func(n, offset int, conditions ...clause) {
		if n == 0 {
			return
		}
		conditions = append(conditions, setConnMark(spec.ConnMark|spec.CopyMark))
		if b.affinity {
			c.rules = append(c.rules, append(conditions[:len(conditions):len(conditions)], t.dnatTo(t.clientKey(), t.copy.bound)))
		}
		c.rules = append(c.rules, append(conditions, t.dnatTo(key.and(random(n, offset)), to)))
	}
	mark := setPacketMarkBits(spec.MasqueradeMark)
	switch {
	case b.kind == copyInternal:
		c.rules = append(c.rules, spec.Copy.markInternal(t, mark)...)
		add(b.n, 0)
	case b.kind.isLocal():
		// Pods and the node itself are not subject to the policy.
		if fromPod, ok := spec.Copy.fromPod(t, true); ok {
			add(b.n, 0, fromPod)
		}
		add(b.n, 0, sourceLocal(true), mark)
		add(b.local, localOffset)
	default:
		add(b.n, 0, mark)
	}
	return c
}

// decidesByCopy reports whether the counters of a chain are those of the copy's decisions.
func decidesByCopy(name string) bool {
	return strings.HasPrefix(name, balancePrefix) || name == refuseServices || name == refuseExternal
}

// copyChains are the chains of the copy, each before the chains that jump to it.
func (spec *Spec) copyChains(t *table) []chain {
	m := &t.copy
	chains := slices.SortedFunc(maps.Values(t.balances), func(a, b chain) int { return strings.Compare(a.name, b.name) })
	first := []rule{
		// A connection in the middle is not translated: see slippedRules.
		{l4proto(tcp), tcpSyn(false), verdict("return", expr.VerdictReturn)},
		{t.serviceKey().verdictIn(m.address)},
	}
	return append(chains, chain{name: "copy", rules: append(first, spec.toNodePorts(t, m.nodePort)...)})
}

// toNodePorts are rules for packets to node ports, by a map of their verdicts.
func (spec *Spec) toNodePorts(t *table, verdicts *set) []rule {
	rules := []rule{{t.daddrKey().in(t.nodePortAddr), servicePortKey().verdictIn(verdicts)}}
	if p := spec.Copy.Loopback; p.IsValid() && t.family == ipv4 {
		rules = append(rules, rule{t.daddr().within(p, true), servicePortKey().verdictIn(verdicts)})
	}
	return rules
}

// CopyNode is what the copy's rules contain about the node.
type CopyNode struct {
	Detector      decision.Detector
	MasqueradeAll bool
	// Loopback contains the IPv4 loopback addresses on which node ports are open.
	Loopback netip.Prefix
}

// CopyNodeOf returns it for a table.
func CopyNodeOf(t *decision.Table) CopyNode {
	n := CopyNode{Detector: t.Node().Detector, MasqueradeAll: t.Node().MasqueradeAll}
	switch first := netip.AddrFrom4([4]byte{127, 0, 0, 1}); {
	case t.OpensNodePorts(first.Next()):
		n.Loopback = netip.PrefixFrom(first, 8).Masked()
	case t.OpensNodePorts(first):
		n.Loopback = netip.PrefixFrom(first, 32)
	}
	return n
}

// markInternal is the rule that marks flows to ClusterIPs, if there is one.
func (n *CopyNode) markInternal(t *table, mark clause) []rule {
	if n.MasqueradeAll {
		return []rule{{mark}}
	}
	if outside, ok := n.fromPod(t, false); ok {
		return []rule{{outside, mark}}
	}
	return nil
}

// fromPod matches, or does not match, packets from pods, as decision.Detector.IsLocal does. There is
// none if the detector is not implemented for the family.
func (n *CopyNode) fromPod(t *table, match bool) (clause, bool) {
	d := &n.Detector
	cidr, hasCIDR := d.CIDR(t.Family)
	switch {
	case d.Bridge != "":
		return inInterface(d.Bridge, false, match), true
	case d.InterfacePrefix != "":
		return inInterface(d.InterfacePrefix, true, match), true
	case hasCIDR:
		return t.saddr().within(cidr, match), true
	}
	return clause{}, false
}

// The chains that refuse.
const refuseServices, refuseExternal, refuseAll = "refuse_services", "refuse_external", "refuse_all"

// refuseChains refuse undecided packets to services without endpoints, at the hooks at which kube-proxy
// does: INPUT jumps to KUBE-EXTERNAL-SERVICES, OUTPUT to KUBE-SERVICES, FORWARD to both.
func (spec *Spec) refuseChains(t *table) []chain {
	undecided := []clause{ctState("new", expr.CtStateBitNEW, true), translated(false), connMark(spec.ConnMark, false)}
	refuse := func(name string, at hook, to string) chain {
		return base("filter", name, at, priorityFilter+1, append(undecided[:len(undecided):len(undecided)], jump(to))) // after localnet
	}
	return []chain{
		{name: refuseServices, rules: []rule{{t.serviceKey().in(t.copy.refused), counter(), t.rejectPortUnreachable()}}},
		{name: refuseExternal, rules: []rule{
			{t.serviceKey().in(t.copy.refusedExternal), counter(), t.rejectPortUnreachable()},
			// At every address of the node, whether node ports are open on it or not.
			{destinationLocal(), servicePortKey().in(t.copy.refusedPort), counter(), t.rejectPortUnreachable()},
			{destinationLocal(), servicePortKey().in(t.refusedPort), counter(), drop()},
		}},
		{name: refuseAll, rules: []rule{{jump(refuseServices)}, {jump(refuseExternal)}}},
		refuse("refuse_input", atInput, refuseExternal),
		refuse("refuse_forward", atForward, refuseAll),
		refuse("refuse_output", atOutput, refuseServices),
	}
}

// copyMasquerade are the rules after routing for flows that the copy translated.
func (spec *Spec) copyMasquerade(t *table) []rule {
	copied := connMark(spec.CopyMark, true)
	return []rule{
		// The mark is cleared here, too: learn_postrouting may be missing (Spec.Idle).
		{copied, packetMark(spec.MasqueradeMark, true), clearPacketMark(spec.MasqueradeMark), masquerade()},
		{copied, t.clientKey().in(t.copy.hairpin), masquerade()},
	}
}
