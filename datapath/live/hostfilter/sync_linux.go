package hostfilter

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
)

// errChanged reports that a table keeps changing.
var errChanged = errors.New("the rules change faster than they can be read and written")

// maxAttempts is how often a table is read and written again if other programs change it
// meanwhile.
const maxAttempts = 10

// sync corrects the table and returns the changes; absent: it has none of the chains that could
// jump to ours.
func (p place) sync(spec Spec, remove bool) (changed []string, absent bool, err error) {
	want := spec.chains(p.Family)
	for range maxAttempts {
		var f found
		if f, err = p.read(want); err == nil {
			differences := f.compare(want, remove)
			if len(differences) == 0 {
				absent = !slices.ContainsFunc(want, func(c chain) bool { _, built := f[c.from]; return built })
				return changed, absent, nil
			}
			if p.Backend == xtables.NFT {
				err = p.changeNFT(differences)
			} else {
				err = p.changeLegacy(want, remove)
			}
			if err == nil && changed == nil {
				for _, d := range differences {
					changed = append(changed, d.changed...)
				}
			}
		}
		if err != nil && !nft.IsChanged(err) {
			return changed, false, fmt.Errorf("%s: %w", p, err)
		}
	}
	// Without an error it was written, and is not found again.
	return changed, false, fmt.Errorf("%s: %w", p, errors.Join(errChanged, err))
}

func (p place) read(want []chain) (found, error) {
	if p.Backend == xtables.NFT {
		return p.readNFT(want)
	}
	chains, err := xtables.Chains(p.Family, filterTable)
	return p.foundIn(chains), err
}

// Remove removes our rules from the host's tables, in the calling thread's network namespace, and
// returns what it removed, one line for each chain. If the host's firewall has a policy DROP,
// established flows need the rules until they end; so a proxy that stops leaves them, and the next
// one takes them over. nfqproxy must not be running. It needs CAP_NET_ADMIN.
func Remove() (removed []string, err error) {
	for _, p := range places {
		changed, _, e := p.sync(Spec{}, true)
		for _, c := range changed {
			removed = append(removed, fmt.Sprintf("%s: %s", p, c))
		}
		err = errors.Join(err, e)
	}
	if err != nil {
		err = fmt.Errorf("remove the rules that accept flows to services: %w", err)
	}
	return removed, err
}

// foundIn returns the chains that matter of a table of the legacy back end.
func (p place) foundIn(chains []*xtables.Chain) found {
	f := make(found)
	for _, c := range chains {
		if !c.Base && c.Name != forwardChain && c.Name != healthCheckChain {
			continue
		}
		f[c.Name] = nil
		for _, e := range c.Rules {
			conditions, all := e.Conditions(p.Family)
			r := rule{Conditions: conditions, accept: e.Target == xtables.StandardTarget && e.Verdict == xtables.Accept, other: !all}
			if e.To != nil {
				r.to = e.To.Name
			}
			f[c.Name] = append(f[c.Name], r)
		}
	}
	return f
}

// changeLegacy compares again under the lock of the iptables programs, and replaces the table as a
// whole.
func (p place) changeLegacy(want []chain, remove bool) error {
	return xtables.Edit(p.Family, filterTable, func(d *xtables.Draft) (changed bool) {
		differences := p.foundIn(d.Chains).compare(want, remove)
		for _, diff := range differences {
			diff.draw(d)
		}
		return len(differences) > 0
	})
}

// draw changes the draft.
func (diff *difference) draw(d *xtables.Draft) {
	own, from := d.Chain(diff.name), d.Chain(diff.from)
	if diff.remove {
		for _, c := range d.Chains { // every jump to it
			c.Rules = slices.DeleteFunc(c.Rules, func(r xtables.Rule) bool { return r.To == own })
		}
		d.Chains = slices.DeleteFunc(d.Chains, func(c *xtables.Chain) bool { return c == own })
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
