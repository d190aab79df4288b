package hostfilter

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
)

// readLegacy reads the table; nil: it does not exist.
func (p place) readLegacy() (*xtables.Table, error) {
	t, err := xtables.ReadLoaded(p.Family, filterTable)
	if errors.Is(err, xtables.ErrChanged) {
		return nil, errChanged
	}
	return t, err
}

// foundIn returns our chains and jumps in the table.
func foundIn(t *xtables.Table) (*found, error) {
	f := newFound()
	if t == nil {
		return f, nil
	}
	chains, err := t.Chains()
	if err != nil {
		return nil, err
	}
	for _, s := range chains {
		switch {
		case s.Base:
			f.built[s.Name] = nil
		case isOwn(s.Name):
			f.own[s.Name] = nil
		default:
			continue
		}
		for i, e := range s.Rules {
			r, err := legacyRule(t.Family, e)
			if err != nil {
				return nil, fmt.Errorf("chain %s, rule %d: %w", s.Name, i+1, err)
			}
			f.add(s.Name, uint64(i), r)
		}
	}
	return f, nil
}

func legacyRule(f decision.Family, e xtables.Rule) (r rule, err error) {
	all := false
	r.Conditions, all = e.Conditions(f)
	r.other = !all
	r.accept = e.Target == xtables.StandardTarget && e.Verdict == xtables.Accept
	r.to, err = e.To()
	return r, err
}

// changeLegacy compares again under the lock of the iptables programs, and replaces the table as a
// whole.
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
		diff.draw(d)
	}
	err = d.Replace()
	if errors.Is(err, unix.EAGAIN) {
		return errors.Join(errChanged, err)
	}
	return err
}

// draw changes the draft.
func (diff *difference) draw(d *xtables.Draft) {
	own, from := d.Chain(diff.name), d.Chain(diff.from)
	if diff.remove {
		for _, c := range d.Chains { // every jump to it
			c.Rules = slices.DeleteFunc(c.Rules, func(r *xtables.DraftRule) bool { return r.Target() == own })
		}
		d.DeleteChain(own)
		return
	}
	if diff.create {
		own = d.AddChain(diff.name)
	}
	if diff.refill {
		own.Rules = nil
		for _, c := range diff.want {
			own.Rules = append(own.Rules, d.Accept(c))
		}
	}
	if diff.hook {
		from.Rules = slices.Insert(from.Rules, 0, d.Jump(own, diff.jump))
	}
}
