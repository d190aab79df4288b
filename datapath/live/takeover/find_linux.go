package takeover

import (
	"errors"
	"fmt"
	"net"

	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
)

// ipvsDevice is the interface with the services' addresses in mode ipvs.
const ipvsDevice = "kube-ipvs0"

// Find looks for kube-proxy's rules in the calling thread's network namespace. It changes nothing
// and loads no kernel module. It needs CAP_NET_ADMIN.
func Find() (*Rules, error) {
	l := new(Rules)
	err := errors.Join(l.findNFT(), l.findLegacy())
	if err != nil {
		return nil, fmt.Errorf("look for kube-proxy's rules: %w", err)
	}
	if _, err := net.InterfaceByName(ipvsDevice); err == nil {
		l.notes = append(l.notes, "IPVS: interface "+ipvsDevice+" with the services' addresses, the virtual servers and the ipsets stay: "+
			"remove them with kube-proxy's own --cleanup, or reboot the node")
	}
	return l, nil
}

// maxAttempts is how often Remove reads a table again if another program changes it.
const maxAttempts = 5

// Remove removes the rules that were found: each table of the kernel in one transaction, all or
// nothing. If a table has changed in between, it reads the table again and removes what it finds
// then; missing rules are no error. It works on the calling thread's network namespace, which must
// be the one of Find, and needs CAP_NET_ADMIN. Afterwards Lines still lists what has been removed.
func (l *Rules) Remove() error {
	var err error
	current := l
	for range maxAttempts {
		if err = current.remove(); !errors.Is(err, errChanged) {
			break
		}
		var again error
		if current, again = Find(); again != nil {
			return again
		}
	}
	if err != nil {
		return fmt.Errorf("remove kube-proxy's rules: %w", err)
	}
	return nil
}

// errChanged reports that a table changed since it was read.
var errChanged = errors.New("the rules changed meanwhile, or rules of other programs use them; is kube-proxy still running?")

func (l *Rules) remove() error {
	var errs []error
	for _, t := range l.tables {
		if err := removeOwnTable(t.family); err != nil {
			errs = append(errs, fmt.Errorf("nftables table %s %s: %w", nftName(t.family), ownTableName, err))
		}
	}
	for _, r := range l.removals {
		remove := r.removeNFT
		if r.table.Backend == xtables.Legacy {
			remove = r.removeLegacy
		}
		if err := remove(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r.table, err))
		}
	}
	return errors.Join(errs...)
}
