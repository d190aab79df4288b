package ruleset

import (
	"encoding/binary"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Alive is a dead-man's switch: packets are queued only while a set has an element with a timeout. The
// daemon extends the timeout by sending packets with a mark; it does not change the set itself,
// because each change makes the listings of other programs start again. The zero Alive is no switch:
// packets are always queued.
type Alive struct {
	// Mark is the packet mark of the packets that extend the timeout. Their address family's packets
	// must reach the output hook.
	Mark uint32
	// Timeout is how long packets are queued after the last such packet.
	Timeout time.Duration
	// IPv4 and IPv6: the switch exists in the family.
	IPv4, IPv6 bool
}

// in reports whether the switch exists in a family.
func (a *Alive) in(f family) bool { return a.IPv4 && f == ipv4 || a.IPv6 && f == ipv6 }

// aliveSize is the size of the set. Expired elements count until the kernel collects them.
const aliveSize = 16

// etherType is the key of the set: every packet of the table has the same.
func etherType() keyed { return concat(meta("meta protocol", expr.MetaKeyPROTOCOL)) }

// aliveKey is the only key of the set, with which it begins.
func (t *table) aliveKey() string {
	protocol := uint16(unix.ETH_P_IP)
	if t.family == ipv6 {
		protocol = unix.ETH_P_IPV6
	}
	return string(binary.BigEndian.AppendUint16(nil, protocol))
}

// whileAlive is the clause of rules that queue packets.
func (t *table) whileAlive() rule {
	if t.alive == nil {
		return nil
	}
	return rule{etherType().in(t.alive)}
}

// extend is the rule for the packets that extend the timeout.
func (spec *Spec) extend(t *table) []rule {
	if t.alive == nil {
		return nil
	}
	return []rule{{packetMarkIs(spec.Alive.Mark), etherType().refreshed(t.alive), drop()}}
}

// IsAlive reports whether packets of a family are queued at present.
func (r *Ruleset) IsAlive(f decision.Family) (bool, error) {
	t := r.tables.of(f)
	if t.alive == nil {
		return true, nil
	}
	elements, err := t.readElements(t.alive)
	return len(elements) > 0, err
}
