//go:build linux

package netfilter

import (
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

func sourcePort(p *iptables.Packet) uint16 {
	if hasICMP(p.Protocol) {
		return p.ICMPID
	}
	return p.Source.Port()
}

// chosenBy are the ports that the kernel chose for the packet, as far as it shows them. Rules may set others later: the
// destination's is that behind the first chains of nat, and the source's that with which the packet leaves, or is delivered.
func chosenBy(o *observation) (source, destination uint16) {
	seen := make(map[string]iptables.Packet)
	for _, e := range slices.Backward(o.events) {
		p, ok := decode(e.packet)
		if !ok || e.chain == madeChain {
			continue
		}
		if len(seen) == 0 {
			source, destination = sourcePort(&p), p.Destination.Port()
		}
		seen[e.chain] = p
	}
	if p, ok := seen[sentChain]; ok && seen[deliveredChain].Protocol == 0 {
		source = sourcePort(&p)
	}
	for _, chain := range []string{cameTranslated, madeTranslated} {
		if p, ok := seen[chain]; ok {
			destination = p.Destination.Port()
		}
	}
	return source, destination
}

// alike reports whether there is one way, or several that leave the same entry: what a rule drew to translate a packet that is
// dropped then shows nowhere.
func alike(ways []Way) bool {
	left := func(w Way) kernelEntry {
		if w.Entry == nil || w.State.table[tupleKey{w.Entry.Original, w.Entry.Zone}].entry != w.Entry {
			return kernelEntry{}
		}
		return entryOf(w.Entry)
	}
	return len(ways) > 0 && !slices.ContainsFunc(ways, func(w Way) bool { return left(w) != left(ways[0]) })
}

// lastSeen reports whether a way ends where the trace shows the packet last: with these addresses, and in front of or behind the
// end of POSTROUTING.
func lastSeen(o *observation, w Way, local bool) bool {
	last := Postrouting.String()
	if len(w.Steps) > 0 {
		last = w.Steps[len(w.Steps)-1].Hook
	}
	behind := w.Verdict == Sent || local && (w.Verdict == Delivered || last == Prerouting.String() || last == Input.String()) // by lo
	if slices.ContainsFunc(o.events, func(e event) bool { return e.chain == sentChain }) != behind {
		return false
	}
	for _, e := range slices.Backward(o.events) {
		if seen, ok := decode(e.packet); ok && e.chain != madeChain {
			return seen.Source == w.Packet.Source && seen.Destination == w.Packet.Destination
		}
	}
	return false
}
