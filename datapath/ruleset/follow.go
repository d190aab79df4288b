package ruleset

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"

	"github.com/google/nftables"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Follow brings the sets of service addresses into line with the table. The time it
// takes depends on what differs from the table of the last call. After an error the sets
// may show either table, until [Ruleset.Audit].
func (r *Ruleset) Follow(t *decision.Table) error {
	current := r.current()
	if err := r.changeAll(r.difference(t)); err != nil {
		return errors.Join(err, r.connect()) // whose answers to this may still come
	}
	r.followed = t
	r.remember(current)
	return nil
}

// difference is what the table changes in the sets.
func (r *Ruleset) difference(t *decision.Table) difference {
	diff := make(difference)
	t.ChangedAddresses(r.followed, func(at netip.AddrPort, p decision.Protocol, before, after *decision.ServicePort) {
		// A field of a concatenation is filled up to whole registers.
		f, addr, port := familyOf(at.Addr()), addrBytes(at.Addr()), portBytes(at.Port())+"\x00\x00"
		diff.note(r.sets.service[serviceSet{f.nfproto, byte(p)}], addr+port, translates(before), translates(after))
		diff.note(r.sets.scope(f), addr+string([]byte{byte(p), 0, 0, 0})+port, before != nil, after != nil)
	})
	t.ChangedNodePorts(r.followed, func(port uint16, p decision.Protocol, f decision.Family, before, after *decision.ServicePort) {
		// The families share a set.
		other := decision.IPv4 + decision.IPv6 - f
		var otherBefore *decision.ServicePort
		if r.followed != nil {
			otherBefore = r.followed.NodePortOwner(port, p, other)
		}
		otherAfter := t.NodePortOwner(port, p, other)
		diff.note(r.sets.nodePort[byte(p)], portBytes(port),
			translates(before) || translates(otherBefore), translates(after) || translates(otherAfter))
		diff.note(r.sets.scopePort, string([]byte{byte(p), 0, 0, 0})+portBytes(port)+"\x00\x00",
			before != nil || otherBefore != nil, after != nil || otherAfter != nil)
	})
	var had []netip.Addr
	if r.followed != nil {
		had = r.followed.NodePortAddresses()
	}
	has := t.NodePortAddresses()
	for _, a := range slices.Concat(had, has) {
		diff.note(r.sets.nodeAddr(familyOf(a)), addrBytes(a), slices.Contains(had, a), slices.Contains(has, a))
	}
	return diff
}

// translates says whether flows to the service port are ever translated; if not, what
// is not refused may pass. nil is no service port.
func translates(s *decision.ServicePort) bool { return s != nil && s.HasEndpoints }

// difference tells for sets which keys come (true) and which go.
type difference map[*set]map[string]bool

// note notes a key of a set; nil: there is no set for it.
func (d difference) note(s *set, key string, before, after bool) {
	if s == nil || before == after {
		return
	}
	if d[s] == nil {
		d[s] = make(map[string]bool)
	}
	d[s][key] = after
}

// maxElements is how many elements go into one transaction: their attribute's
// length has 16 bits, and the socket's send buffer takes some hundred KB.
const maxElements = 1000

// change adds and deletes elements of a set.
func (r *Ruleset) change(s *set, keys map[string]bool) error {
	var come, gone []nftables.SetElement
	for k, comes := range keys {
		if comes {
			come = append(come, nftables.SetElement{Key: []byte(k)})
		} else {
			gone = append(gone, nftables.SetElement{Key: []byte(k)})
		}
	}
	send := func(elements []nftables.SetElement, do func(*nftables.Set, []nftables.SetElement) error) error {
		for batch := range slices.Chunk(elements, maxElements) {
			if err := do(s.nft, batch); err != nil {
				return err
			}
			if err := r.conn.Flush(); err != nil {
				return err
			}
		}
		return nil
	}
	return errors.Join(send(come, r.conn.SetAddElements), send(gone, r.conn.SetDeleteElements))
}

func familyOf(a netip.Addr) family {
	if decision.FamilyOf(a) == decision.IPv4 {
		return ipv4
	}
	return ipv6
}

func addrBytes(a netip.Addr) string { return string(a.Unmap().AsSlice()) }

// portBytes is a port in network byte order.
func portBytes(p uint16) string { return string(binary.BigEndian.AppendUint16(nil, p)) }
