package ruleset

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/hostnet"
	"github.com/nfqproxy/nfqproxy/datapath/nft"
)

// maxRepairs is how often an audit repairs before it gives up. After gentleRepairs that keep the
// chains and did not help, the table is loaded again.
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
	if err := r.keepWatch(); err != nil {
		return done, err
	}
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
		d, err := r.compare(t)
		switch {
		case err != nil:
			return done, fmt.Errorf("read nftables table inet %s: %w", TableName, err)
		case len(d.found) == 0:
			r.audited, r.followed = generation, t
			return done, nil
		case try == maxRepairs:
			return done, fmt.Errorf("nftables table inet %s is changed by another program as often as it is repaired: %s", TableName, strings.Join(d.found, ", "))
		}
		done.Find(d.found)
		if !d.gone && gentle > 0 {
			gentle--
			_ = r.repairInPlace(d, &done) // the next comparison shows whether it helped
			continue
		}
		if err := r.reinstall(&done); err != nil {
			return done, fmt.Errorf("repair nftables table inet %s: %w", TableName, err)
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

// keepWatch restarts the watch if it has ended.
func (r *Ruleset) keepWatch() error {
	select {
	case <-r.watch.Failed():
	default:
		return nil
	}
	w, err := watchTable(r.sets)
	if err != nil {
		return err
	}
	w.self.Store(r.watch.self.Load())
	err = r.watch.Close()
	r.watch, r.audited = w, 0
	return err
}

// damage is how the kernel's table differs from ours.
type damage struct {
	found    []string   // in words
	gone     bool       // the table or a definition: reload the table
	chains   []chain    // chains that are missing, or have other rules
	foreign  []string   // chains
	sets     []*set     // that are missing
	elements difference // of existing sets
}

func (r *Ruleset) compare(t *decision.Table) (*damage, error) {
	is, err := readState()
	if err != nil {
		return nil, err
	}
	d := &damage{elements: make(difference)}
	if !is.table {
		d.found, d.gone = []string{"the table is missing or dormant"}, true
		return d, nil
	}
	names := make(map[string]bool)
	for _, c := range r.spec.chains(r.sets) {
		names[c.name] = true
		have, there := is.chains[c.name]
		want := r.loaded.chains[c.name]
		switch {
		case !there:
			d.found, d.chains = append(d.found, "chain "+c.name+" is missing"), append(d.chains, c)
		case have.definition != want.definition:
			d.found, d.gone = append(d.found, "chain "+c.name+" has another definition"), true
		case !slices.Equal(have.rules, want.rules):
			d.found, d.chains = append(d.found, "chain "+c.name+" has other rules"), append(d.chains, c)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(is.chains)) {
		if !names[name] {
			d.found, d.foreign = append(d.found, "chain "+name+" is not ours"), append(d.foreign, name)
		}
	}
	should := (&Ruleset{sets: r.sets}).difference(t)
	r.sets.noteReversePath(should, hostnet.ReversePath{}, r.reversePath)
	for _, s := range r.sets.all() {
		definition, there := is.sets[s.name]
		switch {
		case !there:
			d.found, d.sets = append(d.found, "set "+s.name+" is missing"), append(d.sets, s)
			d.elements[s] = should[s]
			continue
		case definition != r.loaded.sets[s.name]:
			d.found, d.gone = append(d.found, "set "+s.name+" has another definition"), true
		}
		if s.nft.Dynamic {
			continue
		}
		have, err := readElements(s.name)
		if err != nil {
			return nil, err
		}
		missing, foreign := 0, 0
		for key := range should[s] {
			if !have[key] {
				d.elements.note(s, key, false, true)
				missing++
			}
		}
		for key := range have {
			if !should[s][key] {
				d.elements.note(s, key, true, false)
				foreign++
			}
		}
		if missing+foreign > 0 {
			d.found = append(d.found, fmt.Sprintf("set %s lacks %d elements and has %d others", s.name, missing, foreign))
		}
	}
	return d, nil
}

// reinstall loads the table again, without elements.
func (r *Ruleset) reinstall(done *nft.Repair) error {
	// After an error, its replies may still wait in the socket.
	if err := r.connect(); err != nil {
		return err
	}
	if err := r.install(); err != nil {
		return err
	}
	done.Reinstalled, done.Recounted = true, true
	return nil
}

// repairInPlace repairs the differences, in one transaction except for the elements of sets.
func (r *Ruleset) repairInPlace(d *damage, done *nft.Repair) error {
	if err := r.connect(); err != nil { // likewise
		return err
	}
	for _, s := range d.sets {
		if err := r.conn.AddSet(s.nft, nil); err != nil {
			return fmt.Errorf("set %s: %w", s.name, err)
		}
	}
	for _, name := range d.foreign {
		r.conn.FlushChain(&nftables.Chain{Name: name, Table: r.table})
	}
	for _, c := range d.chains {
		r.addChain(c)
		r.conn.FlushChain(&nftables.Chain{Name: c.name, Table: r.table})
	}
	// All chains that rules jump to exist by now.
	recounted := false
	for _, c := range d.chains {
		r.addRules(c)
		recounted = recounted || c.name == queueingChain
	}
	for _, name := range d.foreign {
		r.conn.DelChain(&nftables.Chain{Name: name, Table: r.table})
	}
	if err := r.conn.Flush(); err != nil {
		return err
	}
	done.Recounted = done.Recounted || recounted
	return r.changeAll(d.elements)
}

// changeAll adds and deletes elements.
func (r *Ruleset) changeAll(d difference) error {
	for s, keys := range d {
		if err := r.change(s, keys); err != nil {
			return fmt.Errorf("nftables set %s: %w", s.name, err)
		}
	}
	return nil
}
