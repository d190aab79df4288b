package ruleset

import (
	"fmt"

	"github.com/nfqproxy/nfqproxy/conntrack"
)

// Seen removes UDP flows from the sets of those that need no decision. It works on the installed
// ruleset by name, independent of the [Ruleset] that installed it. It is not safe for concurrent
// use.
type Seen struct{ *remover }

// OpenSeen opens the sets of the calling thread's network namespace.
func OpenSeen() (*Seen, error) {
	r, err := openRemover()
	if err != nil {
		return nil, err
	}
	return &Seen{r}, nil
}

// Forget removes the tuples, so that the next packet with one of them is queued. Tuples that are
// in no set, or a missing ruleset, are no error.
func (s *Seen) Forget(tuples []conntrack.Tuple) error {
	elements := make([]elementOf, len(tuples))
	for i, t := range tuples {
		// As flowKey has it, each field filled up to whole registers.
		key := addrBytes(t.Source.Addr()) + addrBytes(t.Destination.Addr()) +
			portBytes(t.Source.Port()) + "\x00\x00" + portBytes(t.Destination.Port()) + "\x00\x00"
		elements[i] = elementOf{familyOf(t.Source.Addr()), "seen", key}
	}
	if err := s.remove(elements); err != nil {
		return fmt.Errorf("forget flows in set seen of nftables table %s: %w", TableName, err)
	}
	return nil
}
