// Package ruleset is the static nftables ruleset that leads new flows into the
// netfilter queues and takes care of those that slip by. The number of rules does
// not depend on the number of services; only the elements of a few sets do.
//
// [Spec.String] prints it in nft's language.
package ruleset

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
)

// TableName is the name of our table, of family inet.
const TableName = "nfqproxy"

// Spec describes the ruleset. All fields have to be set.
type Spec struct {
	// FirstQueue and Queues: packets go to queues FirstQueue...FirstQueue+Queues-1,
	// by the CPU that handles them.
	FirstQueue, Queues uint16
	// RejectMark is a bit of the packet mark: a verdict with it has the packet
	// refused with ICMP port unreachable.
	RejectMark uint32
	// MasqueradeMark is the bit of the packet mark that says "masquerade". It is
	// cleared when the packet leaves, as kube-proxy's KUBE-POSTROUTING does, so
	// that it is not masqueraded again inside a tunnel.
	MasqueradeMark uint32
	// ConnMark is the bit of the connection mark that our entries carry.
	ConnMark uint32
	// OnlyServices has only packets to service addresses and node ports queued, by sets
	// that follow the table; otherwise the first packet of every flow is.
	OnlyServices bool
	// LocalhostNodePorts: packets from the node to node ports on IPv4 loopback
	// addresses are queued, and loopback addresses are closed to all others, as
	// kube-proxy's KUBE-FIREWALL does: route_localnet would open them.
	LocalhostNodePorts bool
	// SeenTimeout is how long a UDP flow without packets counts as decided. It has
	// to be shorter than conntrack's UDP timeouts: a flow must be queued again
	// before its entry is gone.
	SeenTimeout time.Duration
	// SeenSize bounds each of the two sets of decided UDP flows. When one is full,
	// further flows are queued with each datagram.
	SeenSize uint32
	// Native says whether the kernel has nft's queue expression; otherwise the
	// rule is xtables' NFQUEUE target. See [Probe].
	Native bool
	// ReversePath leaves alone what the kernel drops for its source, as the interfaces that
	// [Ruleset.FollowReversePath] is given have it. See [ProbeReversePath].
	ReversePath bool
}

// set is one set of the table.
type set struct {
	nft *nftables.Set
	// declaration is nft's text for the key type and the flags.
	name, declaration string
}

func (s *set) id() uint32 { return s.nft.ID }

// sets are all sets of the table.
type sets struct {
	// seen4 and seen6 hold the tuples of UDP flows whose packets need no decision.
	seen4, seen6 *set
	// service holds the service addresses with ports, for each family and protocol.
	service map[serviceSet]*set
	// nodePortAddr4, nodePortAddr6 and nodePort together hold the node's side.
	nodePortAddr4, nodePortAddr6 *set
	nodePort                     map[byte]*set // by protocol
	// scope4, scope6 and scopePort hold, for all protocols, what service ports own, with
	// endpoints or without; nil if everything is queued.
	scope4, scope6, scopePort *set
	// rpStrict and rpLoose hold interfaces; nil without Spec.ReversePath.
	rpStrict, rpLoose *set
}

type serviceSet struct {
	nfproto, proto byte
}

func (s *sets) all() []*set {
	all := []*set{
		s.seen4, s.seen6,
		s.service[serviceSet{ipv4.nfproto, tcp}], s.service[serviceSet{ipv4.nfproto, udp}],
		s.service[serviceSet{ipv6.nfproto, tcp}], s.service[serviceSet{ipv6.nfproto, udp}],
		s.nodePortAddr4, s.nodePortAddr6, s.nodePort[tcp], s.nodePort[udp],
	}
	if s.scope4 != nil {
		all = append(all, s.scope4, s.scope6, s.scopePort)
	}
	if s.rpStrict != nil {
		all = append(all, s.rpStrict, s.rpLoose)
	}
	return all
}

// scope is the set of the service addresses of a family.
func (s *sets) scope(f family) *set {
	if f == ipv6 {
		return s.scope6
	}
	return s.scope4
}

// nodeAddr is the set of the addresses of a family that have node ports.
func (s *sets) nodeAddr(f family) *set {
	if f == ipv6 {
		return s.nodePortAddr6
	}
	return s.nodePortAddr4
}

func newSets(table *nftables.Table, spec *Spec) *sets {
	id := uint32(0)
	make1 := func(name string, types ...nftables.SetDatatype) *set {
		id++
		t := types[0]
		if len(types) > 1 {
			t = nftables.MustConcatSetType(types...)
		}
		return &set{
			name: name, declaration: "type " + t.Name,
			nft: &nftables.Set{Table: table, ID: id, Name: name, KeyType: t},
		}
	}
	seen := func(name string, addr nftables.SetDatatype) *set {
		s := make1(name, addr, addr, nftables.TypeInetService, nftables.TypeInetService)
		s.nft.Dynamic, s.nft.HasTimeout, s.nft.Timeout, s.nft.Size = true, true, spec.SeenTimeout, spec.SeenSize
		s.declaration += fmt.Sprintf("; flags dynamic,timeout; timeout %s; size %d", spec.SeenTimeout, spec.SeenSize)
		return s
	}
	ip4, ip6, port := nftables.TypeIPAddr, nftables.TypeIP6Addr, nftables.TypeInetService
	all := &sets{
		seen4: seen("seen4", ip4),
		seen6: seen("seen6", ip6),
		service: map[serviceSet]*set{
			{ipv4.nfproto, tcp}: make1("service4_tcp", ip4, port),
			{ipv4.nfproto, udp}: make1("service4_udp", ip4, port),
			{ipv6.nfproto, tcp}: make1("service6_tcp", ip6, port),
			{ipv6.nfproto, udp}: make1("service6_udp", ip6, port),
		},
		nodePortAddr4: make1("nodeport_addr4", ip4),
		nodePortAddr6: make1("nodeport_addr6", ip6),
		nodePort:      map[byte]*set{tcp: make1("nodeport_tcp", port), udp: make1("nodeport_udp", port)},
	}
	if spec.OnlyServices {
		proto := nftables.TypeInetProto
		all.scope4, all.scope6 = make1("scope4", ip4, proto, port), make1("scope6", ip6, proto, port)
		all.scopePort = make1("scope_port", proto, port)
	}
	if spec.ReversePath {
		all.rpStrict, all.rpLoose = reversePathSets(make1)
	}
	return all
}

// chain is a chain of the table; a base chain if it has a hook.
type chain struct {
	name     string
	kind     nftables.ChainType
	hook     *nftables.ChainHook
	hookName string
	priority nftables.ChainPriority
	rules    []rule
}

var (
	fullMask  = bytes.Repeat([]byte{0xff}, 16)
	loopback6 = append(make([]byte, 15), 1)
)

// Priorities, by the names nft gives them.
const (
	priorityRaw    = -300
	priorityDNAT   = -100
	priorityFilter = 0
	prioritySNAT   = 100
)

// chains lists the chains in an order in which each is known before it is
// jumped to.
func (spec *Spec) chains(s *sets) []chain {
	base := func(name, hookName string, hook *nftables.ChainHook, priority nftables.ChainPriority, rules ...rule) chain {
		return chain{name, nftables.ChainTypeFilter, hook, hookName, priority, rules}
	}
	nat := func(name, hookName string, hook *nftables.ChainHook, priority nftables.ChainPriority) chain {
		return chain{name, nftables.ChainTypeNAT, hook, hookName, priority, nil}
	}
	pre, in, out, post := nftables.ChainHookPrerouting, nftables.ChainHookInput, nftables.ChainHookOutput, nftables.ChainHookPostrouting
	afterSYN := rule{l4proto(tcp), tcpSyn(false), accept()}
	rejectMarked := rule{packetMark(spec.RejectMark, true), counter(), rejectPortUnreachable()}
	slipped := rule{ctStateNew(), translated(false), connMark(spec.ConnMark, false), jump("slipped")}
	learn := func(chain string) rule {
		if spec.OnlyServices {
			// Flows that have no entry of ours are queued again where they are in scope.
			return rule{l4proto(udp), ctStateTracked(), connMark(spec.ConnMark, true), jump(chain)}
		}
		return rule{l4proto(udp), ctStateTracked(), jump(chain)}
	}
	queue, scope := "new_flows", []chain(nil)
	if spec.OnlyServices {
		queue, scope = "scope", []chain{{name: "scope", rules: scopeRules(s)}}
	}
	fromElsewhere := []rule{afterSYN, {onLoopback(), accept()}}
	if spec.ReversePath {
		scope = append(scope, chain{name: "reverse_path", rules: spec.reversePathRules(s)})
		fromElsewhere = append(fromElsewhere, rule{ipv4.is(), jump("reverse_path")})
	}
	return slices.Concat([]chain{{name: "new_flows", rules: spec.newFlows(s)}}, scope, []chain{
		{name: "learn", rules: spec.learnRules(s, family.flowKey)},
		{name: "learn_reply", rules: spec.learnRules(s, family.replyKey)},
		{name: "slipped", rules: slippedRules(s)},

		// Before conntrack (-200). Of established TCP, nearly all packets of a busy node,
		// only the first rule is seen.
		base("queue_prerouting", "prerouting", pre, priorityRaw, append(fromElsewhere, rule{jump(queue)})...),
		base("queue_output", "output", out, priorityRaw, append([]rule{afterSYN}, spec.queueOutput(s, queue)...)...),
		base("reject_prerouting", "prerouting", pre, priorityRaw+1, rejectMarked),
		base("reject_output", "output", out, priorityRaw+1, rejectMarked),

		// Translation needs a nat chain at each of these hooks, even an empty one.
		nat("nat_prerouting", "prerouting", pre, priorityDNAT),
		nat("nat_output", "output", out, priorityDNAT),
		nat("nat_input", "input", in, prioritySNAT),
		nat("nat_postrouting", "postrouting", post, prioritySNAT),

		// A UDP flow that conntrack knows by now needs no decision, nor do its replies; also
		// not one that was idle for so long that it had to be queued again:
		// it is remembered as it came, and the reply as what leaves will have it come.
		base("learn_prerouting", "prerouting", pre, priorityDNAT-1, learn("learn")),
		base("learn_output", "output", out, priorityDNAT-1, learn("learn")),
		base("learn_input", "input", in, prioritySNAT+1, learn("learn_reply")),
		base("learn_postrouting", "postrouting", post, prioritySNAT+1, learn("learn_reply"),
			rule{packetMark(spec.MasqueradeMark, true), clearPacketMark(spec.MasqueradeMark)}),

		base("localnet_input", "input", in, priorityFilter, spec.localnet()...),
		base("localnet_output", "output", out, priorityFilter, spec.localnet()...),

		base("slipped_prerouting", "prerouting", pre, priorityDNAT+1, slipped),
		base("slipped_output", "output", out, priorityDNAT+1, slipped),
	})
}

// scopeRules let go what is not for a service.
func scopeRules(s *sets) []rule {
	var rules []rule
	for _, f := range []family{ipv4, ipv6} {
		rules = append(rules,
			rule{f.is(), f.serviceKey().in(s.scope(f)), jump("new_flows")},
			rule{f.is(), f.daddrKey().in(s.nodeAddr(f)), servicePortKey().in(s.scopePort), jump("new_flows")})
	}
	return rules
}

// queueOutput leads packets made on the node to the queues by way of a chain.
func (spec *Spec) queueOutput(s *sets, queue string) []rule {
	var rules []rule
	if spec.LocalhostNodePorts {
		rules = append(rules,
			rule{ipv4.is(), toLoopback(), l4proto(tcp), dportKey("tcp").in(s.nodePort[tcp]), jump("new_flows")},
			rule{ipv4.is(), toLoopback(), l4proto(udp), dportKey("udp").in(s.nodePort[udp]), jump("new_flows")})
	}
	// What the node says to itself on loopback addresses is no service's, and must not
	// depend on the daemon.
	return append(rules,
		rule{ipv4.is(), toLoopback(), accept()},
		rule{ipv6.is(), ipv6.daddrIn("::1", fullMask, loopback6), accept()},
		rule{jump(queue)})
}

// localnet closes loopback addresses to packets that come from elsewhere and are not
// translated.
func (spec *Spec) localnet() []rule {
	if !spec.LocalhostNodePorts {
		return nil
	}
	return []rule{{ipv4.is(), toLoopback(), notFromLoopback(), ctStateUnknown(), translated(false), counter(), drop()}}
}

// newFlows sends the first packet of each flow to the queues. The counters tell of packets
// that the queues had no room for: see [Ruleset.Queued].
func (spec *Spec) newFlows(s *sets) []rule {
	q := queue(spec.FirstQueue, spec.Queues, spec.Native)
	return []rule{
		{l4proto(tcp), counter(), q},
		{ipv4.is(), l4proto(udp), ipv4.flowKey().in(s.seen4), ipv4.flowKey().refreshed(s.seen4), accept()},
		{ipv6.is(), l4proto(udp), ipv6.flowKey().in(s.seen6), ipv6.flowKey().refreshed(s.seen6), accept()},
		// Multicast and broadcast have no services, and conntrack no lasting entry.
		{ipv4.is(), ipv4.daddrIn("224.0.0.0/4", []byte{0xf0}, []byte{0xe0}), accept()},
		{ipv4.is(), ipv4.daddrIn("255.255.255.255", []byte{255, 255, 255, 255}, []byte{255, 255, 255, 255}), accept()},
		{ipv6.is(), ipv6.daddrIn("ff00::/8", []byte{0xff}, []byte{0xff}), accept()},
		{l4proto(udp), counter(), q},
		{l4proto(sctp), sctpInit(), counter(), q},
	}
}

// slippedRules take care of packets to a service address that nobody decided: the
// entry of their flow vanished, or they passed while no daemon listened. UDP is
// forgotten, so that the next datagram is queued; a new TCP connection is left to
// its retransmission; one in the middle is reset rather than left to hang.
func slippedRules(s *sets) []rule {
	var rules []rule
	for _, f := range []family{ipv4, ipv6} {
		seen, nodeAddr := s.seen4, s.nodeAddr(f)
		if f == ipv6 {
			seen = s.seen6
		}
		forUDP := [][]clause{
			{f.destinationKey("udp").in(s.service[serviceSet{f.nfproto, udp}])},
			{f.daddrKey().in(nodeAddr), dportKey("udp").in(s.nodePort[udp])},
		}
		forTCP := [][]clause{
			{f.destinationKey("tcp").in(s.service[serviceSet{f.nfproto, tcp}])},
			{f.daddrKey().in(nodeAddr), dportKey("tcp").in(s.nodePort[tcp])},
		}
		for _, to := range forUDP {
			r := append(rule{f.is(), l4proto(udp)}, to...)
			rules = append(rules, append(r, f.flowKey().deleted(seen), counter(), drop()))
		}
		for _, to := range forTCP {
			r := append(rule{f.is(), l4proto(tcp)}, to...)
			rules = append(rules,
				append(r[:len(r):len(r)], tcpSyn(true), counter(), drop()),
				append(r[:len(r):len(r)], counter(), rejectReset()))
		}
	}
	return rules
}

// String prints the ruleset in nft's language. The queue statement is printed as
// nft's own even where the kernel gets xtables' target.
func (spec Spec) String() string {
	table := &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}
	s := newSets(table, &spec)
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", TableName)
	for _, set := range s.all() {
		fmt.Fprintf(&b, "\tset %s { %s; }\n", set.name, set.declaration)
	}
	for _, c := range spec.chains(s) {
		fmt.Fprintf(&b, "\tchain %s {\n", c.name)
		if c.hook != nil {
			fmt.Fprintf(&b, "\t\ttype %s hook %s priority %d; policy accept;\n", c.kind, c.hookName, c.priority)
		}
		for _, r := range c.rules {
			fmt.Fprintf(&b, "\t\t%s\n", r.text())
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}
