package ruleset

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// maxRepairs is how often an audit repairs before it gives up. After gentleRepairs that keep the
// chains and did not help, the tables are loaded again.
const maxRepairs, gentleRepairs = 8, 2

// Audit compares the kernel's rules and sets with the expected ones, the sets with the elements of
// the table, and repairs differences. It can also change the sets to another table than
// [Ruleset.Follow]'s: so call it after an error of Follow. Elements that the kernel itself adds to
// sets are no difference.
//
// It costs one message if no rule in the namespace changed since the last audit except by Follow.
// A thorough audit follows [Ruleset.Changed] and errors. Base chains stay if possible: with each
// removed one the kernel drops all packets that wait in queues (nf_queue.c,
// nf_queue_nf_hook_drop). An error means that the rules are damaged, or that their state is
// unknown ([nft.ErrChanged]); a later audit may succeed.
func (r *Ruleset) Audit(t *decision.Table, thorough bool) (nft.Repair, error) {
	var done nft.Repair
	if err := r.ensureWatch(); err != nil {
		return done, err
	}
	r.checkIdle(t)
	gentle := gentleRepairs
	for try := 0; ; try++ {
		// Read first: later changes make a new generation.
		generation, err := nft.Generation()
		if err != nil {
			return done, fmt.Errorf("read the generation of nftables: %w", err)
		}
		if !thorough && generation != 0 && generation == r.audited && t == r.followed {
			return done, nil
		}
		if r.loaded[0] == nil {
			if err := r.reinstall(&done); err != nil {
				return done, fmt.Errorf("repair nftables tables %s: %w", r.tables, err)
			}
		}
		d, err := r.compare(t)
		switch {
		case err != nil:
			return done, err
		case len(d.Differences) == 0:
			if t != r.followed {
				r.hairpins = d.hairpins
			}
			if t != r.followed || r.stale {
				if err := r.dropStale(t, r.followed); err != nil {
					return done, err
				}
			}
			r.audited, r.followed = generation, t
			return done, nil
		case try == maxRepairs:
			return done, fmt.Errorf("nftables tables %s are changed by another program as often as they are repaired: %s", r.tables, strings.Join(d.Differences, ", "))
		}
		done.Find(d.Differences)
		if !d.gone && gentle > 0 {
			gentle--
			_ = r.repairInPlace(d, &done) // the next comparison shows whether it helped
			continue
		}
		if err := r.reinstall(&done); err != nil {
			return done, fmt.Errorf("repair nftables tables %s: %w", r.tables, err)
		}
		gentle = gentleRepairs // for the elements, which are missing
	}
}

// current reports whether no rule changed since the last audit.
func (r *Ruleset) current() bool {
	generation, err := nft.Generation()
	return err == nil && generation != 0 && generation == r.audited
}

// remember marks the rules as audited if they were current before our change. If another program
// changes our table at the same time, there is an event, and the next audit is thorough.
func (r *Ruleset) remember(current bool) {
	r.audited = 0
	if generation, err := nft.Generation(); current && err == nil {
		r.audited = generation
	}
}

// eventBuffer is for the events of a large table.
const eventBuffer = 32 << 20

// ensureWatch restarts the watch if it has ended.
func (r *Ruleset) ensureWatch() error {
	select {
	case <-r.watch.Failed():
	default:
		return nil
	}
	w, err := watchTables(r.tables, r.conn)
	if err != nil {
		return err
	}
	err = r.watch.Close()
	r.watch, r.audited = w, 0
	return err
}

// damage is how the kernel's tables differ from ours.
type damage struct {
	Comparison
	gone     bool       // a table or a definition: reload the tables
	chains   []chainOf  // chains that are missing, or have other rules
	foreign  []chainOf  // chains of others, without rules here
	sets     []*set     // that are missing
	elements difference // of existing sets
	hairpins hairpins   // of the table
}

// chainOf is a chain of a table.
type chainOf struct {
	table *table
	chain
}

func (r *Ruleset) compare(t *decision.Table) (*damage, error) {
	is, err := r.read()
	if err != nil {
		return nil, err
	}
	should := r.expect(t)
	d := &damage{elements: make(difference), hairpins: should.hairpins}
	for i, of := range r.tables {
		find := func(format string, args ...any) {
			d.Differences = append(d.Differences, fmt.Sprintf(format, args...)+" ("+of.name+")")
		}
		if !is[i].table {
			find("the table is missing or dormant")
			d.gone = true
			continue
		}
		d.count(is[i])
		d.compareChains(of, r.spec.chains(of), is[i], r.loaded[i], find)
		if err := d.compareSets(of, should, is[i], r.loaded[i], find); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// empty is the ruleset without elements in its sets.
func (r *Ruleset) empty() *Ruleset { return &Ruleset{tables: r.tables} }

// compareChains finds the chains of a table that differ.
func (d *damage) compareChains(of *table, chains []chain, is, loaded *state, find func(string, ...any)) {
	for _, c := range chains {
		have, there := is.chains[c.name]
		want := loaded.chains[c.name]
		switch {
		case !there:
			find("chain %s is missing", c.name)
			d.chains = append(d.chains, chainOf{of, c})
		case have.definition != want.definition:
			find("chain %s has another definition", c.name)
			d.gone = true
		case !slices.Equal(have.rules, want.rules):
			find("chain %s has other rules", c.name)
			d.chains = append(d.chains, chainOf{of, c})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(is.chains)) {
		if !slices.ContainsFunc(chains, func(c chain) bool { return c.name == name }) {
			find("chain %s is not ours", name)
			d.foreign = append(d.foreign, chainOf{of, chain{name: name}})
		}
	}
}

// compareSets finds the sets of a table that differ, and their elements that should be there or not.
func (d *damage) compareSets(of *table, should *expected, is, loaded *state, find func(string, ...any)) error {
	for _, s := range of.sets {
		definition, there := is.sets[s.name]
		switch {
		case !there:
			find("set %s is missing", s.name)
			d.sets = append(d.sets, s)
			d.elements.replace(s, nil, should.elements(s))
			continue
		case definition != loaded.sets[s.name]:
			find("set %s has another definition", s.name)
			d.gone = true
		}
		if s.dynamic {
			continue
		}
		n, missing, foreign, err := should.compare(s, d.elements)
		if err != nil {
			return err
		}
		d.Elements += n
		if missing+foreign > 0 {
			find("set %s lacks %d elements and has %d others", s.name, missing, foreign)
		}
	}
	return nil
}

// reinstall loads the tables again, without elements.
func (r *Ruleset) reinstall(done *nft.Repair) error {
	for range maxInstalls {
		r.replaceTables(true)
		if err := r.run(); err != nil {
			return fmt.Errorf("install nftables tables %s: %w", r.tables, err)
		}
		ok := r.loaded[0] != nil
		if !ok {
			var err error
			if ok, err = r.readLoaded(); err != nil {
				return err
			}
		}
		if ok {
			done.Reinstalled, done.Recounted = true, true
			return nil
		}
	}
	return r.contested()
}

// repairInPlace repairs the differences, in one transaction except for the elements of sets.
func (r *Ruleset) repairInPlace(d *damage, done *nft.Repair) error {
	for _, s := range d.sets {
		r.newSet(s)
	}
	for _, c := range d.foreign {
		r.flushChain(c.table, c.name)
	}
	for _, c := range d.chains {
		r.addChain(c.table, c.chain)
		r.flushChain(c.table, c.name)
	}
	// All chains that rules jump to exist by now.
	recounted := false
	for _, c := range d.chains {
		r.addRules(c.table, c.chain)
		recounted = recounted || queues(c.name)
	}
	for _, c := range d.foreign {
		r.delChain(c.table, c.name)
	}
	if err := r.run(); err != nil {
		return err
	}
	done.Recounted = done.Recounted || recounted
	if len(r.addBalances(d.elements)) > 0 {
		r.loaded = [2]*state{} // the next audit loads the tables
	}
	return r.changeAll(d.elements)
}

// Comparison compares the kernel's tables with the expected ones.
type Comparison struct {
	// Chains, Rules and Elements are what the kernel has, without the elements that it adds to sets
	// itself.
	Chains, Rules, Elements int
	// Differences are in words; none: the kernel's tables are as expected.
	Differences []string
}

// Compare reads the kernel's tables and all elements of their sets, and compares them with those for
// the table. Unlike [Ruleset.Audit] it always reads everything, and repairs nothing.
func (r *Ruleset) Compare(t *decision.Table) (Comparison, error) {
	if r.loaded[0] == nil {
		return Comparison{}, fmt.Errorf("nftables tables %s are not loaded completely: the daemon loads them again", r.tables)
	}
	d, err := r.compare(t)
	if err != nil {
		return Comparison{}, err
	}
	return d.Comparison, nil
}

// count adds what the kernel has of a table, without the elements of its sets.
func (c *Comparison) count(s *state) {
	c.Chains += len(s.chains)
	for _, ch := range s.chains {
		c.Rules += len(ch.rules)
	}
}

// watchTables watches our tables in the calling thread's network namespace for changes by others than self, our own
// connection.
func watchTables(t tables, self *Connection) (*nft.Watch, error) {
	// The kernel's rules add elements to these sets, and package reconcile removes them.
	dynamic := make(map[string]bool)
	for _, set := range t.sets() {
		dynamic[set.name] = set.dynamic
	}
	w, err := nft.NewWatch(func(e nft.Event) bool {
		if e.Port == self.port.Load() || e.Family != unix.NFPROTO_IPV4 && e.Family != unix.NFPROTO_IPV6 || e.Table() != TableName {
			return false
		}
		elements := e.Kind == unix.NFT_MSG_NEWSETELEM || e.Kind == unix.NFT_MSG_DELSETELEM
		return !elements || !dynamic[e.Text(unix.NFTA_SET_ELEM_LIST_SET)]
	})
	if err != nil {
		return nil, err
	}
	// Each element is an event. Lost ones make an audit thorough.
	if err := w.SetReadBuffer(eventBuffer); err != nil {
		return nil, errors.Join(fmt.Errorf("enlarge the buffer for events of nftables: %w", err), w.Close())
	}
	return w, nil
}
