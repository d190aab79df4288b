package hostfilter

import (
	"errors"
	"fmt"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
)

// errChanged reports that a table changed since it was read.
var errChanged = errors.New("the rules change faster than they can be read and written")

// maxAttempts is how often a table is read and written again if other programs change it
// meanwhile.
const maxAttempts = 10

// sync corrects the table and returns the changes; absent: it has none of the chains that could
// jump to ours.
func (p place) sync(spec Spec, remove bool) (changed []string, absent bool, err error) {
	want := spec.chains(p.Family)
	for range maxAttempts {
		var f *found
		if f, err = p.read(want); err == nil {
			differences := f.compare(want, remove)
			if len(differences) == 0 {
				return changed, len(f.built) == 0, nil
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
		if err != nil && !errors.Is(err, errChanged) && !errors.Is(err, nft.ErrChanged) {
			break
		}
	}
	if err == nil {
		err = errChanged // it was written, and is not found again
	}
	return changed, false, fmt.Errorf("%s: %w", p, err)
}

func (p place) read(want []chain) (*found, error) {
	if p.Backend == xtables.NFT {
		return p.readNFT(want)
	}
	t, err := p.readLegacy()
	if err != nil {
		return nil, err
	}
	return foundIn(t)
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
