package netfilter

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// Assumption is what to make of a match, or target, whose effect cannot be told.
type Assumption uint8

// The assumptions.
const (
	AssumeNothing Assumption = iota // the walk ends there
	AssumeMatch                     // it agrees; a target that is not known does nothing more
	AssumeNoMatch                   // it does not agree; a rule with a target that is not known is passed by
)

// Options say how a machine works.
type Options struct {
	Assume Assumption
	// AllRules tells of every rule that did not match by itself, in place of how many
	// there were in a row.
	AllRules bool
	// FreshCounters: the rules have just been loaded, so that the counters of -m
	// statistic --mode nth are known. On a host that has been running nobody knows
	// where they stand, and they draw.
	FreshCounters bool
}

// Machine is the rules of one family on a host. It is immutable and safe for concurrent
// use.
type Machine struct {
	family  iptables.Family
	partial bool // a listing
	// nftables: the rules are of the nf_tables back end of iptables.
	nftables bool
	chains   [tables]map[string]*chain
	sets     map[string]*iptables.Set
	network  *network
	options  Options
}

// New makes a machine. sets may be nil; it, the dump and the host are kept, and must not
// change any more. The error names the line of a rule that iptables-restore would not load, either.
func New(d *iptables.Dump, sets map[string]*iptables.Set, h *Host, o Options) (*Machine, error) {
	m := &Machine{family: d.Family, partial: d.Listing != nil, sets: sets, network: newNetwork(h, d.Family), options: o}
	var faults []error
	for _, t := range d.Tables {
		m.nftables = m.nftables || ofNFTables(t)
		if err := m.compile(t, m.partial); err != nil {
			faults = append(faults, err)
		}
	}
	return m, errors.Join(faults...)
}

// Verdict is what became of a packet.
type Verdict uint8

// The verdicts.
const (
	Sent      Verdict = iota // left the host by Result.Out
	Delivered                // reached the host's own sockets
	Dropped
	Rejected // refused, with the answer Result.With
	Queued   // waits for a program
	Stopped  // what the walk came to is not known: see Result.Unknown
	Returned // a single chain was walked to its end: see Machine.Find
)

var verdictNames = []string{"sent", "delivered", "dropped", "rejected", "queued", "unknown", "returned"}

func (v Verdict) String() string { return verdictNames[v] }

// Result is a packet's way.
type Result struct {
	// Probability is that of the choices on the way; 1 if there were none.
	Probability float64
	// Forks are the positions in Steps of those where the kernel drew.
	Forks []int
	Steps []flow.Step
	// Path are the rules that matched, in order.
	Path    []*iptables.Rule
	Verdict Verdict
	// By is the rule that gave the verdict; nil: no rule did. Why is then, or for a
	// verdict that routing gave, one sentence.
	By  *iptables.Rule
	Why string
	// Cut is why the walk was cut off, one sentence, where it took more than the [Work] it
	// was given; Verdict is Stopped then. Empty: it was not.
	Cut string
	// With is the answer to a Rejected packet.
	With iptables.RejectWith
	// Packet is the packet as it was in the end, and Out the device it left by.
	Packet Packet
	Out    string
	// Entry is its connection's entry; nil if it has none. It belongs to the State.
	Entry    *Entry
	Reply    bool // the packet is of the direction of answers
	Tracking Tracking
	// Unknown is the match that could not be told; valid iff Verdict is Stopped, and
	// nil if it is By's target that is not known, or a chain that is missing.
	Unknown iptables.Match
	// Assumptions are what was taken for granted on the way, one sentence each.
	Assumptions []string
}

// Explore follows all ways of a packet, the likeliest branch of each fork not
// necessarily first: in the order of the rules. begin makes the state that each way starts with; nil: that
// of a host that has just come up. At most limit ways are followed; rest is the
// probability of the others.
func (m *Machine) Explore(p Packet, begin func() *State, limit int) (ways []Way, rest float64) {
	return m.ExploreFrom(nil, p, begin, limit, NewWork())
}

// ExploreFrom is Explore for a walk that begins in a chain, as the first packet of a
// connection, and ends with it. A nil start is the beginning of all. No more work is spent
// than is given: of the ways only the first one may be cut off, others are left out.
func (m *Machine) ExploreFrom(start *Start, p Packet, begin func() *State, limit int, work *Work) (ways []Way, rest float64) {
	var s script
	rest = 1
	for {
		state := &State{}
		if begin != nil {
			state = begin()
		}
		r := m.walk(start, p, state, &s, work)
		if r.Cut != "" && len(ways) > 0 {
			return ways, rest
		}
		r.Probability = s.probability()
		rest -= r.Probability
		ways = append(ways, Way{r, state})
		if !s.next() {
			return ways, 0
		}
		if len(ways) >= limit || work.spent() != "" {
			return ways, rest
		}
	}
}

// Way is one of the ways a packet may go, and what it leaves behind.
type Way struct {
	*Result
	State *State
}

// Send leads one packet, and draws where there is a choice. The state changes.
func (m *Machine) Send(p Packet, s *State, r Rand) *Result {
	return m.SendFrom(nil, p, s, r, NewWork()).Result
}

// SendFrom is Send for a walk that begins in a chain, and spends no more work than is
// given: see ExploreFrom.
func (m *Machine) SendFrom(start *Start, p Packet, s *State, r Rand, work *Work) Way {
	return Way{m.walk(start, p, s, drawing{r}, work), s}
}

// Answer is the packet that answers the one of a result: from whom it reached, to whom
// it says it is from. It comes in where the other one left, or is made on the host.
// ok is false if nobody got the packet, or if it went to many.
func (r *Result) Answer() (p Packet, ok bool) {
	to := r.Packet.Destination.Addr()
	if r.Verdict != Sent && r.Verdict != Delivered || to.IsMulticast() || to == allOnes {
		return Packet{}, false
	}
	p = Packet{
		Protocol: r.Packet.Protocol, Source: r.Packet.Destination, Destination: r.Packet.Source,
		ICMPID: r.Packet.ICMPID, Length: r.Packet.Length, TTL: 64,
		Supposed: FactMAC | FactOwner | FactLength | FactTOS | FactTTL | FactOptions,
	}
	switch {
	case p.Protocol == protoTCP:
		p.Flags = iptables.SYN | iptables.ACK
		p.TCPOptions, p.MSS = r.Packet.TCPOptions, r.Packet.MSS
	case hasICMP(p.Protocol):
		p.ICMPType = icmpAnswer(p.Protocol, r.Packet.ICMPType)
	case p.Protocol == protoSCTP:
		p.Chunks = []iptables.ChunkType{{Type: 2}} // INIT ACK
	}
	if r.Verdict == Delivered {
		p.Local, p.Owner = true, &Owner{}
	} else {
		p.InInterface = r.Out
	}
	return p, true
}

// walk leads a packet from its beginning, or through one chain.
func (m *Machine) walk(start *Start, p Packet, s *State, c chooser, work *Work) *Result {
	r := &Result{Probability: 1}
	w := &walk{machine: m, state: s, chooser: c, packet: p, result: r, work: work}
	if !p.Local {
		w.in = p.InInterface
	}
	if start == nil {
		w.run()
	} else {
		w.single(start)
	}
	r.Packet, r.Reply, r.Tracking = w.packet, w.reply, w.tracking
	if w.tracked { // else it is a template
		r.Entry = w.entry
	}
	if r.Verdict == Sent {
		r.Out = w.out
	}
	return r
}

// Route finds the way to an address.
func (m *Machine) Route(to netip.Addr) Route { return m.network.route(to) }

// Place says where a packet comes from, by its source: made here if that is the host's
// own; else by the device that it says, or, if there is none of that name, by the one that
// leads to its source.
func (m *Machine) Place(p *Packet) {
	from := p.Source.Addr()
	if m.network.isLocal(from) {
		p.Local, p.InInterface = true, ""
	} else if m.network.device(p.InInterface) == nil {
		p.InInterface = m.network.route(from).Interface
	}
}

// Start is a chain that a walk may start in, instead of at a hook.
type Start struct {
	chain *chain
	hook  Hook
}

// Find finds the chain that is named "KUBE-SERVICES" or, where several tables have one
// of that name, "nat/KUBE-SERVICES". For rules that look at it the hook is the first
// from which the chain can be reached by a packet that is made here (local) or comes in.
func (m *Machine) Find(name string, local bool) (*Start, error) {
	var found []*chain
	table, plain, qualified := strings.Cut(name, "/")
	if !qualified {
		plain = name
	}
	for i, chains := range m.chains {
		if c := chains[plain]; c != nil && (!qualified || table == tableNames[i]) && (c.line != 0 || len(c.rules) > 0) {
			found = append(found, c)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("there is no chain %s among the rules", name)
	case 1:
		return &Start{found[0], m.hookOf(found[0], local)}, nil
	}
	var names []string
	for _, c := range found {
		names = append(names, c.table.String()+"/"+c.name)
	}
	return nil, fmt.Errorf("several tables have a chain %s: write %s", name, strings.Join(names, " or "))
}

// hookOf is a hook from which the chain is reached.
func (m *Machine) hookOf(c *chain, local bool) Hook {
	order := []Hook{Prerouting, Input, Forward, Postrouting, Output}
	if local {
		order = []Hook{Output, Postrouting, Input, Prerouting, Forward}
	}
	for _, h := range order {
		if b := m.chains[c.table][h.String()]; b != nil && reaches(b, c, make(map[*chain]bool)) {
			return h
		}
	}
	return order[0] // nothing leads there, or the listing does not show it
}

func reaches(from, to *chain, seen map[*chain]bool) bool {
	if from == to {
		return true
	}
	seen[from] = true
	for _, r := range from.rules {
		if r.jump != nil && !seen[r.jump] && reaches(r.jump, to, seen) {
			return true
		}
	}
	return false
}

// Check says what is wrong with a packet, for this machine.
func (m *Machine) Check(p *Packet) error {
	is4 := m.family != iptables.IPv6
	for _, a := range []netip.Addr{p.Source.Addr(), p.Destination.Addr()} {
		if a.Is4() != is4 {
			other, program := iptables.IPv6, "ip6tables-save"
			if a.Is4() {
				other, program = iptables.IPv4, "iptables-save"
			}
			return fmt.Errorf("%s is not an %s address, but the rules are of %s: %s prints those of %s", a, m.family, m.family, program, other)
		}
	}
	return nil
}
