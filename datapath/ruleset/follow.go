package ruleset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Follow updates the sets of service addresses to the table. The time it takes depends on the
// differences from the table of the last call. After an error the sets may have the elements of
// either table, until [Ruleset.Audit].
func (r *Ruleset) Follow(t *decision.Table) error {
	current := r.current()
	diff, hairpins := r.difference(t)
	changed := append(r.replaceNode(t), r.addBalances(diff)...)
	if err := r.changeAll(diff); err != nil {
		if len(changed) > 0 {
			r.loaded = [2]*state{} // unknown: the next audit loads the tables
		}
		return errors.Join(err, r.connect()) // whose replies may still arrive
	}
	r.followed = t
	r.hairpins.add(hairpins)
	if err := r.reload(changed); err != nil {
		return err
	}
	r.remember(current)
	return nil
}

// reload reads chains that were added or replaced as the kernel returns them. All others stay as they
// were loaded: another program may have changed them meanwhile.
func (r *Ruleset) reload(changed []chainOf) error {
	if len(changed) == 0 || r.loaded[0] == nil {
		return nil
	}
	is, err := r.read()
	if err != nil {
		r.loaded = [2]*state{}
		return fmt.Errorf("read nftables tables %s: %w", r.tables, err)
	}
	for _, c := range changed {
		i := slices.Index(r.tables[:], c.table)
		have, ok := is[i].chains[c.name]
		if !ok || len(have.rules) != len(c.rules) {
			r.loaded = [2]*state{} // changed by another program
			return nil
		}
		r.loaded[i].chains[c.name] = have
	}
	return nil
}

// addBalances adds the chains that are missing for the lists of the difference to the open transaction.
func (r *Ruleset) addBalances(diff difference) (added []chainOf) {
	for s, changes := range diff {
		if !s.nft.IsMap || s.nft.DataType != nftables.TypeVerdict {
			continue
		}
		for _, c := range changes {
			if _, exists := s.table.balances[c.after]; exists || !c.has {
				continue
			}
			if b, ok := parseBalance(c.after); ok {
				added = append(added, chainOf{s.table, r.spec.balanceChain(s.table, b)})
				s.table.balances[c.after] = added[len(added)-1].chain
			}
		}
	}
	for _, c := range added {
		r.addChains(c.table, []chain{c.chain})
	}
	return added
}

// replaceNode adds the rules that depend on the table's node to the open transaction, if they changed.
func (r *Ruleset) replaceNode(t *decision.Table) (replaced []chainOf) {
	node := CopyNodeOf(t)
	if reflect.DeepEqual(node, r.spec.Copy) {
		return nil
	}
	r.spec.Copy = node
	for _, of := range r.tables {
		for name := range of.balances {
			b, _ := parseBalance(name)
			of.balances[name] = r.spec.balanceChain(of, b)
		}
		for _, c := range r.spec.copyChains(of) {
			r.conn.FlushChain(&nftables.Chain{Name: c.name, Table: of.nft})
			r.addRules(of, c)
			replaced = append(replaced, chainOf{of, c})
		}
	}
	return replaced
}

// difference returns the changes of the sets for the table, and of the counts of hairpins.
func (r *Ruleset) difference(t *decision.Table) (difference, hairpins) {
	diff := make(difference)
	t.ChangedAddresses(r.followed, func(at netip.AddrPort, p decision.Protocol, before, after *decision.ServicePort) {
		to, key := r.tables.of(decision.FamilyOf(at.Addr())), addrBytes(at.Addr())+protoPortBytes(p, at.Port())
		diff.note(to.service, key, translates(before), translates(after))
		diff.note(to.scope, key, before != nil, after != nil)
		if before != nil {
			to.copyAddress(at, before, diff.remove)
		}
		if after != nil {
			to.copyAddress(at, after, diff.add)
		}
	})
	t.ChangedNodePorts(r.followed, func(port uint16, p decision.Protocol, f decision.Family, before, after *decision.ServicePort) {
		to, key := r.tables.of(f), protoPortBytes(p, port)
		diff.note(to.nodePort, key, translates(before), translates(after))
		diff.note(to.refusedPort, key, refused(before), refused(after))
		if before != nil {
			to.copyNodePort(before, diff.remove)
		}
		if after != nil {
			to.copyNodePort(after, diff.add)
		}
	})
	hairpins := r.noteHairpins(diff, t)
	var had, hadLocal []netip.Addr
	if r.followed != nil {
		had, hadLocal = r.followed.NodePortAddresses(), r.followed.Node().Addresses
	}
	nodePortAddr := func(a netip.Addr) *set { return r.tables.of(decision.FamilyOf(a)).nodePortAddr }
	local := func(a netip.Addr) *set { return r.tables.of(decision.FamilyOf(a)).local }
	noteAll(diff, nodePortAddr, addrBytes, had, t.NodePortAddresses())
	noteAll(diff, local, addrBytes, hadLocal, t.Node().Addresses)
	diff.tidy()
	return diff, hairpins
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

// difference has the elements to add to each set and those to remove, by key.
type difference map[*set]map[string]change

// change is what becomes of an element. Data is the name of a chain in a map of verdicts, and empty in
// a set.
type change struct {
	had, has      bool
	before, after string // data
}

// note records a key of a set; a nil set is ignored.
func (d difference) note(s *set, key string, before, after bool) {
	if s != nil && before != after {
		d.of(s)[key] = change{had: before, has: after}
	}
}

func (d difference) of(s *set) map[string]change {
	if d[s] == nil {
		d[s] = make(map[string]change)
	}
	return d[s]
}

// remove and add record that an element is not, or is, to be there. Of an element that is removed and
// added only its data may change.
func (d difference) remove(s *set, key, data string) {
	c := d.of(s)[key]
	c.had, c.before = true, data
	d.of(s)[key] = c
}

func (d difference) add(s *set, key, data string) {
	c := d.of(s)[key]
	c.has, c.after = true, data
	d.of(s)[key] = c
}

// tidy leaves out elements that do not change.
func (d difference) tidy() {
	for s, changes := range d {
		maps.DeleteFunc(changes, func(_ string, c change) bool { return c.had == c.has && c.before == c.after })
		if len(changes) == 0 {
			delete(d, s)
		}
	}
}

// elements is what a set should have, as the difference from an empty one.
func (d difference) elements(s *set) map[string]string {
	elements := make(map[string]string)
	for key, c := range d[s] {
		if c.has {
			elements[key] = c.after
		}
	}
	return elements
}

// maxElements is how many elements go into one message, the length of whose attributes has 16 bits.
const maxElements = 400

// elementBytes is the size of the largest element in a message, and what it costs of a buffer.
const elementBytes = 256

// changeAll changes elements: in one transaction, if it fits into the socket's send buffer.
func (r *Ruleset) changeAll(d difference) error {
	room := r.sendBuffer / elementBytes
	open := 0 // elements in the open transaction
	for s, changes := range d {
		for keys := range slices.Chunk(slices.Collect(maps.Keys(changes)), maxElements) {
			if open > 0 && open+len(keys) > room {
				if err := r.conn.Flush(); err != nil {
					return fmt.Errorf("change the elements of nftables sets: %w", err)
				}
				open = 0
			}
			if err := r.change(s, changes, keys); err != nil {
				return fmt.Errorf("nftables set %s: %w", s.name, err)
			}
			open += len(keys)
		}
	}
	if err := r.conn.Flush(); err != nil {
		return fmt.Errorf("change the elements of nftables sets: %w", err)
	}
	return nil
}

// change adds changes of elements to the open transaction.
func (r *Ruleset) change(s *set, changes map[string]change, keys []string) error {
	var come, gone []nftables.SetElement
	for _, k := range keys {
		c := changes[k]
		if c.had {
			gone = append(gone, nftables.SetElement{Key: []byte(k)})
		}
		if c.has {
			come = append(come, s.element(k, c.after))
		}
	}
	if len(gone) > 0 {
		if err := r.conn.SetDeleteElements(s.nft, gone); err != nil {
			return err
		}
	}
	if len(come) > 0 {
		return r.conn.SetAddElements(s.nft, come)
	}
	return nil
}

// element is an element as the kernel gets it.
func (s *set) element(key, data string) nftables.SetElement {
	e := nftables.SetElement{Key: []byte(key)}
	switch {
	case !s.nft.IsMap:
	case s.nft.DataType == nftables.TypeVerdict:
		e.VerdictData = &expr.Verdict{Kind: expr.VerdictGoto, Chain: data}
	default:
		e.Val = []byte(data)
	}
	return e
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
