package decision

import (
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision/persistent"
)

// The following methods call changed for each difference between a table and an earlier one, from which it was made in
// any number of steps; nil is the empty table. They may include changes that were undone. The time they take depends on
// the differences, not on the size of the tables.

// ChangedServices finds the Services with a different service port; before or after is nil if it has none.
func (t *Table) ChangedServices(since *Table, changed func(name ServiceName, before, after []*ServicePort)) {
	persistent.Diff(since.orEmpty().services, t.services, func(name ServiceName, before, after *[]*ServicePort) {
		changed(name, valueOf(before), valueOf(after))
	})
}

// ChangedAddresses finds the addresses, with ports, whose service port differs; before or after is nil without one.
func (t *Table) ChangedAddresses(since *Table, changed func(at netip.AddrPort, p Protocol, before, after *ServicePort)) {
	persistent.Diff(since.orEmpty().addresses, t.addresses, func(k addrPortKey, before, after **frontend) {
		changed(k.addrPort(), Protocol(k.proto), valueOf(before).owner(), valueOf(after).owner())
	})
}

// ChangedNodePorts is [Table.ChangedAddresses] for node ports.
func (t *Table) ChangedNodePorts(since *Table, changed func(port uint16, p Protocol, f Family, before, after *ServicePort)) {
	persistent.Diff(since.orEmpty().nodePorts, t.nodePorts, func(k portKey, before, after **frontend) {
		changed(k.port, k.proto, k.family, valueOf(before).owner(), valueOf(after).owner())
	})
}

var empty Table

func (t *Table) orEmpty() *Table {
	if t == nil {
		return &empty
	}
	return t
}

// owner is the service port whose frontend comes first; nil of an empty chain.
func (c *frontend) owner() *ServicePort {
	if c == nil {
		return nil
	}
	return c.service
}

func valueOf[T any](p *T) (value T) {
	if p == nil {
		return value
	}
	return *p
}
