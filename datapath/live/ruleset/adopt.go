package ruleset

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// existing is a table of an earlier run, as far as it can be kept.
type existing struct {
	*state
	// kept are the names of the sets that stay. Others have another definition than ours, or are missing.
	kept map[string]bool
}

// adopt replaces the rules of an earlier run, and keeps its base chains and the elements of its sets: no
// packet that waits in a queue is lost, and the kernel's copy of the service table serves all the time.
// It reports false, and changes nothing, if there are no such tables. keepQueueing leaves the rules that
// queue packets.
func (r *Ruleset) adopt(t *decision.Table, keepQueueing bool) (bool, error) {
	var found [2]*existing
	for i, of := range r.tables {
		var err error
		if found[i], err = of.readExisting(); err != nil {
			return false, fmt.Errorf("read nftables table %s: %w", of, err)
		}
		if !found[i].table {
			return false, nil
		}
	}
	// Base chains are never removed.
	r.spec.Idle = r.spec.Idle && !found[0].hasForQueued() && !found[1].hasForQueued()
	diff, hairpins, err := r.adoptionChanges(t, found)
	if err != nil {
		return false, err
	}
	for i, of := range r.tables {
		r.adoptTable(of, found[i], keepQueueing)
	}
	r.addBalances(diff)
	if err := r.changeAll(diff); err == nil {
		r.followed, r.hairpins = t, hairpins
		return true, nil
	}
	// A chain that cannot be changed in place.
	for _, of := range r.tables {
		clear(of.balances)
	}
	return false, nil
}

// readExisting reads a table of an earlier run.
func (t *table) readExisting() (*existing, error) {
	is, err := t.readState()
	e := &existing{is, make(map[string]bool)}
	if err != nil || !is.table {
		return e, err
	}
	return e, nft.Dump(t.nfproto, unix.NFT_MSG_GETSET, nft.SetsOf(TableName), func(_ uint8, a nft.Attributes) {
		for _, s := range t.sets {
			if a.Text(unix.NFTA_SET_TABLE) == TableName && a.Text(unix.NFTA_SET_NAME) == s.name && s.isLike(a) {
				e.kept[s.name] = true
			}
		}
	})
}

// isLike reports whether the definition of a set is ours.
func (s *set) isLike(a nft.Attributes) bool {
	var dataLength uint32
	if !s.isVerdicts() {
		dataLength = s.data.Bytes
	}
	const all = unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT | unix.NFT_SET_MAP | unix.NFT_SET_INTERVAL | unix.NFT_SET_CONSTANT
	// The kernel rounds to its clock's ticks.
	const tick = 10 * time.Millisecond
	rounded := time.Duration(a.Uint64(unix.NFTA_SET_TIMEOUT))*time.Millisecond - s.timeout
	size := a.Nested(unix.NFTA_SET_DESC).Uint32(unix.NFTA_SET_DESC_SIZE)
	return a.Uint32(unix.NFTA_SET_FLAGS)&all == s.flags() && a.Uint32(unix.NFTA_SET_KEY_LEN) == s.key.Bytes &&
		(dataLength == 0 || a.Uint32(unix.NFTA_SET_DATA_LEN) == dataLength) && size == s.size && rounded.Abs() <= tick
}

// adoptTable adds the changes of a table to the open transaction.
func (r *Ruleset) adoptTable(t *table, is *existing, keepQueueing bool) {
	if is.persistent {
		r.addOwnTable(t)
	}
	for name := range is.chains {
		if c, ok := r.spec.referencedChain(t, name); ok {
			t.balances[name] = c
		}
	}
	for name := range is.sets {
		keepQueueing = keepQueueing && is.kept[name] // the rules may use it
	}
	own := r.spec.chains(t)
	for name := range is.chains {
		if name != queueingChain || !keepQueueing {
			r.flushChain(t, name)
		}
	}
	// Before the chains to which their elements lead.
	for name := range is.sets {
		if !is.kept[name] {
			r.delSet(t, name)
		}
	}
	for name := range is.chains {
		if !slices.ContainsFunc(own, func(c chain) bool { return c.name == name }) {
			r.delChain(t, name)
		}
	}
	for _, s := range t.sets {
		if !is.kept[s.name] {
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

// adoptionChanges reads the elements of the sets that stay, and returns the changes to those of a service
// table, and the counts of hairpins.
func (r *Ruleset) adoptionChanges(t *decision.Table, found [2]*existing) (difference, hairpins, error) {
	should, diff := r.expect(t), make(difference)
	for i, of := range r.tables {
		for _, s := range of.sets {
			if s.dynamic {
				continue
			}
			var have map[string]string
			if found[i].kept[s.name] {
				equal, _, err := should.has(s)
				if err == nil && !equal {
					have, err = of.readElements(s)
				}
				if err != nil {
					return nil, hairpins{}, fmt.Errorf("read set %s of nftables table %s: %w", s.name, of, err)
				}
				if equal {
					continue
				}
			}
			diff.replace(s, have, should.elements(s))
		}
	}
	return diff, should.hairpins, nil
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
			r.addElement(t.alive, t.protocol(), "")
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
		return false, fmt.Errorf("read nftables tables %s: %w", r.tables, err)
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
		return false, fmt.Errorf("read nftables tables %s: %w", r.tables, err)
	}
	for i := range is {
		if r.loaded[i] != nil && is[i].table && !slices.Equal(is[i].chains[queueingChain].rules, r.loaded[i].chains[queueingChain].rules) {
			return true, nil
		}
	}
	return false, nil
}
