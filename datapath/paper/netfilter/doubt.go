package netfilter

import (
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// Doubt is a rule on the way of a packet that may match or not, or whose effect is not known. A walk
// with [Options.Doubts] takes one of the possibilities; another way takes the other.
type Doubt struct {
	Rule  *iptables.Rule
	Table string
	// Match is what the result depends on; nil: the effect of the rule's target is not known, or the
	// rules do not have the chain that it jumps to.
	Match iptables.Match
	// Matched: on this way, the rule matches; without a Match: the walk ends there.
	Matched bool
}

// passing is what decides anew for each packet: random choices, and other packets.
const passing = iptables.FactRandom | iptables.FactMemory | iptables.FactShared

// Passing reports whether the result depends on chance or on other packets, so that it differs from
// packet to packet. Else it is the same for all such packets, and not known.
func (d *Doubt) Passing() bool { return d.Match != nil && iptables.Reads(d.Match)&passing != 0 }

// evenProbability is the probability of a fork that is no random choice of the kernel.
const evenProbability = 0.5

// endpointPrefix begins the names of kube-proxy's chains for one endpoint.
const endpointPrefix = "KUBE-SEP-"

// choosesEndpoint reports whether the rule is one of those with which kube-proxy selects an endpoint:
// the choice is meant.
func (r *rule) choosesEndpoint(c *chain) bool {
	return c.nat && r.jump != nil && strings.HasPrefix(r.jump.name, endpointPrefix)
}

// doubtful is agrees for a walk that follows doubts: what is certain is evaluated first, so that each
// rule is one fork at most. A rule that makes no difference does not match.
func (w *walk) doubtful(c *chain, r *rule) (iptables.Truth, iptables.Match) {
	var in iptables.Match        // doubt
	var effects []iptables.Match // that happen if the rule matches, or not
	chooses := r.choosesEndpoint(c)
	for i, m := range r.matches() {
		w.Rule, w.Match = r.Rule, i
		t := iptables.Unknown
		if isEffect(m) {
			if in != nil {
				effects = append(effects, m)
				continue
			}
			switch w.Evaluate(m) {
			case iptables.False: // such as a set without room
				return iptables.False, m
			case iptables.Unknown:
				in = m
			}
			continue
		}
		if chooses || isSet(m) || iptables.Reads(m)&passing == 0 && !w.anyOwner(m) {
			t = w.Evaluate(m)
		}
		if w.hidden(m, t) {
			t = iptables.Unknown
		}
		switch {
		case t == iptables.False:
			return t, m
		case t == iptables.Unknown && in == nil:
			in = m
		}
	}
	if in == nil {
		return iptables.True, nil
	}
	if r.Target == nil && effects == nil && iptables.Reads(in)&iptables.FactOther == 0 || r.Harmless() || !w.doubt(c, r, in) {
		return iptables.False, in
	}
	for _, m := range effects {
		w.Evaluate(m)
	}
	return iptables.True, nil
}

// isEffect reports whether a match is an effect of a rule of nftables, at its place among the others.
func isEffect(m iptables.Match) bool {
	n, ok := m.(iptables.NativeMatch)
	return ok && n.Effect()
}

// hidden reports whether a match may have another result than this one for packets like this one: for later packets, with
// their content, or because packets pass ports of a bridge.
func (w *walk) hidden(m iptables.Match, t iptables.Truth) bool {
	switch m := m.(type) {
	case iptables.String:
		return t == iptables.False && !m.Negated && w.Packet.Protocol == protoTCP
	case iptables.Length:
		never := m.Range.First > m.Range.Last && !m.Negated
		return t == iptables.False && !never
	case iptables.IPsec: // that of pods is not encrypted here
		device := w.In
		if m.Out {
			device = w.Out
		}
		return device != "" && device != "lo" && !isPodDevice(device)
	case iptables.Physdev:
		return MayBridge(w.In) || MayBridge(w.Out)
	}
	return false
}

// MayBridge reports whether a device of that name is a bridge, by the habits of programs.
func MayBridge(device string) bool {
	return isPodDevice(device) && !OfOnePod(device) || isDockerBridge(device) || strings.HasPrefix(device, "br") || strings.HasPrefix(device, "virbr")
}

// anyOwner reports whether a match is about the user or group of a program of this host, which may be any.
func (w *walk) anyOwner(m iptables.Match) bool {
	return w.Packet.Owner != nil && iptables.Reads(m)&w.Packet.Supposed&iptables.FactOwner != 0
}

// isSet reports whether a match adds to a list of -m recent, and matches every packet.
func isSet(m iptables.Match) bool {
	recent, ok := m.(iptables.Recent)
	return ok && recent.Mode == iptables.RecentSet
}

// doubt forks the walk.
func (w *walk) doubt(c *chain, r *rule, in iptables.Match) bool {
	matched := w.chooser.coin(evenProbability)
	w.result.Doubts = append(w.result.Doubts, Doubt{Rule: r.Rule, Table: c.table, Match: in, Matched: matched})
	return matched
}
