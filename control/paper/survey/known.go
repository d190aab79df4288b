package survey

import (
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// knownPod finds a pod by the routes and addresses of a host of which all are known: the one at the end of a route to one
// address in the pods' network, or one of a network in it that the host leads to by another device than its uplink. false:
// they show none.
func (s *surveyor) knownPod(uplink string) bool {
	pods := s.podNetwork()
	if !pods.IsValid() {
		pods = s.proxy().NodePodCIDR
	}
	if !s.host.Complete() || !pods.IsValid() {
		return false
	}
	set := func(a netip.Addr, device string) bool {
		if a.IsValid() {
			s.sources[Pod] = &Source{Kind: Pod, Addr: a, Device: device}
		}
		return a.IsValid()
	}
	inside := func(p netip.Prefix, device string) bool {
		return device != uplink && device != "" && decision.FamilyOf(p.Addr()) == s.family() && pods.Bits() <= p.Bits() && pods.Contains(p.Addr())
	}
	for _, r := range s.host.Routes {
		if r.Type == netfilter.Unicast && !r.Via.IsValid() && r.Destination.IsSingleIP() && inside(r.Destination, r.Interface) {
			return set(r.Destination.Addr(), r.Interface)
		}
	}
	for _, i := range s.host.Interfaces {
		for _, a := range i.Addresses {
			if !a.Prefix.IsSingleIP() && inside(a.Prefix, i.Name) && set(freeIn(a.Prefix.Masked(), s.taken(), netip.Prefix{}), i.Name) {
				return true
			}
		}
	}
	for _, r := range s.host.Routes {
		if r.Type == netfilter.Unicast && !r.Via.IsValid() && !r.Destination.IsSingleIP() && inside(r.Destination, r.Interface) &&
			set(freeIn(r.Destination, s.taken(), netip.Prefix{}), r.Interface) {
			return true
		}
	}
	return false
}

// placeKnownPods adds those of the pods that rules name that are on this node.
func (s *surveyor) placeKnownPods(uplink string) {
	for _, a := range s.namedPods() {
		if device := deviceTo(s.host, a, uplink); device != uplink {
			s.named = append(s.named, &Source{Kind: NamedPod, Addr: a, Device: device})
		}
	}
}
