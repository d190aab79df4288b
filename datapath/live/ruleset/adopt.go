package ruleset

import (
	"fmt"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// adopt replaces the rules of an earlier run, and keeps its base chains and the elements of its sets: no
// packet that waits in a queue is lost, and the kernel's copy of the service table serves all the time.
// It reports false, and changes nothing, if there are no such tables. keepQueueing leaves the rules that
// queue packets.
func (r *Ruleset) adopt(t *decision.Table, keepQueueing bool) (bool, error) {
	found, err := r.read()
	if err != nil || !found[0].table || !found[1].table {
		return false, err
	}
	// Base chains are never removed.
	r.spec.Idle = r.spec.Idle && !found[0].hasForQueued() && !found[1].hasForQueued()
	should, diff := r.expect(t), make(difference)
	for i, of := range r.tables {
		for _, s := range of.sets {
			switch {
			case s.dynamic:
			case !found[i].usable[s.name]:
				diff.replace(s, nil, should.elements(s))
			default:
				if _, _, _, err := should.compare(s, diff); err != nil {
					return false, err
				}
			}
		}
	}
	for i, of := range r.tables {
		r.adoptTable(of, found[i], keepQueueing)
	}
	r.addBalances(diff)
	if err := r.changeAll(diff); err == nil {
		r.followed, r.hairpins = t, should.hairpins
		return true, nil
	}
	// A chain that cannot be changed in place.
	for _, of := range r.tables {
		clear(of.balances)
	}
	return false, nil
}

// adoptTable adds the changes of a table to the open transaction.
func (r *Ruleset) adoptTable(t *table, is *state, keepQueueing bool) {
	if is.persistent {
		r.addTable(t, r.conn.flags)
	}
	for name := range is.sets {
		keepQueueing = keepQueueing && is.usable[name] // the rules may use it
	}
	for name := range is.chains {
		if c, ok := r.spec.referencedChain(t, name); ok {
			t.balances[name] = c
		}
		if name != queueingChain || !keepQueueing {
			r.flushChain(t, name)
		}
	}
	// Before the chains to which their elements lead.
	for name := range is.sets {
		if !is.usable[name] {
			r.delSet(t, name)
		}
	}
	own := r.spec.chains(t)
	for name := range is.chains {
		if !slices.ContainsFunc(own, func(c chain) bool { return c.name == name }) {
			r.delChain(t, name)
		}
	}
	for _, s := range t.sets {
		if !is.usable[s.name] {
			r.newSet(s)
		}
	}
	for _, c := range own {
		r.addChain(t, c)
	}
	for _, c := range own {
		if c.name != queueingChain {
			r.addRules(t, c)
		}
	}
}

// replace records the changes from the elements that a set has to those that it should have, and
// counts them.
func (d difference) replace(s *set, have, want map[string]string) (missing, foreign int) {
	for key, data := range want {
		if is, there := have[key]; !there || is != data {
			d.of(s)[key] = change{had: there, has: true, before: is, after: data}
			missing++
		}
	}
	for key, data := range have {
		if _, ok := want[key]; !ok {
			d.remove(s, key, data)
			foreign++
		}
	}
	return missing, foreign
}

// startQueueing replaces the rules that queue packets.
func (r *Ruleset) startQueueing() error {
	for _, t := range r.tables {
		r.flushChain(t, queueingChain)
		r.addRules(t, r.spec.queueing(t))
		if t.alive != nil {
			r.addElement(t.alive, t.aliveKey(), "")
		}
	}
	if err := r.run(); err != nil {
		return fmt.Errorf("start queueing in nftables tables %s: %w", r.tables, err)
	}
	return nil
}

// readLoaded reads the tables as the kernel returns them, and reports whether they are ours.
func (r *Ruleset) readLoaded() (bool, error) {
	is, err := r.read()
	if err != nil {
		return false, err
	}
	for i, t := range r.tables {
		if !is[i].matches(r.spec.chains(t), t.sets) {
			return false, nil
		}
	}
	r.loaded = is
	return true, nil
}

// Replaced reports whether packets are queued by other rules than ours: another process has adopted
// the tables.
func (r *Ruleset) Replaced() (bool, error) {
	is, err := r.read()
	if err != nil {
		return false, err
	}
	for i := range is {
		if r.loaded[i] != nil && is[i].table && !slices.Equal(is[i].chains[queueingChain].rules, r.loaded[i].chains[queueingChain].rules) {
			return true, nil
		}
	}
	return false, nil
}
