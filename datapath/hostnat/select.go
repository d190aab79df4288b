package hostnat

import "net/netip"

// Select returns the address of a range, both ends included, that the kernel translates a
// connection to (find_best_ips_proto, nf_nat_core.c): the same one for the same connection, and
// with persistent for the same client. dnat: it becomes the destination, else the source. All
// addresses must be of one family.
func Select(first, last, from, to netip.Addr, zone uint16, persistent, dnat bool) netip.Addr {
	if first == last || !last.IsValid() {
		return first
	}
	source := words(from)
	destination := words(to)
	top := 0
	if from.Is6() {
		top = 3
	}
	initial := uint32(0)
	if !persistent {
		initial = native(destination[top]) ^ uint32(zone)
	}
	hashed := [4]uint32{native(source[0]), native(source[1]), native(source[2]), native(source[3])}
	j := jhash2(hashed, initial)
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
			j ^= native(d)
		}
	}
	return fromWords(chosen, top)
}

// words are the 32-bit words of an address, the most significant first, each in host
// byte order; for IPv4 only the first is not 0.
func words(a netip.Addr) (w [4]uint32) {
	b := a.AsSlice()
	for i := range len(b) / 4 {
		w[i] = uint32(b[4*i])<<24 | uint32(b[4*i+1])<<16 | uint32(b[4*i+2])<<8 | uint32(b[4*i+3])
	}
	return w
}

func fromWords(w [4]uint32, top int) netip.Addr {
	var b [16]byte
	for i := range top + 1 {
		b[4*i], b[4*i+1], b[4*i+2], b[4*i+3] = byte(w[i]>>24), byte(w[i]>>16), byte(w[i]>>8), byte(w[i])
	}
	if top == 0 {
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrFrom16(b)
}

// native is a word as a little-endian machine reads it out of a packet.
func native(w uint32) uint32 { return w>>24 | w>>8&0xff00 | w<<8&0xff0000 | w<<24 }

// jhash2 is Jenkins' lookup3 of four words (include/linux/jhash.h).
func jhash2(k [4]uint32, initial uint32) uint32 {
	a := uint32(0xdeadbeef) + 4<<2 + initial
	b, c := a, a
	a += k[0]
	b += k[1]
	c += k[2]
	rol := func(x uint32, n uint) uint32 { return x<<n | x>>(32-n) }
	// __jhash_mix
	a -= c
	a ^= rol(c, 4)
	c += b
	b -= a
	b ^= rol(a, 6)
	a += c
	c -= b
	c ^= rol(b, 8)
	b += a
	a -= c
	a ^= rol(c, 16)
	c += b
	b -= a
	b ^= rol(a, 19)
	a += c
	c -= b
	c ^= rol(b, 4)
	b += a
	a += k[3]
	// __jhash_final
	c ^= b
	c -= rol(b, 14)
	a ^= c
	a -= rol(c, 11)
	b ^= a
	b -= rol(a, 25)
	c ^= b
	c -= rol(b, 16)
	a ^= c
	a -= rol(c, 4)
	b ^= a
	b -= rol(a, 14)
	c ^= b
	c -= rol(b, 24)
	return c
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
