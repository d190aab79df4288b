package balance

import (
	"encoding/binary"
	"net/netip"

	"github.com/cespare/xxhash/v2"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// buckets is the number of buckets of IPVS's schedulers sh and dh (IP_VS_SH_TAB_BITS and
// IP_VS_DH_TAB_BITS are 8 by default).
const bucketBits, buckets = 8, 1 << bucketBits

// hashed selects by a hash of an address: the schedulers sh, of the source, and dh, of the destination.
// With dh all flows to one address of a service go to one endpoint; it is meant for caches.
type hashed struct {
	destination bool
	buckets     [buckets]uint32 // positions in Set.Candidates
}

// newHashed fills the buckets in turn: sh gives each endpoint as many in a row as its weight
// (ip_vs_sh_reassign in ip_vs_sh.c), dh one (ip_vs_dh_reassign in ip_vs_dh.c). An endpoint of weight 0
// gets none, where IPVS would drop the flows of its buckets.
func newHashed(set *Set, destination bool) Picker {
	p := &hashed{destination: destination}
	in := set.positions(true)
	if len(in) == 0 {
		in = []uint32{0}
	}
	k, filled := 0, 0
	for b := range p.buckets {
		p.buckets[b] = in[k]
		if filled++; destination || filled >= int(set.Candidates[in[k]].Weight) {
			k, filled = (k+1)%len(in), 0
		}
	}
	return p
}

func (p *hashed) Pick(f Flow) decision.Pick {
	a := f.Packet.Source.Addr()
	if p.destination {
		a = f.Packet.Destination.Addr()
	}
	b := bucketOf(a)
	return decision.Pick{
		Position: p.buckets[b], Probability: 1,
		Evidence: decision.Evidence{Kind: decision.Slot, Values: [3]uint32{b, buckets}},
	}
}

// goldenRatio32 is GOLDEN_RATIO_32 of linux/hash.h.
const goldenRatio32 = 0x61C88647

// bucketOf is ip_vs_sh_hashkey and ip_vs_dh_hashkey without flags: hash_32 of the address; of an IPv6
// address the words are combined with exclusive or.
func bucketOf(a netip.Addr) uint32 {
	b := a.As16()
	v := binary.BigEndian.Uint32(b[12:])
	if a = a.Unmap(); a.Is6() {
		v ^= binary.BigEndian.Uint32(b[0:]) ^ binary.BigEndian.Uint32(b[4:]) ^ binary.BigEndian.Uint32(b[8:])
	}
	return v * goldenRatio32 >> (32 - bucketBits)
}

// DefaultMaglevSize is the number of slots of a table of the algorithm maglev: the smaller of the two
// sizes that its authors evaluate.
const DefaultMaglevSize = 65537

// maxMaglevSize is the largest number of slots, which is prime: the larger of these two. IPVS's scheduler mh has up to 131,071.
const maxMaglevSize = 655373

// maglev selects by a table of slots, to which a hash of the flow's addresses and ports points. Each
// endpoint gets slots in proportion to its weight, and most slots keep their endpoint if the set
// changes. All nodes have the same table for the same endpoints. See Eisenbud et al., Maglev: A Fast
// and Reliable Software Network Load Balancer, NSDI 2016, section 3.4.
type maglev struct{ slots []uint16 }

// newMaglev fills the table. Each endpoint has a permutation of the slots, and in turn takes the
// first one of it that is free. One with half the largest weight takes its turn every second time.
func newMaglev(set *Set, size int) Picker {
	type state struct {
		offset, skip, next uint64
		weight, due        int
	}
	m := uint64(size)
	all := make([]state, len(set.Candidates))
	heaviest := 0
	for i := range set.Candidates {
		name := set.Candidates[i].AddrPort.String()
		all[i] = state{
			offset: xxhash.Sum64String("offset "+name) % m, skip: xxhash.Sum64String("skip "+name)%(m-1) + 1,
			weight: int(set.Candidates[i].Weight),
		}
		heaviest = max(heaviest, all[i].weight)
	}
	if heaviest == 0 {
		heaviest = 1
		for i := range all {
			all[i].weight = 1
		}
	}
	const free = 1<<16 - 1
	p := &maglev{slots: make([]uint16, size)}
	for i := range p.slots {
		p.slots[i] = free
	}
	for filled := 0; ; {
		for i := range all {
			e := &all[i]
			if e.due += e.weight; e.due < heaviest {
				continue
			}
			e.due -= heaviest
			slot := (e.offset + e.next*e.skip) % m
			for p.slots[slot] != free {
				e.next++
				slot = (e.offset + e.next*e.skip) % m
			}
			p.slots[slot] = uint16(i)
			e.next++
			if filled++; filled == size {
				return p
			}
		}
	}
}

func (p *maglev) Pick(f Flow) decision.Pick {
	slot := HashFlow(f.Packet) % uint64(len(p.slots))
	return decision.Pick{
		Position: uint32(p.slots[slot]), Probability: 1,
		Evidence: decision.Evidence{Kind: decision.Slot, Values: [3]uint32{uint32(slot), uint32(len(p.slots))}},
	}
}

// HashFlow is a hash of addresses, ports and protocol: the same on all nodes and machines.
func HashFlow(p *decision.Packet) uint64 {
	var b [37]byte
	source, destination := p.Source.Addr().As16(), p.Destination.Addr().As16()
	copy(b[0:], source[:])
	copy(b[16:], destination[:])
	binary.BigEndian.PutUint16(b[32:], p.Source.Port())
	binary.BigEndian.PutUint16(b[34:], p.Destination.Port())
	b[36] = uint8(p.Protocol)
	return xxhash.Sum64(b[:])
}
