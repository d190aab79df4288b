package survey

import (
	"net/netip"
	"slices"
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

// strays finds such endpoints of the services that were followed.
func (s *surveyor) strays() {
	at := make(map[netip.Addr]int)
	seen := make(map[string]bool)
	for i := range s.targets {
		port := s.targets[i].port
		if port == nil || seen[port.Title()] {
			continue
		}
		seen[port.Title()] = true
		for _, e := range port.Endpoints {
			to := e.AddrPort.Addr()
			if !to.IsValid() {
				continue
			}
			n, known := at[to]
			if !known {
				route, other, is := s.machine.OnlyDefault(to)
				if !is {
					at[to] = -1
					continue
				}
				n = len(s.survey.Strays)
				at[to] = n
				s.survey.Strays = append(s.survey.Strays, Stray{To: to, Gateway: route.Via, Other: other.Destination, OtherVia: other.Via})
			}
			if n >= 0 && !slices.Contains(s.survey.Strays[n].Titles, port.Title()) {
				s.survey.Strays[n].Titles = append(s.survey.Strays[n].Titles, port.Title())
			}
		}
	}
}
