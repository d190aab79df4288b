package survey

import (
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Connection is a connection to follow.
type Connection struct {
	Protocol decision.Protocol
	From     netip.Addr // not valid: the node itself
	To       netip.AddrPort
}

// only leaves the target and the source of the one connection that is asked for. A destination that is no service's is
// followed all the same.
func (s *surveyor) only() {
	c := s.known.Only
	if c == nil {
		return
	}
	s.one = s.sourceOf(c.From)
	at := func(to netip.AddrPort) func(target) bool {
		return func(t target) bool { return t.to == to && t.protocol == c.Protocol }
	}
	if !slices.ContainsFunc(s.targets, at(c.To)) && s.host.Has(c.To.Addr()) {
		// A node port is a target at one of the host's addresses.
		if i := slices.IndexFunc(s.targets, at(netip.AddrPortFrom(s.address, c.To.Port()))); i >= 0 && s.targets[i].entry == decision.EntryNodePort {
			s.targets[i].to = c.To
		}
	}
	s.targets = slices.DeleteFunc(s.targets, func(t target) bool { return !at(c.To)(t) })
	if s.survey.Destinations = len(s.targets); len(s.targets) == 0 {
		s.targets = []target{{port: &audit.Service{Protocol: c.Protocol, Family: s.family(), ClusterIP: c.To.Addr(), Port: c.To.Port()}, to: c.To, protocol: c.Protocol}}
	}
}

// sourceOf is a source by its address.
func (s *surveyor) sourceOf(a netip.Addr) *Source {
	if !a.IsValid() || s.host.Has(a) {
		return &Source{Kind: Node}
	}
	uplink := uplinkOf(s.host, s.family())
	from := &Source{Kind: Outside, Addr: a, Device: deviceTo(s.host, a, uplink)}
	switch {
	case from.Device != uplink:
		from.Kind = Pod
	case s.podNetwork().Contains(a):
		from.Kind = OtherPod
	}
	return from
}
