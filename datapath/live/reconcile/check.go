package reconcile

import (
	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Reason is the reason for removing a flow.
type Reason uint8

// The reasons for removing a flow.
const (
	// Stays: the flow is not removed.
	Stays Reason = iota
	// EndpointGone: its destination is not an endpoint of its service, or one that is no longer
	// serving while others are.
	EndpointGone
	// Untranslated: it began while its service had no endpoints, or without a proxy; now there are
	// endpoints.
	Untranslated
	// Unanswered: it is not translated and has no replies; its service has no endpoints, so its
	// next datagram is refused.
	Unanswered
	// ServiceGone: no service has the address anymore.
	ServiceGone
	// MasqueradeGone: we masqueraded it to an address that the node no longer has.
	MasqueradeGone
)

// String returns the reason as in a metric's label.
func (r Reason) String() string {
	return [...]string{"stays", "endpoint-gone", "untranslated", "unanswered", "service-gone", "masquerade-address-gone"}[r]
}

// check returns the reason to remove a flow; Stays: it stays. gone are removed frontends.
func (v *view) check(s *conntrack.State, gone frontends) Reason {
	// Other zones belong to other programs; our services are not reached through them.
	if s.Original.Protocol != uint8(decision.UDP) || s.Zone != 0 {
		return Stays
	}
	dst := s.Original.Destination
	ours, translated := s.Mark&conntrack.DefaultMark != 0, s.Status&conntrack.StatusDestinationNAT != 0
	byAddress, byNodePort := v.at(dst)
	if byNodePort != nil && !v.table.OpensNodePorts(dst.Addr()) {
		byNodePort = nil // kube-proxy does not check this, and removes flows to other hosts
	}
	why := Stays
	switch {
	case byAddress == nil && byNodePort == nil:
		if translated && (ours || v.usedFrontend(gone, s)) {
			return ServiceGone
		}
		return Stays
	case byNodePort == nil:
		why = byAddress.check(s)
	case byAddress == nil:
		why = byNodePort.check(s)
	default:
		// The node port gets the packets that the address's service skips.
		if why = byAddress.check(s); why != Stays && byNodePort.check(s) == Stays {
			why = Stays
		}
	}
	known := len(v.table.Node().Addresses) > 0
	if why == Stays && ours && s.Masqueraded() && known && !v.table.IsLocal(s.Reply.Destination.Addr()) {
		return MasqueradeGone
	}
	return why
}

// usedFrontend reports whether the flow goes to an endpoint of a service that is gone.
func (v *view) usedFrontend(gone frontends, s *conntrack.State) bool {
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

// check returns the reason to remove a flow to the service; Stays: it stays.
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
	// Without a better one, a flow stays with an endpoint that is no longer serving, as with
	// kube-proxy; but not with one that no longer exists: its address may belong to another pod.
	case translated && !known:
		return EndpointGone
	// kube-proxy's rules refuse every datagram of a flow until its first reply.
	case !translated && !b.hasEndpoints && s.Status&conntrack.StatusSeenReply == 0:
		return Unanswered
	}
	return Stays
}
