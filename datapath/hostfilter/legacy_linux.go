package hostfilter

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/xtables"
)

// readLegacy reads the table; nil: it is not there. To ask the kernel for a table makes it,
// so only one that is there is asked for.
func (p place) readLegacy() (*xtables.Table, error) {
	names, err := xtables.Names(p.family)
	if err != nil || !slices.Contains(names, filterTable) {
		return nil, err
	}
	t, err := xtables.Read(p.family, filterTable)
	if errors.Is(err, xtables.ErrChanged) {
		return nil, errChanged
	}
	return t, err
}

// foundIn is what the table has of ours.
func foundIn(t *xtables.Table) (*found, error) {
	f := &found{built: make(map[string][]jump), own: make(map[string][]string)}
	if t == nil {
		return f, nil
	}
	rules, err := t.Rules(nil)
	if err != nil {
		return nil, err
	}
	for _, c := range rules.Chains {
		if c.Policy != iptables.PolicyNone {
			f.built[c.Name] = nil
		} else if isOwn(c.Name) {
			f.own[c.Name] = nil
		}
	}
	index := make(map[string]uint64) // of the next rule in each chain
	for _, r := range rules.Rules {
		id := index[r.Chain]
		index[r.Chain]++
		if _, own := f.own[r.Chain]; own {
			f.own[r.Chain] = append(f.own[r.Chain], ruleText(r.Matches, r.Target))
			continue
		}
		if to, ok := r.Target.(iptables.Jump); ok && isOwn(to.Chain) {
			if _, built := f.built[r.Chain]; built {
				f.built[r.Chain] = append(f.built[r.Chain], jump{to.Chain, id, onlyComments(r.Matches)})
			}
		}
	}
	return f, nil
}

// changeLegacy finds out again under the lock of the programs, and changes the table in one
// piece.
func (p place) changeLegacy(want []chain, remove bool) error {
	unlock, err := xtables.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	t, err := p.readLegacy()
	if t == nil || err != nil {
		return err
	}
	f, err := foundIn(t)
	if err != nil {
		return err
	}
	differences := f.compare(want, remove)
	if len(differences) == 0 {
		return nil
	}
	d, err := t.Draft()
	if err != nil {
		return err
	}
	for _, diff := range differences {
		if err := diff.draw(d); err != nil {
			return err
		}
	}
	err = d.Replace()
	if errors.Is(err, unix.EAGAIN) {
		return errors.Join(errChanged, err)
	}
	return err
}

// draw changes the draft.
func (diff *difference) draw(d *xtables.Draft) error {
	own, from := d.Chain(diff.name), d.Chain(diff.from)
	if diff.remove {
		for _, c := range d.Chains { // wherever it is jumped to
			c.Rules = slices.DeleteFunc(c.Rules, func(r *xtables.DraftRule) bool { return r.Target() == own })
		}
		d.DeleteChain(own)
		return nil
	}
	if diff.create {
		var err error
		if own, err = d.AddChain(diff.name); err != nil {
			return err
		}
	}
	if diff.refill {
		own.Rules = nil
		for _, matches := range diff.want {
			r, err := d.Accept(matches...)
			if err != nil {
				return err
			}
			own.Rules = append(own.Rules, r)
		}
	}
	if diff.hook {
		r, err := d.Jump(own, diff.jump)
		if err != nil {
			return err
		}
		from.Rules = slices.Insert(from.Rules, 0, r)
	}
	return nil
}
