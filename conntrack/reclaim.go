package conntrack

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
)

const (
	// portsExamined is how many source ports are examined when none is free (NF_NAT_HARDER_THRESH in
	// nf_nat_core.c).
	portsExamined = 32
	// reclaims is how many of them are tried.
	reclaims = 4
)

// reclaim makes an entry for which the kernel finds no free source port, with a port whose
// connection is over. The kernel does that by itself for a packet's connection, but not for one
// that is created over netlink, because it checks the state of the new connection
// (nf_nat_used_tuple_harder). Without this, the connections closed in the last two minutes would
// use up the ports.
func (t *Table) reclaim(e *Entry) bool {
	if e.Tuple.Protocol != protoTCP || !e.SourceAddr.IsValid() || e.SourcePorts[0] > e.SourcePorts[1] {
		return false
	}
	ports := e.candidates()
	t.lookups = zeros(t.lookups, portsExamined)
	t.begin()
	for i, port := range ports {
		t.lookUp(&t.lookups[i], e.replyWith(port), e.Zone)
	}
	if t.exchange() != nil {
		return false
	}
	tries := 0
	for i, port := range ports {
		s, err := &t.lookups[i].state, t.lookups[i].err
		over := err == nil && s.Reply == e.replyWith(port) && s.Masqueraded() && (s.TCP == TCPTimeWait || s.TCP == TCPClose)
		if !over && !IsNotFound(err) {
			continue
		}
		if t.createWith(e, port, s, over) {
			return true
		}
		if tries++; tries == reclaims {
			break
		}
	}
	return false
}

// createWith creates the entry with a source port, after deleting the old connection if there is
// one.
func (t *Table) createWith(e *Entry, port uint16, old *State, remove bool) bool {
	var gone, refused error
	t.begin()
	if remove {
		t.buf = appendDelete(t.buf, t.next(nil, &gone), ctaTupleOrig, old.Original, e.Zone, old.ID)
	}
	with := *e
	with.SourcePorts = [2]uint16{port, port}
	t.buf = appendCreate(t.buf, t.next(nil, &refused), &with)
	return cmp.Or(t.exchange(), refused) == nil
}

// candidates are the source ports to examine: the client's own and the following ones, or any
// if the client's own is out of range.
func (e *Entry) candidates() (ports [portsExamined]uint16) {
	own, first, last := int(e.Tuple.Source.Port()), int(e.SourcePorts[0]), int(e.SourcePorts[1])
	if e.SourcePorts == [2]uint16{} {
		// Reserved ports stay reserved (nf_nat_l4proto_unique_tuple).
		switch {
		case own < 512:
			first, last = 1, 511
		case own < 1024:
			first, last = 600, 1023
		default:
			first, last = 1024, 65535
		}
	}
	size := last - first + 1
	from := own - first
	if from < 0 || from >= size {
		from = rand.IntN(size)
	}
	for i := range ports {
		ports[i] = uint16(first + (from+i)%size)
	}
	return ports
}

// replyWith is the tuple of the replies if the source port becomes port.
func (e *Entry) replyWith(port uint16) Tuple {
	from := e.Destination
	if !from.IsValid() {
		from = e.Tuple.Destination
	}
	return Tuple{Source: from, Destination: netip.AddrPortFrom(e.SourceAddr, port), Protocol: e.Tuple.Protocol}
}
