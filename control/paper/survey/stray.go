package survey

import (
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/distinct"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// Stray is an endpoint to which only the default route of the node leads, although it has routes of its own to others.
type Stray struct {
	To      netip.Addr
	Gateway netip.Addr
	// Other is the network of other endpoints that the node has a route to, by the gateway OtherVia.
	Other    netip.Prefix
	OtherVia netip.Addr
	// Titles are the service ports with the endpoint.
	Titles []string
}

// Unanswered is a neighbour that did not answer the node the last time it asked for its hardware address.
type Unanswered struct {
	netfilter.Neighbour
	// To are endpoints that the node sends packets for to it, and Titles their service ports.
	To     []netip.Addr
	Titles []string
}

// endpointTitles are the endpoints of the services that were followed, in their order, and the service ports of each.
func (s *surveyor) endpointTitles() (all []netip.Addr, titles map[netip.Addr][]string) {
	titles = make(map[netip.Addr][]string)
	seen := make(map[string]bool)
	for i := range s.targets {
		port := s.targets[i].port
		if port == nil || seen[port.Title()] {
			continue
		}
		seen[port.Title()] = true
		for _, e := range port.Endpoints {
			to := e.AddrPort.Addr()
			switch known := titles[to]; {
			case !to.IsValid():
			case known == nil:
				all = append(all, to)
				fallthrough
			case known[len(known)-1] != port.Title():
				titles[to] = append(known, port.Title())
			}
		}
	}
	return all, titles
}

// atNeighbours finds what is wrong with the next steps of packets to the endpoints, which rules and routes do not show.
func (s *surveyor) atNeighbours() {
	all, titles := s.endpointTitles()
	at := make(map[netip.Addr]int)
	for _, to := range all {
		if route, other, is := s.machine.OnlyDefault(to); is {
			s.survey.Strays = append(s.survey.Strays, Stray{To: to, Gateway: route.Via, Other: other.Destination, OtherVia: other.Via, Titles: titles[to]})
		}
		n, is := s.machine.Unanswered(to)
		if !is {
			continue
		}
		if _, known := at[n.Addr]; !known {
			at[n.Addr] = len(s.survey.Unanswered)
			s.survey.Unanswered = append(s.survey.Unanswered, Unanswered{Neighbour: n})
		}
		u := &s.survey.Unanswered[at[n.Addr]]
		u.To = append(u.To, to)
		u.Titles = distinct.Append(u.Titles, titles[to]...)
	}
}
