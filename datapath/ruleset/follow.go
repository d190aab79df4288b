package ruleset

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"

	"github.com/google/nftables"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Follow updates the sets of service addresses to the table. The time it takes depends on the
// differences from the table of the last call. After an error the sets may have the elements of
// either table, until [Ruleset.Audit].
func (r *Ruleset) Follow(t *decision.Table) error {
	current := r.current()
	if err := r.changeAll(r.difference(t)); err != nil {
		return errors.Join(err, r.connect()) // whose replies may still arrive
	}
	r.followed = t
	r.remember(current)
	return nil
}

// difference returns the changes of the sets for the table.
func (r *Ruleset) difference(t *decision.Table) difference {
	diff := make(difference)
	t.ChangedAddresses(r.followed, func(at netip.AddrPort, p decision.Protocol, before, after *decision.ServicePort) {
		to, key := r.tables.of(decision.FamilyOf(at.Addr())), addrBytes(at.Addr())+protoPortBytes(p, at.Port())
		diff.note(to.service, key, translates(before), translates(after))
		diff.note(to.scope, key, before != nil, after != nil)
	})
	t.ChangedNodePorts(r.followed, func(port uint16, p decision.Protocol, f decision.Family, before, after *decision.ServicePort) {
		to, key := r.tables.of(f), protoPortBytes(p, port)
		diff.note(to.nodePort, key, translates(before), translates(after))
		diff.note(to.refusedPort, key, refused(before), refused(after))
	})
	var had, hadLocal []netip.Addr
	if r.followed != nil {
		had, hadLocal = r.followed.NodePortAddresses(), r.followed.Node().Addresses
	}
	nodePortAddr := func(a netip.Addr) *set { return r.tables.of(decision.FamilyOf(a)).nodePortAddr }
	local := func(a netip.Addr) *set { return r.tables.of(decision.FamilyOf(a)).local }
	noteAll(diff, nodePortAddr, addrBytes, had, t.NodePortAddresses())
	noteAll(diff, local, addrBytes, hadLocal, t.Node().Addresses)
	return diff
}

// noteAll records the members to add to the set of each, by its key, and those to remove.
func noteAll[T comparable](diff difference, of func(T) *set, key func(T) string, had, has []T) {
	for _, v := range slices.Concat(had, has) {
		diff.note(of(v), key(v), slices.Contains(had, v), slices.Contains(has, v))
	}
}

// refused reports whether the node port of a service port is refused at every address of the node.
// s may be nil.
func refused(s *decision.ServicePort) bool { return s != nil && s.ExternalRefusal() != 0 }

// translates reports whether flows to the service port are ever translated; if not, packets that
// are not refused may pass. s may be nil.
func translates(s *decision.ServicePort) bool { return s != nil && s.HasEndpoints }

// difference has the keys to add to each set (true) and those to remove.
type difference map[*set]map[string]bool

// note records a key of a set; a nil set is ignored.
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

// protoPortBytes are protocol and port as fields of a concatenation, each filled up to a
// whole register.
func protoPortBytes(p decision.Protocol, port uint16) string {
	return string([]byte{byte(p), 0, 0, 0}) + portBytes(port) + "\x00\x00"
}

// portBytes is a port in network byte order.
func portBytes(p uint16) string { return string(binary.BigEndian.AppendUint16(nil, p)) }
