package ruleset

import (
	"fmt"

	"github.com/nfqproxy/nfqproxy/conntrack"
)

// Seen removes UDP flows from the sets of those that need no decision. It works on the installed ruleset by name,
// independent of the [Ruleset] that installed it, if that used the same connection or does not own the tables. It is
// not safe for concurrent use.
type Seen struct{ *remover }

// Seen returns the sets.
func (c *Connection) Seen() *Seen { return &Seen{newRemover(c)} }

// Forget removes the tuples, so that the next packet with one of them is queued. Tuples in no set, and a missing
// ruleset, are not errors.
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
