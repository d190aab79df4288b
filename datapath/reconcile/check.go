package reconcile

import (
	"net/netip"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Reason says why a flow was removed.
type Reason uint8

// The reasons for removing a flow.
const (
	// Stays: the flow is not removed.
	Stays Reason = iota
	// EndpointGone: it goes to what is no endpoint of its service, or to one that
	// serves no more while others do.
	EndpointGone
	// Untranslated: it began while its service had no endpoints, or while no proxy
	// decided; now there are endpoints.
	Untranslated
	// Unanswered: it is not translated and nobody answered it; its service has no
	// endpoints, so its next datagram is refused.
	Unanswered
	// ServiceGone: no service has the address any more.
	ServiceGone
	// MasqueradeGone: it was masqueraded by us to an address that is the node's no more.
	MasqueradeGone
	reasons
)

// Reasons are all reasons for removing a flow.
func Reasons() []Reason {
	return []Reason{EndpointGone, Untranslated, Unanswered, ServiceGone, MasqueradeGone}
}

// String returns the reason as a metric's label has it.
func (r Reason) String() string {
	switch r {
	case Stays:
		return "stays"
	case EndpointGone:
		return "endpoint-gone"
	case Untranslated:
		return "untranslated"
	case Unanswered:
		return "unanswered"
	case ServiceGone:
		return "service-gone"
	case MasqueradeGone:
		return "masquerade-address-gone"
	}
	return "unknown"
}

// judge reports whether a flow has to go. gone are frontends that went away, mark is the
// connection mark of our entries.
func (v *view) check(s *conntrack.State, gone *frontends, mark uint32) Reason {
	// Other zones are other people's; no service of ours is reached through them.
	if s.Original.Protocol != uint8(decision.UDP) || s.Zone != 0 {
		return Stays
	}
	dst := s.Original.Destination
	ours, translated := s.Mark&mark != 0, s.Status&conntrack.StatusDestinationNAT != 0
	byAddress, byNodePort := v.at(dst)
	if byNodePort != nil && !v.table.OpensNodePorts(dst.Addr()) {
		byNodePort = nil // kube-proxy does not ask, and hits flows to other hosts
	}
	why := Stays
	switch {
	case byAddress == nil && byNodePort == nil:
		if translated && (ours || v.wasBehind(gone, s)) {
			return ServiceGone
		}
		return Stays
	case byNodePort == nil:
		why = byAddress.check(s)
	case byAddress == nil:
		why = byNodePort.check(s)
	default:
		// The node port gets the packets that the address's service leaves alone.
		if why = byAddress.check(s); why != Stays && byNodePort.check(s) == Stays {
			why = Stays
		}
	}
	if why == Stays && ours && s.Masqueraded() && v.notLocal(s.Reply.Destination.Addr()) {
		return MasqueradeGone
	}
	return why
}

// wasBehind reports whether the flow goes to an endpoint of a service that is gone.
func (v *view) wasBehind(gone *frontends, s *conntrack.State) bool {
	byAddress, byNodePort := gone.at(s.Original.Destination)
	if byNodePort != nil && !v.table.IsLocal(s.Original.Destination.Addr()) {
		byNodePort = nil
	}
	for _, b := range []*backends{byAddress, byNodePort} {
		if b != nil {
			if _, ok := b.serving[s.Endpoint()]; ok {
				return true
			}
		}
	}
	return false
}

// notLocal reports whether the address is known not to be the node's.
func (v *view) notLocal(a netip.Addr) bool {
	return len(v.table.Node().Addresses) > 0 && !v.table.IsLocal(a)
}

// judge reports whether a flow to the service has to go.
func (b *backends) check(s *conntrack.State) Reason {
	stay, known := b.serving[s.Endpoint()]
	translated := s.Status&conntrack.StatusDestinationNAT != 0
	switch {
	case stay:
		return Stays
	case b.anyServing && translated:
		return EndpointGone
	case b.anyServing:
		return Untranslated
	// Without a better one, a flow stays with an endpoint that serves no more, as with
	// kube-proxy; but not with one that is no more: its address may be another pod's.
	case translated && !known:
		return EndpointGone
	// kube-proxy's rules refuse every datagram of a flow until it is answered.
	case !translated && !b.hasEndpoints && s.Status&conntrack.StatusSeenReply == 0:
		return Unanswered
	}
	return Stays
}
