package noderules

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// Listing is the output of a program that lists a host's rules.
type Listing struct {
	Program string // as "iptables-nft-save"; ip6... lists rules of IPv6
	Text    string
}

// Host is the rules of a host, of all families and back ends of iptables. It is immutable.
type Host struct {
	tables []rules
	native map[iptables.Family]*native // of nftables, as far as they are known
}

// rules are those of one listing.
type rules struct {
	program string
	dump    *iptables.Dump
	machine *netfilter.Machine
}

// NewHost reads the rules of a host. The error is about those that cannot be simulated; the others can be used.
func NewHost(listings []Listing, network *netfilter.Host) (*Host, error) {
	h := &Host{native: make(map[iptables.Family]*native)}
	var faults []error
	text := "" // of nftables
	for _, l := range listings {
		if strings.TrimSpace(l.Text) == "" {
			continue
		}
		if l.Program == NFTables {
			text = l.Text
			continue
		}
		d, err := l.dump()
		if err == nil && len(d.Tables) > 0 {
			var m *netfilter.Machine
			if m, err = netfilter.New([]*iptables.Dump{d}, nil, network, netfilter.Options{}); err == nil {
				h.tables = append(h.tables, rules{l.Program, d, m})
			}
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", l.Program, err))
		}
	}
	byIptables := tablesOfIptables(listings)
	for _, family := range []iptables.Family{iptables.IPv4, iptables.IPv6} {
		if text == "" {
			break
		}
		n, err := newNative(text, family, byIptables, network)
		if err != nil {
			faults = append(faults, err)
			break
		}
		h.native[family] = n
	}
	return h, errors.Join(faults...)
}

// family is that of a listing of iptables.
func (l *Listing) family() iptables.Family {
	if strings.HasPrefix(l.Program, "ip6") {
		return iptables.IPv6
	}
	return iptables.IPv4
}

// dump reads a listing of iptables.
func (l *Listing) dump() (*iptables.Dump, error) {
	return iptables.Parse(strings.NewReader(l.Text), iptables.Options{Family: l.family()})
}

// tablesOfIptables are the tables of nftables that are iptables-nft's, as "ip nat".
func tablesOfIptables(listings []Listing) map[string]bool {
	all := make(map[string]bool)
	for i := range listings {
		l := &listings[i]
		for line := range strings.Lines(l.Text) {
			if table, ok := strings.CutPrefix(line, "*"); ok && strings.Contains(l.Program, "-nft") {
				all[map[iptables.Family]string{iptables.IPv4: "ip", iptables.IPv6: "ip6"}[l.family()]+" "+strings.TrimSpace(table)] = true
			}
		}
	}
	return all
}

// Flow is a flow that a service proxy has decided.
type Flow struct {
	Protocol decision.Protocol
	// Source and Destination are the first packet's as it came to the host; Endpoint is the translated
	// destination, and Seen the source as the endpoint sees it.
	Source, Destination, Endpoint, Seen netip.AddrPort
	Local                               bool // the host itself sends it
	// Mark is the packet's mark, which the proxy sets.
	Mark uint32
}

// Dropped describes the rule that drops a flow.
type Dropped struct {
	*Drop
	Program string // that lists the rule
	Reply   bool   // it drops the replies
	// Packets is how many packets the kernel has counted at the rule, or at the policy; 0: none, or they were not
	// listed.
	Packets uint64
	// Text is the rule of nftables as nft prints it, or the policy; empty: it is of iptables.
	Text string
	// Remove is the command that removes the rule; empty: see Program.
	Remove    string
	Uncounted bool   // it has no counter
	Sometimes bool   // it drops packets now and then: at random, or above a number or a rate
	Full      string // the set without room that made it drop the packet; empty: none
}

// String is the rule as its program prints it, or the policy.
func (d *Dropped) String() string {
	if d.Text != "" {
		return d.Text
	}
	if d.Rule == nil {
		return "the policy DROP of chain " + d.Chain
	}
	return "rule " + d.Rule.String()
}

// Find finds what drops a flow or its replies on this host; nil: nothing does, as far as can be known.
func (h *Host) Find(f *Flow) *Dropped {
	family := iptables.IPv4
	if f.Destination.Addr().Is6() {
		family = iptables.IPv6
	}
	for i := range h.tables {
		r := &h.tables[i]
		if r.dump.Family != family {
			continue
		}
		drop, reply := r.follow(f)
		if drop == nil {
			continue
		}
		return &Dropped{Drop: drop, Program: r.program, Reply: reply, Packets: r.packets(drop)}
	}
	if n := h.native[family]; n != nil {
		return n.find(f)
	}
	return nil
}

// first is the first packet of a flow, and makes the state before it.
func (r *rules) first(f *Flow) (p iptables.Packet, begin func() *netfilter.State) {
	p = iptables.FirstPacket(uint8(f.Protocol), f.Source, f.Destination, f.Local)
	p.Mark = f.Mark
	return p, func() *netfilter.State {
		s := new(netfilter.State)
		if f.Destination != f.Endpoint || f.Source != f.Seen {
			s.Add(iptables.Connection{
				Original: iptables.Tuple{Protocol: p.Protocol, Source: f.Source, Destination: f.Destination},
				Reply:    iptables.Tuple{Protocol: p.Protocol, Source: f.Endpoint, Destination: f.Seen},
				SNAT:     f.Source != f.Seen, DNAT: f.Destination != f.Endpoint,
			})
		}
		return s
	}
}

// after is the state after the first packet, which makes no choice.
func (r *rules) after(p iptables.Packet, begin func() *netfilter.State) *netfilter.State {
	s := begin()
	if !p.Local {
		r.machine.Place(&p)
	}
	r.machine.Send(p, s, rand.New(rand.NewPCG(1, 0)))
	return s
}

// follow follows the first packet of a flow and the reply.
func (r *rules) follow(f *Flow) (drop *Drop, reply bool) {
	p, begin := r.first(f)
	ways := allWays(r.machine, p, begin)
	if drop = common(ways); drop != nil || len(ways) != 1 { // with several ways the reply depends on them
		return drop, false
	}
	answer, ok := ways[0].Answer()
	if !ok {
		return nil, false
	}
	return common(allWays(r.machine, answer, func() *netfilter.State { return r.after(p, begin) })), true
}

// packets is the kernel's count.
func (r *rules) packets(d *Drop) uint64 {
	counters := (*iptables.Counters)(nil)
	if d.Rule != nil {
		counters = d.Rule.Counters
	} else if t := r.dump.Table(d.Table); t != nil && t.Chain(d.Chain) != nil {
		counters = t.Chain(d.Chain).Counters
	}
	if counters == nil {
		return 0
	}
	return counters.Packets
}

// Drop is the end of a packet.
type Drop struct {
	// Rule drops the packet; nil: the policy of the chain does.
	Rule         *iptables.Rule
	Table, Chain string
	Rejected     bool // the sender gets an error
}

// common is the drop at the end of all ways, as the last of them shows it; nil: one has none.
func common(ways []netfilter.Way) (found *Drop) {
	for i := range ways {
		if found = ended(ways[i].Result); found == nil {
			return nil
		}
	}
	return found
}

// allWays are all ways of a packet; none, if there are too many. begin makes the state before the packet; nil: that of a host that
// has just booted.
func allWays(m *netfilter.Machine, p iptables.Packet, begin func() *netfilter.State) []netfilter.Way {
	if !p.Local {
		m.Place(&p)
	}
	if m.Check(&p) != nil {
		return nil
	}
	const most = 50
	ways, rest := m.Explore(p, begin, most)
	if rest > 0 {
		return nil
	}
	return ways
}

// ended is the drop at the end of a walk; nil: there is none, or routing drops the packet.
func ended(r *netfilter.Result) *Drop {
	if r.Verdict != netfilter.Dropped && r.Verdict != netfilter.Rejected || r.Chain == "" {
		return nil
	}
	return &Drop{Rule: r.By, Table: r.Table, Chain: r.Chain, Rejected: r.Verdict == netfilter.Rejected}
}
