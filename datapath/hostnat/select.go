package hostnat

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// Select returns the address of a range, both ends included, that the kernel translates a
// connection to (find_best_ips_proto, nf_nat_core.c): the same one for the same connection, and
// with persistent for the same client. dnat: it becomes the destination, else the source. All
// addresses must be of one family.
func Select(first, last, from, to netip.Addr, zone uint16, persistent, dnat bool) netip.Addr {
	if first == last || !last.IsValid() {
		return first
	}
	destination, top := words(to), 0
	if from.Is6() {
		top = 3
	}
	initial := uint32(0)
	if !persistent {
		initial = bits.ReverseBytes32(destination[top]) ^ uint32(zone)
	}
	var hashed [16]byte // union nf_inet_addr
	copy(hashed[:], from.AsSlice())
	j := rules.Hash(hashed[:], initial)
	low, high := words(first), words(last)
	var chosen [4]uint32
	full := false
	for i := range top + 1 {
		minimum, distance := low[i], high[i]-low[i]+1
		if full {
			minimum, distance = 0, ^uint32(0)
		}
		chosen[i] = minimum + uint32(uint64(j)*uint64(distance)>>32)
		if chosen[i] != high[i] {
			full = true
		}
		if !persistent {
			// The tuple is written in place: with DNAT its destination is the choice.
			d := destination[i]
			if dnat {
				d = chosen[i]
			}
			j ^= bits.ReverseBytes32(d)
		}
	}
	return fromWords(chosen, top)
}

// words are the 32-bit words of an address, the most significant first, each in host
// byte order; for IPv4 only the first is not 0.
func words(a netip.Addr) (w [4]uint32) {
	b := a.AsSlice()
	for i := range len(b) / 4 {
		w[i] = binary.BigEndian.Uint32(b[4*i:])
	}
	return w
}

func fromWords(w [4]uint32, top int) netip.Addr {
	var b [16]byte
	for i, n := range w {
		binary.BigEndian.PutUint32(b[4*i:], n)
	}
	if top == 0 {
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrFrom16(b)
}

// netmap replaces the network of an address by that of first to last, which is a prefix
// (nf_nat_mapping_range, xt_NETMAP.c).
func netmap(first, last, a netip.Addr) netip.Addr {
	low, high, host := words(first), words(last), words(a)
	top := 0
	if a.Is6() {
		top = 3
	}
	for i := range host {
		mask := low[i] ^ high[i] // the bits of the host
		host[i] = low[i]&^mask | host[i]&mask
	}
	return fromWords(host, top)
}
