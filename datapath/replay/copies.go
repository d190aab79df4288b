package replay

import (
	"encoding/binary"
	"hash/maphash"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// copyWindow is how long after a packet another one like it is taken for the same packet,
// captured at a further interface on its way through the node. Retransmissions are later:
// TCP waits for 200 ms and more, SCTP and most users of UDP for a second.
const copyWindow = 5 * time.Millisecond

// copies remembers the packets of the last milliseconds by their contents: a capture on
// "any" has each packet once for every interface it passed.
type copies struct {
	seed  maphash.Seed
	seen  map[uint64]*trackedFlow // flow: what a first packet began; else nil
	queue []sighting              // the oldest first
}

type sighting struct {
	when time.Time
	hash uint64
}

func newCopies() *copies {
	return &copies{seed: maphash.MakeSeed(), seen: make(map[uint64]*trackedFlow)}
}

// age forgets what is too old to be the same packet.
func (c *copies) age(now time.Time) {
	n := 0
	for n < len(c.queue) && now.Sub(c.queue[n].when) > copyWindow {
		delete(c.seen, c.queue[n].hash)
		n++
	}
	c.queue = c.queue[n:]
}

// again says whether the packet was just seen: everything but its TTL is the same.
func (c *copies) again(p *packet, now time.Time) bool {
	c.age(now)
	var h maphash.Hash
	h.SetSeed(c.seed)
	if p.is4() {
		_, _ = h.Write(p.data[:8]) // without TTL and, behind the protocol, checksum
		_ = h.WriteByte(p.data[9])
		_, _ = h.Write(p.data[12:])
	} else {
		_, _ = h.Write(p.data[:7])
		_, _ = h.Write(p.data[8:])
	}
	if _, ok := c.seen[h.Sum64()]; ok {
		return true
	}
	c.note(h.Sum64(), nil, now)
	return false
}

// begun notes the first packet of a flow, before it is translated.
func (c *copies) begun(p *packet, f *trackedFlow, now time.Time) {
	if hash, ok := c.contents(p); ok {
		c.note(hash, f, now)
	}
}

// original is the flow that just began with the same packet, but for addresses and ports:
// a proxy translated it while the capture was taken. nil: none.
func (c *copies) original(p *packet) *trackedFlow {
	hash, ok := c.contents(p)
	if !ok {
		return nil
	}
	return c.seen[hash]
}

func (c *copies) note(hash uint64, f *trackedFlow, now time.Time) {
	if _, ok := c.seen[hash]; !ok {
		c.queue = append(c.queue, sighting{now, hash})
	}
	c.seen[hash] = f
}

// contents is a hash of what no translation changes. ok is false for what different
// packets may share: the sequence number of a TCP packet and the tag of an SCTP one
// are random, but a datagram is told from others only by an identification in its IP
// header. A resolver that asks several servers at once sends the same datagram to each.
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
