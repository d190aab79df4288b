package ruleset

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/nft"
)

// maxRepairs is how often an audit repairs before it gives up. The table is loaded anew after
// gentleRepairs that leave the chains where they are, and did not help.
const maxRepairs, gentleRepairs = 8, 2

// Audit compares the kernel's rules and sets with what they should be, the sets with the
// elements of the table, and repairs what differs. It brings the sets into line with another
// table than [Ruleset.Follow] has, too: so it is what follows its error. What the kernel
// itself adds to sets is no difference.
//
// It costs one message if no rule in the namespace changed since the last audit but by
// Follow, unless it is to be thorough: after [Ruleset.Changed] and after an error. Base chains
// stay if possible: the kernel drops all packets that wait in queues with each that goes
// (nf_queue.c, nf_queue_nf_hook_drop). An error says that the rules are not what they should
// be, or that this is not known ([nft.ErrChanged]); a later audit may succeed.
func (r *Ruleset) Audit(t *decision.Table, thorough bool) (nft.Repair, error) {
	var done nft.Repair
	if err := r.keepWatch(); err != nil {
		return done, err
	}
	gentle := gentleRepairs
	for try := 0; ; try++ {
		// Read first: what changes from here on makes another one.
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
			_ = r.repairInPlace(d, &done) // whether it helped, the next look tells
			continue
		}
		if err := r.reinstall(&done); err != nil {
			return done, fmt.Errorf("repair nftables table inet %s: %w", TableName, err)
		}
		gentle = gentleRepairs // for the elements, which it has none of
	}
}

// current reports whether no rule changed since the last audit.
func (r *Ruleset) current() bool {
	generation, err := nft.Generation()
	return err == nil && generation != 0 && generation == r.audited
}

// remember takes the rules for audited that were current before a change of ours. Another
// program's change of our table at the same time is an event, and the audit then thorough.
func (r *Ruleset) remember(current bool) {
	r.audited = 0
	if generation, err := nft.Generation(); current && err == nil {
		r.audited = generation
	}
}

// keepWatch watches again if no more events come.
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
	gone     bool       // the table or a definition: it has to be loaded anew
	chains   []chain    // that are missing, or have other rules
	foreign  []string   // chains
	sets     []*set     // that are missing
	elements difference // of sets that are there
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
	r.sets.noteReversePath(should, ReversePath{}, r.reversePath)
	for _, s := range r.sets.all() {
		definition, there := is.sets[s.name]
		switch {
		case !there:
			d.found, d.sets = append(d.found, "set "+s.name+" is missing"), append(d.sets, s)
			maps.Copy(d.elementsOf(s), should[s])
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
				d.elementsOf(s)[key] = true
				missing++
			}
		}
		for key := range have {
			if !should[s][key] {
				d.elementsOf(s)[key] = false
				foreign++
			}
		}
		if missing+foreign > 0 {
			d.found = append(d.found, fmt.Sprintf("set %s lacks %d elements and has %d others", s.name, missing, foreign))
		}
	}
	return d, nil
}

func (d *damage) elementsOf(s *set) map[string]bool {
	if d.elements[s] == nil {
		d.elements[s] = make(map[string]bool)
	}
	return d.elements[s]
}

// reinstall loads the table anew, without elements.
func (r *Ruleset) reinstall(done *nft.Repair) error {
	// After an error, answers that belong to it may still wait in the socket.
	if err := r.connect(); err != nil {
		return err
	}
	if err := r.install(); err != nil {
		return err
	}
	done.Reinstalled, done.Recounted = true, true
	return nil
}

// repairInPlace repairs what differs, in one transaction but for the elements of sets.
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
	// Rules jump to chains: these are all there by now.
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
