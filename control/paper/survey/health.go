package survey

import (
	"net/netip"
	"strconv"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

const protoTCP = 6

// followHealthChecks follows connections from outside, and from networks that rules name, to the health check node ports of services.
// Load balancers may be in any of these.
func (s *surveyor) followHealthChecks() {
	if s.one != nil || !s.address.IsValid() {
		return
	}
	clients := append(s.otherNodes(), s.outsider())
	seen := make(map[uint16]bool)
	for _, n := range s.survey.Nodes {
		for _, port := range n.Services {
			if to := port.HealthCheckNodePort; to != 0 && !seen[to] {
				seen[to] = true
				if w := s.unhealthy(clients, netip.AddrPortFrom(s.address, to)); w != nil {
					s.loseHealthChecks(port.Title(), clients[0], netip.AddrPortFrom(s.address, to), w)
				}
			}
		}
	}
}

// unhealthy is a way of a connection that a rule or policy drops, if it is so for all clients for sure; nil: it is not.
func (s *surveyor) unhealthy(clients []netip.Addr, to netip.AddrPort) (lost *netfilter.Way) {
	work := netfilter.Work{Steps: 1, Visits: maxVisits}
	for _, in := range s.outerDevices() {
		for _, from := range clients {
			p := iptables.FirstPacket(protoTCP, netip.AddrPortFrom(from, sourcePort), to, false)
			p.InInterface = in
			w, all := ends(s.machine, p, newState, &work)
			if w == nil || !all {
				return nil
			}
			lost = w
		}
	}
	return lost
}

// loseHealthChecks records that a rule or policy drops the health checks of a service.
func (s *surveyor) loseHealthChecks(title string, from netip.Addr, to netip.AddrPort, w *netfilter.Way) {
	port := strconv.Itoa(int(to.Port()))
	for _, l := range s.order {
		if l.Effect == DropsHealthChecks && l.Rule == w.By && l.Table == w.Table && l.Chain == w.Chain {
			l.Titles, l.To = append(l.Titles, title), append(l.To, port)
			return
		}
	}
	l := &Loss{
		Effect: DropsHealthChecks, Certainty: Possible, Titles: []string{title}, To: []string{port}, Kinds: []Kind{Outside},
		Example: Example{Protocol: "TCP", Source: from.String(), To: to, From: Outside},
	}
	s.lose(l, w)
}
