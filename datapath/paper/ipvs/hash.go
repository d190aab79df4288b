package ipvs

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
)

// buckets is the size of the tables of sh and dh (IP_VS_SH_TAB_BITS, IP_VS_DH_TAB_BITS: 8).
const buckets = 256

// fold is an address as the hashes of IPVS take it: for IPv6 the exclusive or of its four words.
func fold(a netip.Addr) (sum uint32) {
	b := a.AsSlice()
	for len(b) >= 4 {
		sum ^= binary.BigEndian.Uint32(b)
		b = b[4:]
	}
	return sum
}

// bucket is ip_vs_sh_hashkey and ip_vs_dh_hashkey since Linux 4.17: hash_32 (hash.h) of the address plus the port, with 8
// bits.
func bucket(a netip.Addr, port uint16) uint32 {
	const goldenRatio = 0x61c88647
	return (fold(a) + uint32(port)) * goldenRatio >> 24
}

// byOrder is the basis of the schedulers with tables, which are filled in the order of the real servers.
const byOrder = "which one depends on the order of the real servers in the kernel, which ipvsadm shows with --nosort"

// sourceHash is ip_vs_sh.c: the bucket of the client's address names the real server.
func (v *VirtualServer) sourceHash(c Client) Choice {
	table := make([]*RealServer, buckets) // ip_vs_sh_reassign: each real server has as many buckets in a row as its weight
	for i, server, filled := 0, 0, 0; i < buckets; i++ {
		table[i] = &v.Real[server]
		if filled++; filled >= v.Real[server].Weight {
			server, filled = (server+1)%len(v.Real), 0
		}
	}
	port := uint16(0)
	if v.has("sh-port", "flag-2") {
		port = c.From.Port()
	}
	fallback := v.has("sh-fallback", "flag-1")
	at := func(hash uint32) *RealServer { // ip_vs_sh_get, ip_vs_sh_get_fallback
		if r := table[hash]; r.Weight > 0 || !fallback {
			return r
		}
		for offset := range uint32(buckets) {
			if r := table[(hash+(offset+hash)%buckets)%buckets]; r.Weight > 0 {
				return r
			}
		}
		return table[hash]
	}
	what := "the client's address"
	if port != 0 || v.has("sh-port", "flag-2") {
		what = "the client's address and port"
	}
	if v.orderKnown() && c.From.IsValid() {
		return one(at(bucket(c.From.Addr(), port)), "sh selects by "+what)
	}
	out := v.ofTable(buckets, at)
	out.Basis = "sh selects by " + what
	if !v.orderKnown() {
		out.unordered()
	}
	return out
}

// ofTable is the choice of a client that is not known: a bucket at random.
func (v *VirtualServer) ofTable(size uint32, at func(uint32) *RealServer) (out Choice) {
	hits := make(map[*RealServer]int)
	for hash := range size {
		hits[at(hash)]++
	}
	for i := range v.Real {
		r := &v.Real[i]
		switch p := float64(hits[r]) / float64(size); {
		case p == 0:
		case r.Weight == 0:
			out.Refused += p
		default:
			out.Shares = append(out.Shares, Share{r, p})
		}
	}
	return out
}

// unordered notes that the order of the real servers, and so the table, is not known.
func (c *Choice) unordered() {
	c.Basis += ": " + byOrder
	if len(c.Shares) > 1 || c.Refused > 0 {
		c.Assumed = "that it is each of these with its share of the table"
	}
}

// one is a choice that is certain.
func one(r *RealServer, basis string) Choice {
	if r.Weight == 0 {
		return Choice{Refused: 1, Basis: fmt.Sprintf("%s: %s, which has weight 0, and no other", basis, r.Address)}
	}
	return Choice{Shares: []Share{{r, 1}}, Basis: basis}
}

// destinationHash is ip_vs_dh.c: the bucket of the destination's address names the real server. The table is filled by
// turns, whatever the weights (ip_vs_dh_reassign).
func (v *VirtualServer) destinationHash(c Client) Choice {
	if v.orderKnown() {
		return one(&v.Real[bucket(c.To.Addr(), 0)%uint32(len(v.Real))], "dh selects by the destination's address")
	}
	out := v.possible("dh selects one real server for all connections to an address: "+byOrder, v.takers())
	all := len(v.Real)
	if n := all - len(out.Shares); n > 0 {
		out.Refused = float64(n) / float64(all)
		for i := range out.Shares {
			out.Shares[i].Probability = 1 / float64(all)
		}
		out.Assumed = fmt.Sprintf("that each of %d real servers is as likely as the others; those with weight 0 take no connections", all)
	}
	return out
}

// slots is the size of the table of mh, by the default of the kernel's configuration (CONFIG_IP_VS_MH_TAB_INDEX 12).
const slots = 4093

// The keys of mh (generate_hash_secret).
const (
	maglevKey1 = 2654435761
	maglevKey2 = 2654446892
)

// maglev is ip_vs_mh.c, on 64-bit kernels: Maglev hashing of the client's address.
func (v *VirtualServer) maglev(c Client) Choice {
	what := "the client's address"
	port := uint16(0)
	if v.has("mh-port", "flag-2") {
		port, what = c.From.Port(), "the client's address and port"
	}
	basis := "mh selects by " + what
	takers := v.takers()
	switch {
	case len(v.Real) > slots:
		return Choice{Refused: 1, Basis: fmt.Sprintf("mh takes at most %d real servers", slots)}
	case len(takers) < len(v.Real):
		// Their places in the table are by their last weight that was not 0.
		return v.possible(basis+": the places in the table of real servers with weight 0 are by an earlier weight, which is not in the file", takers)
	}
	table := v.maglevTable()
	if !v.orderKnown() || !c.From.IsValid() {
		out := v.ofTable(slots, func(slot uint32) *RealServer { return table[slot] })
		out.Basis = basis
		if !v.orderKnown() {
			out.unordered()
		}
		return out
	}
	return one(table[siphash13(fold(c.From.Addr())+uint32(port), maglevKey1)%slots], basis)
}

// maglevTable is ip_vs_mh_populate.
func (v *VirtualServer) maglevTable() []*RealServer {
	divisor, most := 0, 0
	for i := range v.Real {
		divisor, most = gcd(v.Real[i].Weight, divisor), max(most, v.Real[i].Weight)
	}
	shift := max(0, bits.Len(uint(most/divisor))-6) // ip_vs_mh_shift_weight; IP_VS_MH_TAB_BITS is 12/2
	type setup struct {
		next, skip uint32
		turns      int
	}
	setups := make([]setup, len(v.Real))
	for i := range v.Real {
		r := &v.Real[i]
		word := fold(r.Address.Addr()) + uint32(r.Address.Port())
		setups[i] = setup{siphash13(word, maglevKey1) % slots, siphash13(word, maglevKey2)%(slots-1) + 1, max(1, r.Weight/divisor>>shift)}
	}
	table := make([]*RealServer, slots)
	for filled := 0; filled < slots; {
		for i := range setups {
			s := &setups[i]
			for turn := 0; turn < s.turns && filled < slots; turn++ {
				for table[s.next] != nil {
					s.next = (s.next + s.skip) % slots
				}
				table[s.next] = &v.Real[i]
				filled++
			}
		}
	}
	return table
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// siphash13 is hsiphash of one 32-bit word on 64-bit kernels (hsiphash_1u32, lib/siphash.c), with a key of two equal
// halves.
func siphash13(word uint32, key uint64) uint32 { return hsiphash(word, key, key) }

func hsiphash(word uint32, key0, key1 uint64) uint32 {
	v0, v1 := 0x736f6d6570736575^key0, 0x646f72616e646f6d^key1
	v2, v3 := 0x6c7967656e657261^key0, 0x7465646279746573^key1
	round := func() {
		v0 += v1
		v1 = bits.RotateLeft64(v1, 13) ^ v0
		v0 = bits.RotateLeft64(v0, 32)
		v2 += v3
		v3 = bits.RotateLeft64(v3, 16) ^ v2
		v0 += v3
		v3 = bits.RotateLeft64(v3, 21) ^ v0
		v2 += v1
		v1 = bits.RotateLeft64(v1, 17) ^ v2
		v2 = bits.RotateLeft64(v2, 32)
	}
	b := uint64(4)<<56 | uint64(word)
	v3 ^= b
	round()
	v0 ^= b
	v2 ^= 0xff
	round()
	round()
	round()
	return uint32(v0 ^ v1 ^ v2 ^ v3)
}
