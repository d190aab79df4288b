package ruleset

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// Follow updates the sets of service addresses to the table. The time it takes depends on the
// differences from the table of the last call. After an error the sets may have the elements of
// either table, until [Ruleset.Audit].
func (r *Ruleset) Follow(t *decision.Table) error {
	current := r.current()
	diff := make(difference)
	hairpins := r.changes(t, diff)
	diff.dropUnchanged()
	changed := slices.Concat(r.replaceNode(t), r.endIdle(t), r.addBalances(diff))
	if err := r.changeAll(diff); err != nil {
		if len(changed) > 0 {
			r.loaded = [2]*state{} // unknown: the next audit loads the tables
		}
		return err
	}
	before := r.followed
	r.followed = t
	r.hairpins.add(hairpins)
	if mayBeStale(before, t) {
		r.stale = true
		if err := r.dropStale(t, before); err != nil {
			return err
		}
	}
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
		return err
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
		if !s.isVerdicts() {
			continue
		}
		for _, c := range changes {
			if b, ok := r.addBalance(s.table, c.after); ok && c.has {
				added = append(added, chainOf{s.table, b})
			}
		}
	}
	return added
}

// addBalance adds a chain for lists to the open transaction, unless it exists.
func (r *Ruleset) addBalance(t *table, name string) (c chain, added bool) {
	if _, exists := t.balances[name]; exists {
		return c, false
	}
	if c, added = r.spec.referencedChain(t, name); !added {
		return c, false
	}
	t.balances[name] = c
	r.addChains(t, []chain{c})
	return c, true
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
			of.balances[name], _ = r.spec.referencedChain(of, name)
		}
		for _, c := range append(r.spec.copyChains(of), r.spec.decideChain(of), r.spec.bindClients(of)) {
			if queues(c.name) { // its counters stay
				continue
			}
			r.flushChain(of, c.name)
			r.addRules(of, c)
			replaced = append(replaced, chainOf{of, c})
		}
	}
	return replaced
}

// sink takes changes of sets: the elements that are not, or are, to be there. Of an element that is removed and added
// only its data may change.
type sink interface {
	remove(s *set, key, data string)
	add(s *set, key, data string)
}

// note passes the change of an element without data to a sink; a nil set is ignored.
func note(d sink, s *set, key string, before, after bool) {
	switch {
	case s == nil || before == after:
	case after:
		d.add(s, key, "")
	default:
		d.remove(s, key, "")
	}
}

// additions is a sink for the changes of empty sets: it takes what is to be there.
type additions func(s *set, key, data string)

func (additions) remove(*set, string, string) {}

func (add additions) add(s *set, key, data string) { add(s, key, data) }

// changes passes the changes of the sets for the table to the sink, and returns those of the counts of
// hairpins.
func (r *Ruleset) changes(t *decision.Table, diff sink) hairpins {
	t.ChangedAddresses(r.followed, func(at netip.AddrPort, p decision.Protocol, before, after *decision.ServicePort) {
		to, key := r.tables.of(decision.FamilyOf(at.Addr())), addrBytes(at.Addr())+protoPortBytes(p, at.Port())
		note(diff, to.service, key, translates(before), translates(after))
		wasDecided, isDecided := decides(before, r.followed.Contested(at, p)), decides(after, t.Contested(at, p))
		note(diff, to.scope, key, before != nil && wasDecided != nft.Accepted, after != nil && isDecided != nft.Accepted)
		noteDecides(diff, to.decide, key, wasDecided, isDecided)
		if before != nil {
			to.copyAddress(at, before, r.followed.Node(), diff.remove)
		}
		if after != nil {
			to.copyAddress(at, after, t.Node(), diff.add)
		}
	})
	t.ChangedNodePorts(r.followed, func(port uint16, p decision.Protocol, f decision.Family, before, after *decision.ServicePort) {
		to, key := r.tables.of(f), protoPortBytes(p, port)
		note(diff, to.nodePort, key, translates(before), translates(after))
		note(diff, to.refusedPort, key, refused(before), refused(after))
		noteDecides(diff, to.decidePort, key, decides(before, r.followed.ContestedNodePort(port, p, f)), decides(after, t.ContestedNodePort(port, p, f)))
		if before != nil {
			to.copyNodePort(before, diff.remove)
		}
		if after != nil {
			to.copyNodePort(after, diff.add)
		}
	})
	r.noteSources(diff, t)
	hairpins := r.noteHairpins(diff, t)
	var had, hadLocal []netip.Addr
	if r.followed != nil {
		had, hadLocal = r.followed.NodePortAddresses(), r.followed.Node().Addresses
	}
	nodePortAddr := func(a netip.Addr) *set { return r.tables.of(decision.FamilyOf(a)).nodePortAddr }
	local := func(a netip.Addr) *set { return r.tables.of(decision.FamilyOf(a)).local }
	noteAll(diff, nodePortAddr, addrBytes, had, t.NodePortAddresses())
	noteAll(diff, local, addrBytes, hadLocal, t.Node().Addresses)
	return hairpins
}

// noteAll records the members to add to the set of each, by its key, and those to remove.
func noteAll[T comparable](diff sink, of func(T) *set, key func(T) string, had, has []T) {
	for _, v := range slices.Concat(had, has) {
		note(diff, of(v), key(v), slices.Contains(had, v), slices.Contains(has, v))
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

func (d difference) of(s *set) map[string]change {
	if d[s] == nil {
		d[s] = make(map[string]change)
	}
	return d[s]
}

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

// dropUnchanged leaves out elements that do not change.
func (d difference) dropUnchanged() {
	for s, changes := range d {
		maps.DeleteFunc(changes, func(_ string, c change) bool { return c.had == c.has && c.before == c.after })
		if len(changes) == 0 {
			delete(d, s)
		}
	}
}

// changeAll carries the open transaction out, with changes of elements: in one, unless they are very many.
func (r *Ruleset) changeAll(d difference) error {
	for s, changes := range d {
		for key, c := range changes {
			if c.had {
				r.delElement(s, key)
			}
			if err := r.changed(s); err != nil {
				return err
			}
		}
		for key, c := range changes {
			if c.has {
				r.addElement(s, key, c.after)
			}
			if err := r.changed(s); err != nil {
				return err
			}
		}
	}
	if err := r.run(); err != nil {
		return fmt.Errorf("change the elements of nftables sets: %w", err)
	}
	return nil
}

// changed carries the open transaction out if it is large.
func (r *Ruleset) changed(s *set) error {
	if r.open.Size() < r.conn.most {
		return nil
	}
	if err := r.run(); err != nil {
		return fmt.Errorf("change the elements of nftables set %s: %w", s.name, err)
	}
	return nil
}

func addrBytes(a netip.Addr) string { return string(a.Unmap().AsSlice()) }

// protoPortBytes are protocol and port as fields of a concatenation, each filled up to a
// whole register.
func protoPortBytes(p decision.Protocol, port uint16) string {
	return string([]byte{byte(p), 0, 0, 0}) + portBytes(port) + "\x00\x00"
}

// portBytes is a port in network byte order.
func portBytes(p uint16) string { return string(binary.BigEndian.AppendUint16(nil, p)) }

// fillEmpty adds the elements of a service table to empty sets, in the open transaction and further ones. It
// needs little memory besides these.
func (r *Ruleset) fillEmpty(t *decision.Table) error {
	l := &loader{Ruleset: r, lists: make(map[*set]*nft.Transaction)}
	hairpins := r.empty().changes(t, additions(l.add))
	for s := range l.lists {
		l.flush(s, 0)
	}
	if l.err == nil {
		l.err = r.run()
	}
	r.followed, r.hairpins = t, hairpins
	return l.err
}

// loader adds elements to empty sets.
type loader struct {
	*Ruleset
	// lists have the elements that are not in the open transaction yet: one list for each set, so that
	// there are few messages.
	lists map[*set]*nft.Transaction
	err   error
}

func (l *loader) add(s *set, key, data string) {
	if s.isVerdicts() {
		l.addBalance(s.table, data)
	}
	list := l.lists[s]
	if list == nil {
		list = new(nft.Transaction)
		l.lists[s] = list
	}
	list.AddElement(s.table.nfproto, unix.NFT_MSG_NEWSETELEM, TableName, s.name, nft.Element{Key: key, Data: data, Verdict: s.isVerdicts()})
	l.flush(s, l.conn.most/4)
}

// flush adds a list larger than size to the open transaction.
func (l *loader) flush(s *set, size int) {
	list := l.lists[s]
	if list.Size() <= size || l.err != nil {
		return
	}
	l.open.Append(list)
	list.Reset()
	l.err = l.changed(s)
}
