package hostnat

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// room is the size of the longest value that is evaluated, in bytes: two addresses of IPv6.
const room = 32

// bits is a value as far as it is known.
type bits struct {
	data, known [room]byte // data is 0 where it is not known
	size        int        // bytes; at most room
}

func (b *bits) put(data []byte) {
	b.size = copy(b.data[:], data)
	for i := range b.size {
		b.known[i] = 0xff
	}
}

func (b *bits) putAddr(a netip.Addr) {
	if a.Is4() {
		four := a.As4()
		b.put(four[:])
		return
	}
	sixteen := a.As16()
	b.put(sixteen[:])
}

func number(n uint32) (b bits) {
	binary.NativeEndian.PutUint32(b.data[:], n)
	binary.NativeEndian.PutUint32(b.known[:], ^uint32(0))
	b.size = 4
	return b
}

func unknownOf(size int) bits { return bits{size: min(size, room)} }

func (b *bits) all() bool {
	for _, k := range b.known[:b.size] {
		if k != 0xff {
			return false
		}
	}
	return true
}

func (b *bits) uint32() uint32 { return binary.NativeEndian.Uint32(b.data[:]) }

// bytes is the value; valid iff all of it is known, and until b changes.
func (b *bits) bytes() []byte { return b.data[:b.size] }

// Value is something that rules compare, or set a mark to. The types of this package are all there
// are.
type Value interface {
	// of returns the value for the packet. present is false if it has no such thing: then the
	// rule does not match, whatever it compares (NFT_BREAK).
	of(w *walk) (v bits, present bool)
	// Size is the number of bytes.
	Size() int
	// String is the value in nft's words.
	String() string
}

// Payload is part of the packet's header of the network layer or, with Transport, of the
// transport layer. The bytes are in network byte order.
type Payload struct {
	Transport bool
	// Six: it is the header of IPv6. Only the name of a field depends on it.
	Six              bool
	Offset, ByteSize int
}

// Meta is a property of the packet, by nft's word for it: "mark", "oifname", "l4proto". One that
// has no meaning here is unknown.
type Meta struct {
	Key      string
	ByteSize int
}

// Ct is a property of the connection, by nft's words: "state", "mark", "saddr".
type Ct struct {
	Key      string
	Reply    bool // of the direction of replies; without meaning for keys that have none
	Directed bool
	ByteSize int
}

// AddrType is the type of an address, RTN_... of rtnetlink.h, as nft's fib has it.
type AddrType struct {
	Source bool
	In     bool // by the routes of the input device only
	Out    bool // likewise
}

// Const is a fixed value.
type Const []byte

// Masked is (Of & Mask) ^ Xor. Mask has the size of Of, and so does Xor unless it is nil.
type Masked struct {
	Of        Value
	Mask, Xor []byte
}

// Xor is A ^ B, of four bytes each.
type Xor struct{ A, B Value }

// Shifted is a number of four bytes in the machine's order, moved left by By bits, or right if By
// is negative.
type Shifted struct {
	Of Value
	By int
}

// Swapped has the bytes of each number of Of in the other order, on a machine with little-endian
// numbers. Width is 2, 4 or 8.
type Swapped struct {
	Of    Value
	Width int
}

// Mapped is the value that a map has for the key; present iff it has the key.
type Mapped struct {
	Key      Key
	Set      *Set
	ByteSize int
}

// Opaque is a value that is not known.
type Opaque struct {
	ByteSize int
	Words    string
}

// Size returns the number of bytes.
func (v Payload) Size() int { return v.ByteSize }

// Size returns the number of bytes.
func (v Meta) Size() int { return v.ByteSize }

// Size returns the number of bytes.
func (v Ct) Size() int { return v.ByteSize }

// Size is 4.
func (AddrType) Size() int { return 4 }

// Size returns the number of bytes.
func (v Const) Size() int { return len(v) }

// Size is that of the value that is masked.
func (v Masked) Size() int { return v.Of.Size() }

// Size is 4.
func (Xor) Size() int { return 4 }

// Size is 4.
func (Shifted) Size() int { return 4 }

// Size is that of the value that is swapped.
func (v Swapped) Size() int { return v.Of.Size() }

// Size returns the number of bytes.
func (v Mapped) Size() int { return v.ByteSize }

// Size returns the number of bytes.
func (v Opaque) Size() int { return v.ByteSize }

func (v Payload) of(w *walk) (b bits, present bool) {
	header := &w.network
	if v.Transport {
		header = &w.transport
	}
	if v.Offset < 0 || v.ByteSize > room || v.Offset+v.ByteSize > len(header.data) {
		return unknownOf(v.ByteSize), true
	}
	b.size = v.ByteSize
	copy(b.data[:b.size], header.data[v.Offset:])
	copy(b.known[:b.size], header.known[v.Offset:])
	return b, true
}

func (v AddrType) of(w *walk) (bits, bool) { return v.bits(w), true }

func (v AddrType) bits(w *walk) bits {
	a, device := w.packet.Destination.Addr(), ""
	if v.Source {
		a = w.packet.Source.Addr()
	}
	switch {
	case v.In && w.packet.In == "" && !w.packet.Local:
		return unknownOf(4)
	case v.In:
		device = w.packet.In
	case v.Out:
		device = w.packet.Out
	}
	return number(w.host.addrType(a, device))
}

func (v Const) of(*walk) (b bits, present bool) {
	if len(v) > room {
		return unknownOf(room), true
	}
	b.put(v)
	return b, true
}

func (v Masked) of(w *walk) (bits, bool) {
	b, present := v.Of.of(w)
	for i := range min(b.size, len(v.Mask)) {
		b.data[i] &= v.Mask[i]
		b.known[i] |= ^v.Mask[i]
		if i < len(v.Xor) {
			b.data[i] ^= v.Xor[i]
		}
		b.data[i] &= b.known[i]
	}
	return b, present
}

func (v Xor) of(w *walk) (bits, bool) {
	a, there := v.A.of(w)
	b, too := v.B.of(w)
	for i := range a.size {
		a.known[i] &= b.known[i]
		a.data[i] = (a.data[i] ^ b.data[i]) & a.known[i]
	}
	return a, there && too
}

func (v Shifted) of(w *walk) (bits, bool) {
	b, present := v.Of.of(w)
	data, unknown := b.uint32(), ^binary.NativeEndian.Uint32(b.known[:])
	out := number(shifted(data, v.By))
	binary.NativeEndian.PutUint32(out.known[:], ^shifted(unknown, v.By))
	return out, present
}

func shifted(n uint32, by int) uint32 {
	if by < 0 {
		return n >> -by
	}
	return n << by
}

// littleEndian: the machine's numbers have their least byte first.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

func (v Swapped) of(w *walk) (bits, bool) {
	b, present := v.Of.of(w)
	if !littleEndian || v.Width < 2 {
		return b, present
	}
	for at := 0; at+v.Width <= b.size; at += v.Width {
		for i := range v.Width / 2 {
			j, k := at+i, at+v.Width-1-i
			b.data[j], b.data[k] = b.data[k], b.data[j]
			b.known[j], b.known[k] = b.known[k], b.known[j]
		}
	}
	return b, present
}

func (v Mapped) of(w *walk) (bits, bool) {
	e, t := v.Set.find(w, v.Key)
	switch {
	case t == Unknown || t == True && len(e.Value) != v.ByteSize:
		return unknownOf(v.ByteSize), true
	case t == False:
		return unknownOf(v.ByteSize), false
	}
	return Const(e.Value).of(w)
}

func (v Opaque) of(*walk) (bits, bool) { return unknownOf(v.ByteSize), true }

func (v Meta) of(w *walk) (b bits, present bool) {
	p := &w.packet
	is4 := p.Destination.Addr().Is4()
	switch v.Key {
	case "mark":
		return w.mark, true
	case "l4proto":
		b.put([]byte{p.Protocol})
	case "nfproto":
		b.put([]byte{nfproto(is4)})
	case "protocol": // an EtherType
		b.put([]byte{0x08, 0x00})
		if !is4 {
			b.put([]byte{0x86, 0xdd})
		}
	case "iifname":
		return w.name(p.In, p.Local)
	case "oifname":
		return w.name(p.Out, false)
	case "iif":
		return w.index(p.In, p.Local)
	case "oif":
		return w.index(p.Out, false)
	case "pkttype": // PACKET_HOST (if_packet.h), of forwarded packets to this host and of its own
		b.put([]byte{0})
	case "skuid", "skgid": // no program on this host has sent it
		return unknownOf(4), p.Local
	default:
		return unknownOf(v.ByteSize), true
	}
	return b, true
}

// nfproto is NFPROTO_IPV4 or NFPROTO_IPV6.
func nfproto(is4 bool) byte {
	if is4 {
		return 2
	}
	return 10
}

const nameSize = 16 // IFNAMSIZ

// name is a device's name; none: there is no device, rather than an unknown one.
func (w *walk) name(name string, none bool) (b bits, present bool) {
	if name == "" && !none {
		return unknownOf(nameSize), true
	}
	var data [nameSize]byte
	copy(data[:nameSize-1], name)
	b.put(data[:])
	return b, true
}

func (w *walk) index(name string, none bool) (bits, bool) {
	i, known := w.host.devices[name]
	switch {
	case name == "" && none:
		return number(0), true
	case !known:
		return unknownOf(4), true
	}
	return number(i), true
}

// Bits of the connection's state and status: nf_conntrack_common.h, as nft and iptables compare
// them.
const (
	stateNew   = 1 << 3
	statusDNAT = 1<<5 | 1<<8 // IPS_DST_NAT, IPS_DST_NAT_DONE
)

func (v Ct) of(w *walk) (b bits, present bool) {
	p := &w.packet
	is4 := p.Destination.Addr().Is4()
	source, destination := p.Source, p.Original
	if v.Reply {
		source, destination = p.Destination, p.Source
	}
	address := func(a netip.Addr, want4 bool) (bits, bool) {
		if a.Is4() != want4 {
			return unknownOf(v.ByteSize), false
		}
		b.putAddr(a)
		return b, true
	}
	port := func(a netip.AddrPort) (bits, bool) {
		b.put([]byte{byte(a.Port() >> 8), byte(a.Port())})
		return b, true
	}
	switch v.Key {
	case "state":
		return number(stateNew), true
	case "status":
		if p.Original != p.Destination {
			return number(statusDNAT), true
		}
		return number(1 << 8), true
	case "direction":
		b.put([]byte{0})
	case "mark":
		return w.connmark, true
	case "protocol":
		b.put([]byte{p.Protocol})
	case "l3proto":
		b.put([]byte{nfproto(is4)})
	case "saddr":
		return address(source.Addr(), is4)
	case "daddr":
		return address(destination.Addr(), is4)
	case "ip saddr":
		return address(source.Addr(), true)
	case "ip daddr":
		return address(destination.Addr(), true)
	case "ip6 saddr":
		return address(source.Addr(), false)
	case "ip6 daddr":
		return address(destination.Addr(), false)
	case "proto-src":
		return port(source)
	case "proto-dst":
		return port(destination)
	default:
		return unknownOf(v.ByteSize), true
	}
	return b, true
}

// String is "ip saddr", if that is known to be the field, or as nft prints raw expressions.
func (v Payload) String() string {
	if name, _ := v.field(); name != "" {
		return name
	}
	base := "nh"
	if v.Transport {
		base = "th"
	}
	return fmt.Sprintf("@%s,%d,%d", base, 8*v.Offset, 8*v.ByteSize)
}

// field is the name of the field that the payload is, or of an address whose first bytes it is; size
// is that of the field.
func (v Payload) field() (name string, size int) {
	for _, f := range fields {
		address := strings.HasSuffix(f.name, "addr")
		if f.transport != v.Transport || f.offset != v.Offset || !v.Transport && f.six != v.Six || v.ByteSize > f.size || v.ByteSize < f.size && !address {
			continue
		}
		return f.name, f.size
	}
	return "", 0
}

// fields are the parts of headers that have names.
var fields = []struct {
	name           string
	transport, six bool
	offset, size   int
}{
	{"th sport", true, false, 0, 2}, {"th dport", true, false, 2, 2}, {"tcp flags", true, false, 13, 1},
	{"ip frag-off", false, false, 6, 2}, {"ip ttl", false, false, 8, 1}, {"ip protocol", false, false, 9, 1},
	{"ip saddr", false, false, 12, 4}, {"ip daddr", false, false, 16, 4},
	{"ip6 nexthdr", false, true, 6, 1}, {"ip6 saddr", false, true, 8, 16}, {"ip6 daddr", false, true, 24, 16},
}

func (v Meta) String() string {
	switch v.Key {
	case "iifname", "oifname", "iif", "oif":
		return v.Key
	}
	return "meta " + v.Key
}

func (v Ct) String() string {
	switch {
	case v.Directed && v.Reply:
		return "ct reply " + v.Key
	case v.Directed:
		return "ct original " + v.Key
	}
	return "ct " + v.Key
}

func (v AddrType) String() string {
	words := []string{"fib daddr"}
	if v.Source {
		words[0] = "fib saddr"
	}
	if v.In {
		words = append(words, "iif")
	}
	if v.Out {
		words = append(words, "oif")
	}
	return strings.Join(words, " . ") + " type"
}

func (v Const) String() string { return fmt.Sprintf("0x%x", hexOf(v)) }

// hexOf is the value as a number, if it is one of the machine's.
func hexOf(v []byte) any {
	if len(v) == 4 {
		return binary.NativeEndian.Uint32(v)
	}
	return v
}

func (v Masked) String() string {
	s := v.Of.String()
	if strings.Contains(s, " & ") || strings.Contains(s, " ^ ") {
		s = "(" + s + ")"
	}
	if !allOnes(v.Mask) {
		s += fmt.Sprintf(" & 0x%x", hexOf(v.Mask))
	}
	if !allZero(v.Xor) {
		s += fmt.Sprintf(" ^ 0x%x", hexOf(v.Xor))
	}
	return s
}

func (v Xor) String() string { return fmt.Sprintf("(%s) ^ (%s)", v.A, v.B) }

func (v Shifted) String() string {
	if v.By < 0 {
		return fmt.Sprintf("(%s) >> %d", v.Of, -v.By)
	}
	return fmt.Sprintf("(%s) << %d", v.Of, v.By)
}

func (v Swapped) String() string { return v.Of.String() }
func (v Mapped) String() string  { return fmt.Sprintf("%s map @%s", v.Key, v.Set.Name) }
func (v Opaque) String() string  { return v.Words }

func allOnes(b []byte) bool { return !slices.ContainsFunc(b, func(c byte) bool { return c != 0xff }) }
func allZero(b []byte) bool { return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) }
