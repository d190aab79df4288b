package balance

import (
	"encoding/binary"
	"net/netip"

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
	var in []uint32
	for i := range set.Candidates {
		if set.Candidates[i].Weight > 0 {
			in = append(in, uint32(i))
		}
	}
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
