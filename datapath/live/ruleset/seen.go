package ruleset

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/google/nftables/expr"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// Forget removes UDP flows from the sets of those that need no decision, so that the next packet with one of the tuples is
// queued. It works on the installed ruleset by name, independent of the [Ruleset] that installed it, if that used the
// same connection or does not own the tables. Tuples in no set, and a missing ruleset, are not errors.
func (c *Connection) Forget(tuples []conntrack.Tuple) error {
	elements := make([]elementOf, len(tuples))
	for i, t := range tuples {
		// As flowKey has it, each field filled up to whole registers.
		key := addrBytes(t.Source.Addr()) + addrBytes(t.Destination.Addr()) +
			portBytes(t.Source.Port()) + "\x00\x00" + portBytes(t.Destination.Port()) + "\x00\x00"
		elements[i] = elementOf{nft.Family(decision.FamilyOf(t.Source.Addr())), "seen", key}
	}
	if err := c.remove(elements); err != nil {
		return fmt.Errorf("forget flows in set seen of nftables table %s: %w", TableName, err)
	}
	return nil
}

// unansweredTimeout is how long a UDP flow with one datagram and no reply is remembered: the flows
// of spoofed sources must not keep others out of the set. The next datagram, of either direction,
// extends it to Spec.SeenTimeout.
const unansweredTimeout = 2 * time.Second

// learnRules remember the UDP flows that conntrack knows, by a key of their packets.
func (spec *Spec) learnRules(t *table, key keyed) []rule {
	return []rule{
		{ctState("new", expr.CtStateBitNEW, true), key.notIn(t.seen), key.refreshed(t.seen, min(unansweredTimeout, spec.SeenTimeout))},
		{key.notIn(t.seen), key.refreshed(t.seen, 0)},
	}
}

// elementOf is an element of a set in the table of a family (NFPROTO_...).
type elementOf struct {
	family   uint8
	set, key string
}

// msgDestroySetElem is NFT_MSG_DESTROYSETELEM (linux/netfilter/nf_tables.h, since 6.3): it ignores
// missing elements.
const msgDestroySetElem = 30

// maxRemoved is how many elements one transaction removes. If all of them are missing, as many
// replies must fit into the socket's receive buffer.
const maxRemoved = 128

// remove removes elements of any set. Missing ones, or a missing table, are no error.
func (c *Connection) remove(elements []elementOf) error {
	for some := range slices.Chunk(elements, maxRemoved) {
		if err := c.removeSome(some); err != nil {
			return err
		}
	}
	return nil
}

// removeSome removes the elements in one transaction. With NFT_MSG_DELSETELEM one missing element
// fails it as a whole, but the kernel names all missing ones: it is repeated without those, and
// again if others expired meanwhile. Each try costs a grace period of RCU, some 10 ms.
func (c *Connection) removeSome(elements []elementOf) error {
	for len(elements) > 0 {
		var t nft.Transaction
		message := int(c.removal.Load())
		for _, e := range elements {
			t.Separate()
			t.AddElement(e.family, message, TableName, e.set, nft.Element{Key: e.key})
		}
		refused, err := c.try(&t)
		if err != nil || len(refused) == 0 {
			return err
		}
		var left []elementOf
		for i, e := range elements {
			if errors.Is(refused[i], unix.ENOENT) { // or its table is missing
				delete(refused, i)
			} else {
				left = append(left, e)
			}
		}
		switch err := errors.Join(slices.Collect(maps.Values(refused))...); {
		case errors.Is(err, unix.EINVAL) && message != unix.NFT_MSG_DELSETELEM:
			c.removal.Store(unix.NFT_MSG_DELSETELEM)
			left = elements
		case err != nil:
			return err
		}
		elements = left
	}
	return nil
}
