// Package ruleset is the static nftables ruleset that sends new flows to the netfilter queues and
// handles packets that pass undecided. The number of rules does not depend on the number of
// services; only the elements of a few sets do.
//
// [Spec.String] prints it in nft's language.
package ruleset

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// TableName is the name of our tables, one of family ip and one of family ip6. (In a table of family
// inet, nft lists xtables' NFQUEUE target with errors.)
const TableName = "nfqproxy"

// Spec describes the ruleset. All fields must be set.
type Spec struct {
	// FirstQueue and Queues: packets to services that have endpoints go to queues FirstQueue...FirstQueue+Queues-1, by
	// the CPU that handles them, and others to as many that follow, so that a flood to no service does not delay
	// connections to services. With OnlyServices there are no other queues.
	FirstQueue, Queues uint16
	// RejectMark is a packet mark, compared as a whole: after a verdict with it, a rule refuses the packet with ICMP
	// port unreachable. It is not a flag bit, because other software uses any bit of the mark (wg-quick's 51820 has
	// 0x8000, the bit that kubelet once used).
	RejectMark uint32
	// MasqueradeMark is the masquerade bit of the packet mark. It is cleared when the packet
	// leaves, as in kube-proxy's KUBE-POSTROUTING, so that it is not masqueraded again inside a
	// tunnel.
	MasqueradeMark uint32
	// ConnMark is the bit of the connection mark that our entries carry. Those that the kernel's copy
	// of the service table decided carry CopyMark, too.
	ConnMark, CopyMark uint32
	// Copy is what the copy's rules contain about the node; [Ruleset.Follow] keeps it up to date.
	Copy CopyNode
	// OnlyServices queues only packets to service addresses and node ports, by sets that follow
	// the table; otherwise the first packet of every flow is queued.
	OnlyServices bool
	// Refusals also queues packets that refuse a TCP connection: RST and ACK with the sequence number 0, the answer of a
	// host without a listener to a SYN (RFC 9293, section 3.10.7.1).
	Refusals bool
	// TCPLiberal forwards packets that conntrack calls invalid, as kube-proxy does where
	// net.netfilter.nf_conntrack_tcp_be_liberal is set. Otherwise they are dropped
	// (kubernetes#74839): one out of the window, forwarded untranslated, would have the
	// client reset the connection.
	TCPLiberal bool
	// LocalhostNodePorts: packets from the node to node ports on IPv4 loopback addresses are
	// queued, and loopback addresses are closed to all other sources, as in kube-proxy's
	// KUBE-FIREWALL: route_localnet would open them.
	LocalhostNodePorts bool
	// SeenTimeout is how long a UDP flow without packets counts as decided. It must be shorter
	// than conntrack's UDP timeouts: a flow must be queued again before its entry expires.
	SeenTimeout time.Duration
	// SeenSize bounds each of the two sets of decided UDP flows. When one is full, every datagram
	// of further flows is queued.
	SeenSize uint32
	// Native: the kernel has nft's queue expression; otherwise the rule is xtables' NFQUEUE
	// target. See [Probe].
	Native bool
	// Alive is the switch that stops queueing when the daemon does not serve the queues.
	Alive Alive
	// Idle: the kernel's copy decides all flows from elsewhere, so the base chains that only queued flows
	// need are left out: each costs every packet. [Connection.Install] sets it with OnlyServices, and [Ruleset.Follow]
	// ends it when a flow is to be queued.
	Idle bool
	// ReversePath does not queue packets that the kernel drops because of their source, by the
	// interfaces of [Ruleset.FollowReversePath]. See [ProbeReversePath].
	ReversePath bool
}

// Alive is a dead-man's switch: packets are queued only while a set has an element with a timeout. The
// daemon extends the timeout by sending packets with a mark; it does not change the set itself,
// because each change makes the listings of other programs start again. The zero Alive is no switch:
// packets are always queued.
type Alive struct {
	// Mark is the packet mark of the packets that extend the timeout. Their address family's packets
	// must reach the output hook.
	Mark uint32
	// Timeout is how long packets are queued after the last such packet.
	Timeout time.Duration
	// IPv4 and IPv6: the switch exists in the family.
	IPv4, IPv6 bool
}

// aliveSize is the size of the set. Expired elements count until the kernel collects them.
const aliveSize = 16

// etherType is the key of the set: every packet of the table has the same.
func etherType() keyed { return concat(meta("meta protocol", expr.MetaKeyPROTOCOL)) }

// aliveKey is the only key of the set, with which it begins.
func (t *table) aliveKey() string {
	protocol := uint16(unix.ETH_P_IP)
	if t.family == ipv6 {
		protocol = unix.ETH_P_IPV6
	}
	return string(binary.BigEndian.AppendUint16(nil, protocol))
}

// whileAlive is the clause of rules that queue packets.
func (t *table) whileAlive() rule {
	if t.alive == nil {
		return nil
	}
	return rule{etherType().in(t.alive)}
}

// extend is the rule for the packets that extend the timeout.
func (spec *Spec) extend(t *table) []rule {
	if t.alive == nil {
		return nil
	}
	return []rule{{packetMarkIs(spec.Alive.Mark), etherType().refreshed(t.alive, 0), drop()}}
}

// IsAlive reports whether packets of a family are queued at present.
func (r *Ruleset) IsAlive(f decision.Family) (bool, error) {
	t := r.tables.of(f)
	if t.alive == nil {
		return true, nil
	}
	elements, err := t.readElements(t.alive)
	return len(elements) > 0, err
}

// hook is a hook of netfilter (linux/netfilter.h, NF_INET_...).
type hook uint32

const (
	atPrerouting hook = iota
	atInput
	atForward
	atOutput
	atPostrouting
)

func (h hook) String() string {
	return [...]string{"prerouting", "input", "forward", "output", "postrouting"}[h]
}

// chain is a chain of the table.
type chain struct {
	name     string
	kind     string // of a base chain: "filter" or "nat"; or else empty, and hook and priority are not valid
	hook     hook
	priority int32
	rules    []rule
}

func base(kind, name string, at hook, priority int32, rules ...rule) chain {
	return chain{name, kind, at, priority, rules}
}

// Priorities, with nft's names.
const (
	// priorityQueue is after raw (-300), so that packets that the host's own rules drop or exempt
	// from connection tracking (NOTRACK) are not decided, and before conntrack (-200).
	priorityQueue  = -250
	priorityDNAT   = -100
	priorityFilter = 0
	prioritySNAT   = 100
)

// chains lists the chains of a table in an order in which each is defined before a jump to it.
func (spec *Spec) chains(t *table) []chain {
	afterSYN := rule{l4proto(tcp), tcpSyn(false), accept()}
	// Untracked flows cannot be translated.
	untracked := rule{ctState("untracked", expr.CtStateBitUNTRACKED, true), accept()}
	// Clear the mark: the ICMP error might be routed by it (net.ipv4.fwmark_reflect).
	rejectMarked := rule{packetMarkIs(spec.RejectMark), counter(), setPacketMark(0), t.rejectPortUnreachable()}
	afterDNAT := []rule{
		{ctState("new", expr.CtStateBitNEW, false), accept()},
		{translated(false), connMark(spec.ConnMark, false), jump("slipped")},
		{connMark(spec.ConnMark, true), jump("bind")},
	}
	learn := func(chain string) rule {
		if spec.OnlyServices {
			// Flows without an entry of ours are queued again if they are in scope.
			return rule{l4proto(udp), tracked(), connMark(spec.ConnMark, true), jump(chain)}
		}
		return rule{l4proto(udp), tracked(), jump(chain)}
	}
	queue, scope := "new_flows", []chain(nil)
	if spec.OnlyServices {
		queue, scope = "scope", []chain{{name: "scope", rules: scopeRules(t)}}
	}
	// Those that arrive on lo were queued in output.
	fromElsewhere := append(spec.refusals(t, onLoopback(false)), afterSYN, untracked, rule{onLoopback(true), accept()})
	if t.rpStrict != nil {
		scope = append(scope, chain{name: "reverse_path", rules: t.reversePathRules()})
		fromElsewhere = append(fromElsewhere, rule{jump("reverse_path")})
	}
	var localnet []chain
	if t.family == ipv4 {
		localnet = []chain{
			base("filter", "localnet_input", atInput, priorityFilter, spec.localnet()...),
			base("filter", "localnet_output", atOutput, priorityFilter, spec.localnet()...),
		}
	}
	all := slices.Concat([]chain{spec.decideChain(t), spec.queueing(t)}, scope, []chain{
		{name: "learn", rules: spec.learnRules(t, t.flowKey())},
		{name: "learn_reply", rules: spec.learnRules(t, t.replyKey())},
		{name: "slipped", rules: slippedRules(t)},
		spec.bindClients(t),

		// Before conntrack (-200). Packets of established TCP, nearly all of a busy node, evaluate
		// only the first rule.
		base("filter", "queue_prerouting", atPrerouting, priorityQueue, append(fromElsewhere, rule{jump(queue)})...),
		base("filter", "queue_output", atOutput, priorityQueue, slices.Concat(spec.refusals(t), spec.extend(t), []rule{afterSYN, untracked}, spec.queueOutput(t, queue))...),
		base("filter", "reject_prerouting", atPrerouting, priorityQueue+1, rejectMarked),
		base("filter", "reject_output", atOutput, priorityQueue+1, rejectMarked),

		// A UDP flow that conntrack knows by now needs no decision, nor do its replies; neither
		// does one that was idle for so long that it was queued again. The flow is remembered by
		// the tuple with which it arrived, its replies by the inverse of the tuple with which it
		// leaves.
		base("filter", "learn_prerouting", atPrerouting, priorityDNAT-1, learn("learn")),
		base("filter", "learn_output", atOutput, priorityDNAT-1, learn("learn")),
		base("filter", "learn_input", atInput, prioritySNAT+1, learn("learn_reply")),
		base("filter", "learn_postrouting", atPostrouting, prioritySNAT+1, learn("learn_reply"),
			rule{packetMark(spec.MasqueradeMark, true), clearPacketMark(spec.MasqueradeMark)}),

		base("filter", "slipped_prerouting", atPrerouting, priorityDNAT+1, afterDNAT...),
		base("filter", "slipped_output", atOutput, priorityDNAT+1, afterDNAT...),
	}, localnet, spec.copyChains(t), spec.refuseChains(t), spec.nat(t), forward(spec))
	if spec.Idle {
		all = slices.DeleteFunc(all, func(c chain) bool { return forQueued(c.name) })
	}
	return all
}

// refusals queue packets that refuse a connection, and match.
func (spec *Spec) refusals(t *table, match ...clause) []rule {
	if !spec.Refusals {
		return nil
	}
	return []rule{slices.Concat(tcpRefusal(), match, spec.toQueue(t, spec.FirstQueue))}
}

// nat are the chains that translate: decided flows by their entries, others by the kernel's copy.
func (spec *Spec) nat(t *table) []chain {
	chains := translation()
	undecided := []rule{{jump("copy")}}
	chains[0].rules, chains[1].rules = undecided, undecided
	chains[3].rules = spec.copyMasquerade(t)
	return chains
}

// established are the chains that the kernel needs to translate decided flows, with or without new
// decisions.
func (spec *Spec) established() []chain { return append(translation(), forward(spec)...) }

// translation are chains of type nat at the four hooks: translation needs one at each, even an empty
// one.
func translation() []chain {
	return []chain{
		base("nat", "nat_prerouting", atPrerouting, priorityDNAT),
		base("nat", "nat_output", atOutput, priorityDNAT),
		base("nat", "nat_input", atInput, prioritySNAT),
		base("nat", "nat_postrouting", atPostrouting, prioritySNAT),
	}
}

// forward is the chain of forwarded packets. Connection tracking is on as long as a rule uses it:
// this one does.
func forward(spec *Spec) []chain {
	rules := []rule{{ctState("invalid", expr.CtStateBitINVALID, true), counter(), drop()}}
	if spec.TCPLiberal {
		rules = []rule{{ctState("invalid", expr.CtStateBitINVALID, true), counter()}}
	}
	return []chain{base("filter", forwardChain, atForward, priorityFilter, rules...)}
}

// forwardChain has the counter of invalid packets; see [Ruleset.Counters].
const forwardChain = "forward"

// scopeRules accept packets that are not to a service.
func scopeRules(t *table) []rule {
	return []rule{
		{t.serviceKey().in(t.scope), jump("new_flows")},
		{t.daddrKey().in(t.nodePortAddr), servicePortKey().in(t.nodePort), jump("new_flows")},
		{t.daddrKey().in(t.local), servicePortKey().in(t.refusedPort), jump("new_flows")},
	}
}

// queueOutput sends packets that originate on the node to the queues through a chain.
func (spec *Spec) queueOutput(t *table, queue string) []rule {
	var rules []rule
	if spec.LocalhostNodePorts && t.family == ipv4 {
		rules = append(rules, rule{t.toLoopback(), servicePortKey().in(t.nodePort), jump("new_flows")})
	}
	// Otherwise, packets that the node sends to itself on loopback addresses are not to a service,
	// and must not depend on the daemon.
	return append(rules,
		rule{t.toLoopback(), servicePortKey().in(t.refusedPort), jump("new_flows")},
		rule{t.toLoopback(), accept()},
		rule{jump(queue)})
}

// localnet closes loopback addresses to untranslated packets from elsewhere.
func (spec *Spec) localnet() []rule {
	if !spec.LocalhostNodePorts {
		return nil
	}
	return []rule{{ipv4.toLoopback(), notFromLoopback(), ctState("established,related", expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED, false), translated(false), counter(), drop()}}
}

// queueing is the chain that sends the first packet of each flow to the queues. The counters include packets that
// did not fit into the queues: see [Ruleset.Counters].
func (spec *Spec) queueing(t *table) chain {
	rules := []rule{
		{l4proto(udp), t.flowKey().in(t.seen), t.flowKey().refreshed(t.seen, 0), accept()},
	}
	// Multicast and broadcast have no services, and conntrack no lasting entry.
	if t.family == ipv4 {
		rules = append(rules,
			rule{t.daddrIn("224.0.0.0/4", []byte{0xf0}, []byte{0xe0}), accept()},
			rule{t.daddrIn("255.255.255.255", []byte{255, 255, 255, 255}, []byte{255, 255, 255, 255}), accept()})
	} else {
		rules = append(rules, rule{t.daddrIn("ff00::/8", []byte{0xff}, []byte{0xff}), accept()})
	}
	rules = append(rules, rule{l4proto(sctp), sctpInit(false), accept()}, rule{jump("decide")})
	if spec.OnlyServices {
		rules = append(rules, spec.queueRules(t, spec.FirstQueue)...)
	} else {
		toService := spec.toQueue(t, spec.FirstQueue)
		rules = slices.Concat(rules, []rule{
			slices.Concat(rule{t.serviceKey().in(t.service)}, toService),
			slices.Concat(rule{t.daddrKey().in(t.nodePortAddr), servicePortKey().in(t.nodePort)}, toService),
		}, spec.queueRules(t, spec.FirstQueue+spec.Queues))
	}
	return chain{name: queueingChain, rules: rules}
}

// toQueue sends packets to one of Queues queues from first on.
func (spec *Spec) toQueue(t *table, first uint16) rule {
	return append(t.whileAlive(), counter(), queue(first, spec.Queues, spec.Native))
}

// queueRules send packets of all protocols that services have to queues from first on.
func (spec *Spec) queueRules(t *table, first uint16) []rule {
	queued := func(match ...clause) rule { return slices.Concat(rule(match), spec.toQueue(t, first)) }
	return []rule{queued(l4proto(tcp)), queued(l4proto(udp)), queued(l4proto(sctp), sctpInit(true))}
}

// slippedRules handle undecided packets to a service address: the entry of their flow vanished, or
// they passed while no daemon listened. UDP is forgotten, so that the next datagram is queued; a
// new TCP connection or SCTP association waits for its retransmission; a TCP connection in the
// middle is reset, so that it does not hang.
func slippedRules(t *table) []rule {
	var rules []rule
	for _, to := range [][]clause{
		{t.serviceKey().in(t.service)},
		{t.daddrKey().in(t.nodePortAddr), servicePortKey().in(t.nodePort)},
	} {
		slipped := func(rest ...clause) { rules = append(rules, slices.Concat(rule(to), rest)) }
		slipped(l4proto(udp), t.flowKey().deleted(t.seen), counter(), drop())
		slipped(l4proto(tcp), tcpSyn(false), counter(), rejectReset())
		slipped(counter(), drop())
	}
	return rules
}

// String prints the ruleset in nft's language. The queue statement is printed as nft's own even if
// the kernel gets xtables' target.
func (spec Spec) String() string {
	var b strings.Builder
	for _, t := range newTables(&spec) {
		fmt.Fprintf(&b, "table %s {\n", t)
		for _, set := range t.sets {
			fmt.Fprintf(&b, "\t%s\n", set)
		}
		for _, c := range spec.chains(t) {
			fmt.Fprintf(&b, "\tchain %s {\n", c.name)
			if c.kind != "" {
				fmt.Fprintf(&b, "\t\ttype %s hook %s priority %d; policy accept;\n", c.kind, c.hook, c.priority)
			}
			for _, r := range c.rules {
				fmt.Fprintf(&b, "\t\t%s\n", r.text())
			}
			b.WriteString("\t}\n")
		}
		b.WriteString("}\n")
	}
	return b.String()
}
