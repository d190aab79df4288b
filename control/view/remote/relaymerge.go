package remote

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// servicesSum adds up the counts of services, node by node, and lists the changes of all. Other fields are those of the first node that has
// the service. The zero value is empty.
type servicesSum struct {
	sum  observe.Services
	at   map[observe.ServiceKey]int
	more bool // a node has more services than it returned
}

func (s *servicesSum) add(node *observe.Services) {
	if s.at == nil {
		s.at = make(map[observe.ServiceKey]int)
	}
	s.sum.Nodes = append(s.sum.Nodes, node.Nodes...)
	s.sum.Lost += node.Lost
	s.more = s.more || node.Next != ""
	for i := range node.Services {
		o := &node.Services[i]
		if i, known := s.at[o.Key()]; known {
			addService(&s.sum.Services[i], o)
			continue
		}
		s.at[o.Key()] = len(s.sum.Services)
		s.sum.Services = append(s.sum.Services, cloneService(o))
	}
}

// sorted returns the sum; add must not be called again.
func (s *servicesSum) sorted() *observe.Services {
	if s.sum.Nodes == nil {
		s.sum.Nodes = []string{}
	}
	if s.sum.Services == nil {
		s.sum.Services = []observe.Service{}
	}
	slices.SortFunc(s.sum.Services, func(a, b observe.Service) int { return a.Key().Compare(b.Key()) })
	return &s.sum
}

// page keeps the first services within the filter's limit.
func (s *servicesSum) page(f *observe.ServiceFilter) {
	if f.Limit > 0 && len(s.sum.Services) > f.Limit {
		s.sum.Services, s.more = s.sum.Services[:f.Limit], true
	}
	s.sum.Next = ""
	if s.more && len(s.sum.Services) > 0 {
		s.sum.Next = s.sum.Services[len(s.sum.Services)-1].Key().String()
	}
}

// cloneService copies the fields that addService changes.
func cloneService(s *observe.Service) observe.Service {
	c := *s
	c.Refused = maps.Clone(s.Refused)
	c.Endpoints = append([]observe.Endpoint{}, s.Endpoints...)
	c.Changes = slices.Clone(s.Changes)
	if s.Fit != nil {
		fit := *s.Fit
		c.Fit = &fit
	}
	return c
}

// addService adds the service of another node.
func addService(s, o *observe.Service) {
	s.Flows.Add(&o.Flows)
	if s.Refused == nil && len(o.Refused) > 0 {
		s.Refused = make(map[string]uint64)
	}
	for reason, n := range o.Refused {
		s.Refused[reason] += n
	}
	addEndpoints(s, o)
	s.Changes = append(s.Changes, o.Changes...)
	slices.SortStableFunc(s.Changes, func(a, b observe.Change) int { return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Node, b.Node)) })
	switch {
	case o.Fit == nil:
	case s.Fit == nil:
		fit := *o.Fit
		s.Fit = &fit
	default:
		addFit(s.Fit, o.Fit)
	}
}

// addEndpoints adds up endpoints. Shares are weighted by the number of selections: call it before
// the fits are added up.
func addEndpoints(s, o *observe.Service) {
	mine, others := draws(s.Fit), draws(o.Fit)
	all := max(mine+others, 1)
	for i := range s.Endpoints {
		s.Endpoints[i].Expected *= mine / all
		s.Endpoints[i].Observed *= mine / all
	}
	at := make(map[string]int)
	for i := range s.Endpoints {
		at[s.Endpoints[i].Endpoint] = i
	}
	for _, e := range o.Endpoints {
		e.Expected *= others / all
		e.Observed *= others / all
		if i, known := at[e.Endpoint]; known {
			addEndpoint(&s.Endpoints[i], &e)
			continue
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	slices.SortStableFunc(s.Endpoints, func(a, b observe.Endpoint) int { return cmp.Compare(a.Endpoint, b.Endpoint) })
}

func draws(f *observe.Fit) float64 {
	if f == nil {
		return 0
	}
	return float64(f.Draws)
}

// addEndpoint adds the endpoint of another node: it receives new flows if it does from one of the nodes, and
// is removed if no node has it.
func addEndpoint(e, o *observe.Endpoint) {
	e.Pod, e.Node = cmp.Or(e.Pod, o.Pod), cmp.Or(e.Node, o.Node)
	e.Local = e.Local || o.Local
	switch {
	case e.Removed && !o.Removed, e.Removed == o.Removed && o.Excluded == "":
		e.Excluded = o.Excluded
	}
	e.Removed = e.Removed && o.Removed
	e.Flows.Add(&o.Flows)
	e.Expected += o.Expected
	e.Observed += o.Observed
}

// addFit adds up two tests of independent selections: the sum of the values has a chi-square
// distribution with the sum of the degrees of freedom.
func addFit(f, o *observe.Fit) {
	if o.Since.Before(f.Since) {
		f.Since = o.Since
	}
	f.Draws += o.Draws
	f.ChiSquare += o.ChiSquare
	f.DegreesOfFreedom += o.DegreesOfFreedom
	f.PValue = observe.PValue(f.ChiSquare, f.DegreesOfFreedom)
}

// mergeTopologies merges topologies. Lists are sorted by name.
func mergeTopologies(list []*observe.Topology) *observe.Topology {
	t := &observe.Topology{}
	var nodes []observe.TopologyNode
	var pods []observe.TopologyPod
	var hosts []observe.TopologyHost
	for _, o := range list {
		nodes, pods, hosts = append(nodes, o.Nodes...), append(pods, o.Pods...), append(hosts, o.Hosts...)
		t.Lab = cmp.Or(t.Lab, o.Lab)
		t.CanHold = t.CanHold || o.CanHold
		t.CanBalance = t.CanBalance || o.CanBalance
	}
	t.Nodes = merge(nodes, func(n observe.TopologyNode) string { return n.Name }, func(n *observe.TopologyNode, o observe.TopologyNode) {
		n.Addresses, n.PodCIDRs = union(n.Addresses, o.Addresses), union(n.PodCIDRs, o.PodCIDRs)
		n.Observed = n.Observed || o.Observed
	})
	t.Pods = merge(pods, func(p observe.TopologyPod) string { return p.Name }, func(p *observe.TopologyPod, o observe.TopologyPod) {
		p.Node, p.Addresses = cmp.Or(p.Node, o.Node), union(p.Addresses, o.Addresses)
	})
	t.Hosts = merge(hosts, func(h observe.TopologyHost) string { return h.Name }, func(h *observe.TopologyHost, o observe.TopologyHost) {
		h.Addresses = union(h.Addresses, o.Addresses)
	})
	for i := range t.Nodes { // never null in JSON
		t.Nodes[i].Addresses = union(t.Nodes[i].Addresses, nil)
	}
	return t
}

// merge merges those with the same name.
func merge[T any](list []T, name func(T) string, add func(*T, T)) []T {
	merged := []T{}
	at := make(map[string]int)
	for _, o := range list {
		if i, known := at[name(o)]; known {
			add(&merged[i], o)
			continue
		}
		at[name(o)] = len(merged)
		merged = append(merged, o)
	}
	slices.SortFunc(merged, func(a, b T) int { return cmp.Compare(name(a), name(b)) })
	return merged
}

// union returns the elements of both lists, each once, and changes neither.
func union[T comparable](a, b []T) []T {
	u := []T{}
	for _, v := range slices.Concat(a, b) {
		if !slices.Contains(u, v) {
			u = append(u, v)
		}
	}
	return u
}
