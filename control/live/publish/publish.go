// Package publish owns the order in which a service table is put into force on a node.
//
// The order is one list, and every place in it has a reason: a node that does the same things in another order
// loses flows at each change of a Service, in ways that show under load only. The parts themselves (the
// datapath, the firewall's rules, the reconciler) are behind [Parts].
//
// It imports ground packages only.
package publish

import (
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Parts are the stages that a table passes through. Each method is named after the step that calls it; order has the
// reason for its place. [Publish] calls them one after the other.
type Parts interface {
	FindPredecessor() error
	AddressesChanged()
	Accept(t *decision.Table)
	Connect() error
	Announce(t *decision.Table)
	Balance(t, before *decision.Table)
	Open(t *decision.Table) error
	Apply(t *decision.Table)
	Reconcile(t *decision.Table)
	RemovePredecessor()
	Check(t, before *decision.Table)
}

// when is for which tables a step is taken.
type when uint8

// The tables of a step.
const (
	always when = iota
	first       // the table with which the datapath opens
	later       // every table after the first
)

// step is a place in the order.
type step struct {
	name string
	when when
	// why is the reason for the place: what goes wrong if the step comes earlier or later.
	why string

	do func(p Parts, t, before *decision.Table) error
}

// order is the order, of the first table and of all later ones.
var order = []step{
	{"FindPredecessor", first, "kube-proxy's rules are found before anything is written: if they cannot be read, and are to be removed, the node stays as it was",
		func(p Parts, _, _ *decision.Table) error { return p.FindPredecessor() }},
	{"AddressesChanged", later, "the host's masquerade rules are read again before a flow is decided with the new addresses of the node",
		func(p Parts, t, before *decision.Table) error {
			if !slices.Equal(t.Node().Addresses, before.Node().Addresses) {
				p.AddressesChanged()
			}
			return nil
		}},
	{"Accept", always, "the host's firewall accepts the flows of a table before the first of them is translated; else a policy DROP takes their first packets",
		func(p Parts, t, _ *decision.Table) error { p.Accept(t); return nil }},
	{"Connect", first, "conntrack events are followed before the first entry is written: a flow whose creation is missed has no life cycle",
		func(p Parts, _, _ *decision.Table) error { return p.Connect() }},
	{"Announce", later, "the reconciler knows the next table before a worker decides by it: else a pass that runs now deletes a new flow as one that contradicts the table",
		func(p Parts, t, _ *decision.Table) error { p.Announce(t); return nil }},
	{"Balance", always, "connections are counted before a Service that needs the counts selects an endpoint by them",
		func(p Parts, t, before *decision.Table) error { p.Balance(t, before); return nil }},
	{"Open", first, "everything above is in place for the first packet",
		func(p Parts, t, _ *decision.Table) error { return p.Open(t) }},
	{"Apply", later, "everything above is in place for the first packet that is decided by the table",
		func(p Parts, t, _ *decision.Table) error { p.Apply(t); return nil }},
	{"Reconcile", always, "UDP flows that contradict the table are deleted after it is in force: deleted earlier, their next datagram would be decided by the table before, and stay wrong",
		func(p Parts, t, _ *decision.Table) error { p.Reconcile(t); return nil }},
	{"RemovePredecessor", first, "kube-proxy's rules are removed after our own serve: no packet is without a proxy",
		func(p Parts, _, _ *decision.Table) error { p.RemovePredecessor(); return nil }},
	{"Check", always, "the health check node ports tell load balancers of endpoints that the node already serves",
		func(p Parts, t, before *decision.Table) error { p.Check(t, before); return nil }},
}

// Publish puts a table into force after the one before it; nil: it is the first. Only the first one can fail, and then
// nothing serves: the error is the part's, and the parts are of no more use. It is for one goroutine.
func Publish(p Parts, t, before *decision.Table) error {
	without := later
	if before != nil {
		without = first
	}
	for _, s := range order {
		if s.when == without {
			continue
		}
		if err := s.do(p, t, before); err != nil {
			return err
		}
	}
	return nil
}
