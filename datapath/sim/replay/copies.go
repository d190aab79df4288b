package replay

import (
	"encoding/binary"
	"hash/maphash"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// The time within which an equal packet counts as the same one, captured at a further interface on
// its way through the node.
const (
	// Retransmissions are later: TCP waits for 200 ms and more, SCTP and most users of
	// UDP for a second.
	againWindow = 5 * time.Millisecond
	// After a translation it may have waited for the decision.
	translatedWindow = 100 * time.Millisecond
)

// copies stores the packets of the last milliseconds by their contents: a capture on "any" has
// each packet once for every interface it passed.
type copies struct {
	seed  maphash.Seed
	whole recent // all packets
	first recent // those that may begin a flow, without the fields that a translation changes
}

func newCopies() *copies {
	return &copies{
		maphash.MakeSeed(), recent{span: againWindow, seen: make(map[uint64]bool)}, recent{span: translatedWindow, seen: make(map[uint64]bool)},
	}
}

// recent is a set of hashes that expire.
type recent struct {
	span  time.Duration
	seen  map[uint64]bool
	queue []sighting // the oldest first
}

type sighting struct {
	when time.Time
	hash uint64
}

// has reports whether the hash was added within the span.
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

// again reports whether the packet was just seen: everything except its TTL is the same.
func (c *copies) again(p *packet, now time.Time) bool {
	var h maphash.Hash
	h.SetSeed(c.seed)
	if p.is4() {
		_, _ = h.Write(p.data[:8]) // without the TTL and the checksum, which follows the protocol
		_ = h.WriteByte(p.data[9])
		_, _ = h.Write(p.data[12:])
	} else {
		_, _ = h.Write(p.data[:7])
		_, _ = h.Write(p.data[8:])
	}
	if c.whole.has(h.Sum64(), now) {
		return true
	}
	c.whole.note(h.Sum64(), now)
	return false
}

// request records a packet that may begin a flow, before its translation.
func (c *copies) request(p *packet, now time.Time) {
	if hash, ok := c.contents(p); ok {
		c.first.note(hash, now)
	}
}

// translated reports whether the packet was just seen, apart from addresses and ports: a proxy
// translated it during the capture.
func (c *copies) translated(p *packet, now time.Time) bool {
	hash, ok := c.contents(p)
	return ok && c.first.has(hash, now)
}

// contents is a hash of the fields that no translation changes. ok is false if different packets
// may have the same: the sequence number of a TCP packet and the tag of an SCTP one are random,
// but datagrams differ only by the identification in the IP header. A resolver that queries
// several servers at once sends the same datagram to each.
func (c *copies) contents(p *packet) (hash uint64, ok bool) {
	t := p.transport()
	var h maphash.Hash
	h.SetSeed(c.seed)
	_ = h.WriteByte(p.protocol)
	id := uint16(0)
	if p.is4() {
		id = binary.BigEndian.Uint16(p.data[4:])
		_, _ = h.Write(p.data[4:6])
	}
	switch {
	case p.tuple.Protocol == decision.TCP && len(t) >= 20:
		_, _ = h.Write(t[4:16])
		_, _ = h.Write(t[18:])
	case p.tuple.Protocol == decision.SCTP && len(t) > 12:
		_, _ = h.Write(t[4:8])
		_, _ = h.Write(t[12:])
	case p.tuple.Protocol == decision.UDP && len(t) >= 8 && id != 0:
		_, _ = h.Write(t[4:6])
		_, _ = h.Write(t[8:])
	default:
		return 0, false
	}
	return h.Sum64(), true
}
