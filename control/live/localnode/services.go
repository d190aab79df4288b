package localnode

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"github.com/nfqproxy/nfqproxy/control/live/journal"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Services returns the services of the table in force, with the counts of the journal.
func (n *Node) Services(ctx context.Context, q observe.ServiceQuery) (*observe.Services, error) {
	var answer *observe.Services
	next, err := n.EachService(ctx, q, func(head *observe.Services) error {
		answer = head
		return nil
	}, func(s *observe.Service) error {
		answer.Services = append(answer.Services, *s)
		return nil
	})
	if err != nil {
		return nil, err
	}
	answer.Next = next
	return answer, nil
}

// EachService implements [observe.ServiceStreamer].
func (n *Node) EachService(ctx context.Context, q observe.ServiceQuery, head func(*observe.Services) error, each func(*observe.Service) error) (next string, err error) {
	f, err := q.Parse()
	if err != nil {
		return "", err
	}
	t := n.config.Table()
	if t == nil {
		return "", notReady()
	}
	if err := head(&observe.Services{Nodes: []string{n.config.Name}, Services: []observe.Service{}, Lost: n.config.Journal.Lost()}); err != nil {
		return "", err
	}
	// Almost in this order already: the ports of a Service are in that of its spec.
	services := slices.SortedFunc(slices.Values(t.Services()), func(a, b *decision.ServicePort) int { return keyOf(a).Compare(keyOf(b)) })
	var last observe.ServiceKey
	given := 0
	for _, s := range services {
		if !f.Match(s.Name) || keyOf(s).Compare(f.After) <= 0 {
			continue
		}
		counts, had := n.config.Journal.Counts(s)
		if !had && f.Active {
			continue
		}
		if err := ctx.Err(); err != nil {
			return "", err
		}
		if f.Limit > 0 && given == f.Limit {
			return last.String(), nil
		}
		d := describe(s, &counts)
		if q.Changes {
			d.Changes = n.config.Journal.Changes(s)
			for i := range d.Changes {
				d.Changes[i].Node = n.config.Name
			}
		}
		if err := each(&d); err != nil {
			return "", err
		}
		last, given = keyOf(s), given+1
	}
	return "", nil
}

func keyOf(s *decision.ServicePort) observe.ServiceKey {
	return observe.ServiceKey{ServicePortName: s.Name, Family: s.Family.String()}
}

// describe describes a service port with its counts, which it consumes.
func describe(s *decision.ServicePort, c *journal.ServiceCounts) observe.Service {
	d := observe.Service{
		Service: s.Name.String(), Namespace: s.Name.Namespace, Name: s.Name.Name, PortName: s.Name.Port,
		Family: s.Family.String(), Protocol: s.Protocol.String(), ClusterIP: s.ClusterIP.String(), Port: s.Port, NodePort: s.NodePort,
		ExternalIPs: s.ExternalIPs, LoadBalancerIPs: s.LoadBalancerIPs,
		InternalPolicy: s.InternalPolicy.String(), ExternalPolicy: s.ExternalPolicy.String(), AffinitySeconds: s.AffinitySeconds, Balance: s.Balance,
		Flows: c.Flows, Refused: c.Refused, Endpoints: []observe.Endpoint{}, Fit: fit(s, c),
	}
	all := c.Draws[decision.Cluster] + c.Draws[decision.Local]
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if decision.FamilyOf(e.AddrPort.Addr()) != s.Family {
			continue
		}
		of := c.Endpoints[e.AddrPort]
		delete(c.Endpoints, e.AddrPort)
		end := observe.Endpoint{
			Endpoint: e.AddrPort.String(), Pod: e.Pod, Node: e.NodeName, Local: e.Local, Flows: of.Flows,
			Observed: share(of.Draws[decision.Cluster]+of.Draws[decision.Local], all), Expected: expected(s, uint32(i), c),
		}
		if why := e.Exclusions[s.InternalPolicy]; why != 0 {
			end.Excluded = why.String()
		}
		d.Endpoints = append(d.Endpoints, end)
	}
	// What is left are removed endpoints that had flows.
	for _, a := range slices.SortedFunc(maps.Keys(c.Endpoints), netip.AddrPort.Compare) {
		of := c.Endpoints[a]
		d.Endpoints = append(d.Endpoints, observe.Endpoint{Endpoint: a.String(), Pod: of.Pod, Node: of.Node, Removed: true, Flows: of.Flows})
	}
	return d
}

func share(part, all uint64) float64 {
	if all == 0 {
		return 0
	}
	return float64(part) / float64(all)
}

// expected is the expected share of an endpoint of the random selections; without any, of those for
// the ClusterIP. It is 0 for other algorithms, whose shares depend on what they see.
func expected(s *decision.ServicePort, i uint32, c *journal.ServiceCounts) (e float64) {
	if s.Balance != "" {
		return 0
	}
	draws := c.Draws
	if draws == [2]uint64{} {
		draws[s.InternalPolicy] = 1
	}
	for p, n := range draws {
		usable := s.Usable[p]
		if _, ok := slices.BinarySearch(usable, i); ok {
			e += share(n, draws[0]+draws[1]) / float64(len(usable))
		}
	}
	return e
}

// fit counts the selections since the endpoints or the algorithm last changed, and tests random ones;
// nil: there are none.
func fit(s *decision.ServicePort, c *journal.ServiceCounts) *observe.Fit {
	f := &observe.Fit{Since: c.Since, Draws: c.Draws[decision.Cluster] + c.Draws[decision.Local]}
	if f.Draws == 0 {
		return nil
	}
	for p, draws := range c.Draws {
		usable := s.Usable[p]
		if s.Balance != "" || draws == 0 || len(usable) == 0 {
			continue
		}
		want := float64(draws) / float64(len(usable))
		for _, i := range usable {
			d := float64(c.Endpoints[s.Endpoints[i].AddrPort].Draws[p]) - want
			f.ChiSquare += d * d / want
		}
		f.DegreesOfFreedom += len(usable) - 1
	}
	f.PValue = observe.PValue(f.ChiSquare, f.DegreesOfFreedom)
	return f
}

// digest is the [observe.Table.Digest] of the latest table that it was computed for. It is safe for concurrent use.
type digest struct {
	mu    sync.Mutex
	table *decision.Table
	text  string
}

func (d *digest) of(t *decision.Table) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.table == t {
		return d.text
	}
	d.table, d.text = t, Digest(t)
	return d.text
}

// Digest is the [observe.Table.Digest] of a table.
func Digest(t *decision.Table) string {
	h := fnv.New64a()
	var buf []byte
	for _, s := range t.Services() {
		fmt.Fprintf(h, "%s %s %s %s %d %d %v %v %v %d %d %d %s\n", s.Name, s.Protocol, s.Family, s.ClusterIP, s.Port, s.NodePort,
			s.ExternalIPs, s.LoadBalancerIPs, s.SourceRanges, s.InternalPolicy, s.ExternalPolicy, s.AffinitySeconds, s.Balance)
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			buf = e.AddrPort.AppendTo(buf[:0])
			buf = append(buf, ' ', flag(e.Ready), flag(e.Serving), ' ')
			buf = append(strconv.AppendUint(buf, uint64(e.Weight), 10), '\n')
			_, _ = h.Write(buf) // it cannot fail
		}
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

func flag(set bool) byte {
	if set {
		return '1'
	}
	return '0'
}
