package replay

import (
	"encoding/binary"
	"hash/maphash"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/packet"
)

// How long after a packet another one like it is taken for the same packet, captured at a
// further interface on its way through the node.
const (
	// Retransmissions are later: TCP waits for 200 ms and more, SCTP and most users of
	// UDP for a second.
	againWindow = 5 * time.Millisecond
	// Behind a translation it may have waited for a decision.
	translatedWindow = 100 * time.Millisecond
)

// copies remembers the packets of the last milliseconds by their contents: a capture on
// "any" has each packet once for every interface it passed.
type copies struct {
	seed  maphash.Seed
	whole recent // all packets
	first recent // those that may begin a flow, without what a translation changes
}

func newCopies() *copies {
	return &copies{
		maphash.MakeSeed(), recent{span: againWindow, seen: make(map[uint64]bool)}, recent{span: translatedWindow, seen: make(map[uint64]bool)},
	}
}

// recent is a set of hashes that forgets.
type recent struct {
	span  time.Duration
	seen  map[uint64]bool
	queue []sighting // the oldest first
}

type sighting struct {
	when time.Time
	hash uint64
}

// has reports whether the hash was noted within the span.
func (r *recent) has(hash uint64, now time.Time) bool {
	n := 0
	for n < len(r.queue) && now.Sub(r.queue[n].when) > r.span {
		delete(r.seen, r.queue[n].hash)
		n++
	}
	r.queue = r.queue[n:]
	return r.seen[hash]
}

func (r *recent) note(hash uint64, now time.Time) {
	if !r.seen[hash] {
		r.seen[hash] = true
		r.queue = append(r.queue, sighting{now, hash})
	}
}

// again reports whether the packet was just seen: everything but its TTL is the same.
func (c *copies) again(p *captured, now time.Time) bool {
	var h maphash.Hash
	h.SetSeed(c.seed)
	if p.Is4() {
		_, _ = h.Write(p.Data[:8]) // without TTL and, behind the protocol, checksum
		_ = h.WriteByte(p.Data[9])
		_, _ = h.Write(p.Data[12:])
	} else {
		_, _ = h.Write(p.Data[:7])
		_, _ = h.Write(p.Data[8:])
	}
	if c.whole.has(h.Sum64(), now) {
		return true
	}
	c.whole.note(h.Sum64(), now)
	return false
}

// request notes a packet that may begin a flow, before it is translated.
func (c *copies) request(p *captured, now time.Time) {
	if hash, ok := c.contents(p); ok {
		c.first.note(hash, now)
	}
}

// translated reports whether the packet is one that was just seen, but for addresses and
// ports: a proxy translated it while the capture was taken.
func (c *copies) translated(p *captured, now time.Time) bool {
	hash, ok := c.contents(p)
	return ok && c.first.has(hash, now)
}

// contents is a hash of what no translation changes. ok is false for what different
// packets may share: the sequence number of a TCP packet and the tag of an SCTP one
// are random, but a datagram is distinguished only by an identification in its IP
// header. A resolver that queries several servers at once sends the same datagram to each.
func (c *copies) contents(p *captured) (hash uint64, ok bool) {
	t := p.Transport()
	var h maphash.Hash
	h.SetSeed(c.seed)
	_ = h.WriteByte(p.Protocol)
	id := uint16(0)
	if p.Is4() {
		id = binary.BigEndian.Uint16(p.Data[4:])
		_, _ = h.Write(p.Data[4:6])
	}
	switch {
	case p.Tuple.Protocol == packet.TCP && len(t) >= 20:
		_, _ = h.Write(t[4:16])
		_, _ = h.Write(t[18:])
	case p.Tuple.Protocol == packet.SCTP && len(t) > 12:
		_, _ = h.Write(t[4:8])
		_, _ = h.Write(t[12:])
	case p.Tuple.Protocol == packet.UDP && len(t) >= 8 && id != 0:
		_, _ = h.Write(t[4:6])
		_, _ = h.Write(t[8:])
	default:
		return 0, false
	}
	return h.Sum64(), true
}
