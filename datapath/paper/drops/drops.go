// Package drops finds the rules of a host that drop packets, by the simulator: those of new connections, and those of
// flows that a service proxy has translated already.
package drops

import (
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// Drop is the end of a packet.
type Drop struct {
	// Rule drops the packet; nil: the policy of the chain does.
	Rule         *iptables.Rule
	Table, Chain string
	Rejected     bool // the sender gets an error
}

// First is the first packet of a connection. local: the host itself sends it; an unspecified source is then the one
// that the host selects.
func First(protocol decision.Protocol, from, to netip.AddrPort, local bool) iptables.Packet {
	p := iptables.Packet{Protocol: uint8(protocol), Source: from, Destination: to, Local: local, Length: 60, TTL: 64, Supposed: iptables.FactMAC}
	switch protocol {
	case decision.TCP:
		p.Flags = iptables.SYN
		p.TCPOptions, p.MSS = synOptions, 1460
		if to.Addr().Is6() {
			p.MSS = 1440
		}
	case decision.SCTP:
		p.Chunks = []iptables.ChunkType{{Type: 1}} // INIT (RFC 9260)
	}
	if local {
		p.Owner, p.Supposed = new(iptables.SocketOwner), iptables.FactOwner
	}
	return p
}

// synOptions are the TCP options of a SYN from Linux on Ethernet: segment size, selective acknowledgment, timestamps, padding
// and window scale (tcp_output.c).
var synOptions = []uint8{2, 4, 8, 1, 3}

// Find finds what drops or rejects a packet on every way that it may go; nil: nothing does, or it depends on what the
// rules do not show. begin makes the state before the packet; nil: that of a host that has just booted.
func Find(m *netfilter.Machine, p iptables.Packet, begin func() *netfilter.State) *Drop {
	return common(explore(m, p, begin))
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

// explore are all ways of a packet; none, if there are too many.
func explore(m *netfilter.Machine, p iptables.Packet, begin func() *netfilter.State) []netfilter.Way {
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
	if r.Verdict != netfilter.Dropped && r.Verdict != netfilter.Rejected || len(r.Steps) == 0 {
		return nil
	}
	last := &r.Steps[len(r.Steps)-1]
	if r.By == nil && last.Outcome != flow.StepPolicy {
		return nil
	}
	return &Drop{Rule: r.By, Table: last.Table, Chain: last.Chain, Rejected: r.Verdict == netfilter.Rejected}
}
