package journal

import (
	"container/list"
	"net/netip"
	"reflect"
	"slices"
	"sync"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// The limits of the history: of the service ports that changed last, of each the newest changes, of
// each change the first endpoints.
const (
	changedPorts    = 500
	portChanges     = 20
	changeEndpoints = 10
)

// changes is the history of service ports, from the second table on.
type changes struct {
	mu    sync.Mutex
	table *decision.Table // the last one
	ports map[portKey]*list.Element
	order list.List // of *history: the port that changed last is last
}

// history is that of one service port.
type history struct {
	portKey
	changes []observe.Change // the oldest first
}

// follow compares a table with the last one. The time that it takes depends on the differences.
func (c *changes) follow(t *decision.Table) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.table
	c.table = t
	if before == nil || before == t {
		return
	}
	t.ChangedServices(before, func(_ decision.ServiceName, before, after []*decision.ServicePort) {
		for _, s := range before {
			if port(after, portKeyOf(s)) == nil {
				c.forget(portKeyOf(s))
			}
		}
		for _, s := range after {
			if change, differs := compare(port(before, portKeyOf(s)), s); differs {
				change.Time, change.Generation = t.Built(), t.Generation()
				c.add(portKeyOf(s), change)
			}
		}
	})
}

func portKeyOf(s *decision.ServicePort) portKey { return portKey{s.Name, s.Family} }

func port(ports []*decision.ServicePort, k portKey) *decision.ServicePort {
	if i := slices.IndexFunc(ports, func(s *decision.ServicePort) bool { return portKeyOf(s) == k }); i >= 0 {
		return ports[i]
	}
	return nil
}

func (c *changes) forget(k portKey) {
	if e := c.ports[k]; e != nil {
		c.order.Remove(e)
		delete(c.ports, k)
	}
}

func (c *changes) add(k portKey, change observe.Change) {
	if c.ports == nil {
		c.ports = make(map[portKey]*list.Element)
	}
	e := c.ports[k]
	if e == nil {
		if c.order.Len() == changedPorts {
			c.forget(c.order.Front().Value.(*history).portKey)
		}
		e = c.order.PushBack(&history{portKey: k})
		c.ports[k] = e
	}
	c.order.MoveToBack(e)
	h := e.Value.(*history)
	h.changes = append(h.changes[max(0, len(h.changes)-portChanges+1):], change)
}

// of returns the history of a service port, the oldest change first.
func (c *changes) of(s *decision.ServicePort) []observe.Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.ports[portKeyOf(s)]; e != nil {
		return slices.Clone(e.Value.(*history).changes)
	}
	return nil
}

// compare returns what changed of a service port; before is nil if it is new.
func compare(before, after *decision.ServicePort) (change observe.Change, differs bool) {
	if before == nil {
		return observe.Change{Created: true}, true
	}
	change.Settings = !reflect.DeepEqual(settings(before), settings(after))
	old := make(map[netip.AddrPort]*decision.Endpoint, len(before.Endpoints))
	for i := range before.Endpoints {
		old[before.Endpoints[i].AddrPort] = &before.Endpoints[i]
	}
	add := func(e *decision.Endpoint, what, why string) {
		if decision.FamilyOf(e.AddrPort.Addr()) != after.Family {
			return
		}
		if len(change.Endpoints) == changeEndpoints {
			change.More++
			return
		}
		change.Endpoints = append(change.Endpoints, observe.EndpointChange{Endpoint: e.AddrPort.String(), Pod: e.Pod, Change: what, Excluded: why})
	}
	for i := range after.Endpoints {
		e := &after.Endpoints[i]
		was := old[e.AddrPort]
		delete(old, e.AddrPort)
		why := exclusion(after, e)
		switch {
		case was == nil:
			add(e, observe.EndpointAdded, why)
		case exclusion(before, was) == why:
		case why == "":
			add(e, observe.EndpointUsable, "")
		default:
			add(e, observe.EndpointExcluded, why)
		}
	}
	for i := range before.Endpoints {
		if e := &before.Endpoints[i]; old[e.AddrPort] != nil {
			add(e, observe.EndpointRemoved, "")
		}
	}
	return change, change.Settings || len(change.Endpoints) > 0
}

// exclusion is why an endpoint gets no new flows to the ClusterIP, as in records.
func exclusion(s *decision.ServicePort, e *decision.Endpoint) string {
	if why := e.Exclusions[s.InternalPolicy]; why != 0 {
		return why.String()
	}
	return ""
}

// settings is a service port without its endpoints.
func settings(s *decision.ServicePort) decision.ServicePort {
	c := *s
	c.Endpoints, c.Usable, c.HasEndpoints = nil, [len(c.Usable)][]uint32{}, false
	return c
}

// Changes returns the newest changes of a service port, the oldest of them first. Those before the
// second table are not known.
func (j *Journal) Changes(s *decision.ServicePort) []observe.Change { return j.changes.of(s) }
