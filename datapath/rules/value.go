package rules

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// room is the size of the longest value that is evaluated, in bytes: two addresses of IPv6.
const room = 32

// Bits is a value as far as it is known.
type Bits struct {
	Data, Known [room]byte // Data is 0 where it is not known
	Size        int        // in bytes; at most 32
}

// Put makes it a value that is known, of at most 32 bytes.
func (b *Bits) Put(data []byte) {
	b.Size = copy(b.Data[:], data)
	for i := range b.Size {
		b.Known[i] = 0xff
	}
}

// PutAddr makes it an address, in network byte order.
func (b *Bits) PutAddr(a netip.Addr) {
	if a.Is4() {
		four := a.As4()
		b.Put(four[:])
		return
	}
	sixteen := a.As16()
	b.Put(sixteen[:])
}

// Number is a number of 32 bits in the machine's byte order.
func Number(n uint32) (b Bits) {
	binary.NativeEndian.PutUint32(b.Data[:], n)
	binary.NativeEndian.PutUint32(b.Known[:], ^uint32(0))
	b.Size = 4
	return b
}

// DeviceSize is the size of a device's name as a value, in bytes: IFNAMSIZ (if.h).
const DeviceSize = 16

// DeviceName is a device's name; empty: there is none.
func DeviceName(name string) (b Bits) {
	var data [DeviceSize]byte
	copy(data[:DeviceSize-1], name)
	b.Put(data[:])
	return b
}

// UnknownBits is a value of which only the size is known, in bytes.
func UnknownBits(size int) Bits { return Bits{Size: min(size, room)} }

// Mask makes it (b & mask) ^ xor; xor may be nil.
func (b *Bits) Mask(mask, xor []byte) {
	for i := range min(b.Size, len(mask)) {
		b.Data[i] &= mask[i]
		b.Known[i] |= ^mask[i]
		if i < len(xor) {
			b.Data[i] ^= xor[i]
		}
		b.Data[i] &= b.Known[i]
	}
}

// All reports whether all of the value is known.
func (b *Bits) All() bool {
	for _, k := range b.Known[:b.Size] {
		if k != 0xff {
			return false
		}
	}
	return true
}

// Uint32 is the value as a number of 32 bits in the machine's byte order; valid iff all of it is known.
func (b *Bits) Uint32() uint32 { return binary.NativeEndian.Uint32(b.Data[:]) }

// Bytes is the value; valid iff all of it is known, and until b changes.
func (b *Bits) Bytes() []byte { return b.Data[:b.Size] }

// Packet is what values read of a packet and its connection.
type Packet interface {
	Payload(Payload) (v Bits, present bool)
	Meta(Meta) (v Bits, present bool)
	Ct(Ct) (v Bits, present bool)
	AddrType(AddrType) Bits
	// Address is the source's or the destination's, and Local reports whether a program on this host sent
	// the packet.
	Address(source bool) netip.Addr
	Local() bool
}

// Value is something that rules compare, or set a mark to.
type Value interface {
	// Read returns the value for the packet. present is false if it has no such thing: then the
	// rule does not match, whatever it compares (NFT_BREAK).
	Read(p Packet) (v Bits, present bool)
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

func (v Payload) Read(p Packet) (Bits, bool) { return p.Payload(v) }

func (v Meta) Read(p Packet) (Bits, bool) { return p.Meta(v) }

func (v Ct) Read(p Packet) (Bits, bool) { return p.Ct(v) }

func (v AddrType) Read(p Packet) (Bits, bool) { return p.AddrType(v), true }

// NFProto is NFPROTO_IPV4 or NFPROTO_IPV6.
func NFProto(is4 bool) byte {
	if is4 {
		return 2
	}
	return 10
}

func (v Const) Read(Packet) (b Bits, present bool) {
	if len(v) > room {
		return UnknownBits(room), true
	}
	b.Put(v)
	return b, true
}

func (v Masked) Read(p Packet) (Bits, bool) {
	b, present := v.Of.Read(p)
	b.Mask(v.Mask, v.Xor)
	return b, present
}

func (v Xor) Read(p Packet) (Bits, bool) {
	a, there := v.A.Read(p)
	b, too := v.B.Read(p)
	for i := range a.Size {
		a.Known[i] &= b.Known[i]
		a.Data[i] = (a.Data[i] ^ b.Data[i]) & a.Known[i]
	}
	return a, there && too
}

func (v Shifted) Read(p Packet) (Bits, bool) {
	b, present := v.Of.Read(p)
	data, unknown := b.Uint32(), ^binary.NativeEndian.Uint32(b.Known[:])
	out := Number(shifted(data, v.By))
	binary.NativeEndian.PutUint32(out.Known[:], ^shifted(unknown, v.By))
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

func (v Swapped) Read(p Packet) (Bits, bool) {
	b, present := v.Of.Read(p)
	if !littleEndian || v.Width < 2 {
		return b, present
	}
	for at := 0; at+v.Width <= b.Size; at += v.Width {
		for i := range v.Width / 2 {
			j, k := at+i, at+v.Width-1-i
			b.Data[j], b.Data[k] = b.Data[k], b.Data[j]
			b.Known[j], b.Known[k] = b.Known[k], b.Known[j]
		}
	}
	return b, present
}

func (v Mapped) Read(p Packet) (Bits, bool) {
	e, t := v.Set.Find(p, v.Key)
	switch {
	case t == Unknown || t == True && len(e.Value) != v.ByteSize:
		return UnknownBits(v.ByteSize), true
	case t == False:
		return UnknownBits(v.ByteSize), false
	}
	return Const(e.Value).Read(p)
}

func (v Opaque) Read(Packet) (Bits, bool) { return UnknownBits(v.ByteSize), true }

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
