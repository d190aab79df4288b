package iptables

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Extension is a match or target as the kernel keeps it. The fields are those of
// xtables.Extension, so that Go converts one into the other: this package reads the kernel's data,
// but needs no kernel, and no package that does.
type Extension struct {
	Name     string
	Revision uint8
	Data     []byte // the module's own struct, perhaps with bytes of alignment behind it
}

// SetName returns the name of an ipset by its index in the kernel.
type SetName func(index uint16) (name string, ok bool)

// DecodeMatch returns the match as a typed one, or as an [UnknownMatch] with its name if the
// module or its revision is unknown, or the struct is invalid. set may be nil: then the names of
// ipsets are unknown.
//
// The layouts are those of the kernel's headers for user space (linux/netfilter/xt_*.h,
// linux/netfilter_ipv4, linux/netfilter_ipv6) on machines of 64 bits. No length or offset from
// outside is trusted.
func DecodeMatch(f Family, x Extension, set SetName) Match {
	if m := modules[x.Name]; m != nil {
		if match, ok := decode(m.kernel, f, x, set); ok {
			return match
		}
	}
	return UnknownMatch{Match: cmp.Or(x.Name, nameless), Args: notDecoded(x)}
}

// DecodeTarget returns a target that is no verdict and no jump as a typed one, or as an
// [UnknownTarget] with its name if the module or its revision is unknown, or the struct is
// invalid.
func DecodeTarget(f Family, x Extension) Target {
	if t := targets[x.Name]; t != nil {
		if target, ok := decode(t.kernel, f, x, nil); ok {
			return target
		}
	}
	return UnknownTarget{Target: cmp.Or(x.Name, nameless), Args: notDecoded(x)}
}

// nameless replaces an empty name, which would make a generic match.
const nameless = "nameless"

// notDecoded replaces the options.
func notDecoded(x Extension) []Token {
	return []Token{Text(fmt.Sprintf("revision %d, not decoded", x.Revision))}
}

// revision reads the struct that one revision of a kernel module has.
type revision[T any] struct {
	number uint8
	size   int // of the struct, less the alignment at its end
	// decode gets size bytes or more. It is not ok if the type cannot represent them.
	decode func(r raw) (value T, ok bool)
}

// decode is not ok for an unknown revision, or if the struct is too short or invalid.
func decode[T any](known []revision[T], f Family, x Extension, set SetName) (value T, ok bool) {
	for _, r := range known {
		if r.number == x.Revision && len(x.Data) >= r.size {
			return r.decode(raw{f, set, x.Data})
		}
	}
	return value, false
}

// raw returns the fields of a struct; offsets must be within the revision's size.
type raw struct {
	family Family
	set    SetName
	data   []byte
}

func (r raw) u8(at int) uint8   { return r.data[at] }
func (r raw) u16(at int) uint16 { return binary.NativeEndian.Uint16(r.data[at:]) }
func (r raw) u32(at int) uint32 { return binary.NativeEndian.Uint32(r.data[at:]) }
func (r raw) u64(at int) uint64 { return binary.NativeEndian.Uint64(r.data[at:]) }

// port is in network byte order.
func (r raw) port(at int) uint16 { return binary.BigEndian.Uint16(r.data[at:]) }

// text is a string in a field of so many bytes.
func (r raw) text(at, size int) string { return cString(r.data[at : at+size]) }

func cString(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}

// addr is a union nf_inet_addr, of 16 bytes.
func (r raw) addr(at int) netip.Addr {
	if r.family == IPv6 {
		return netip.AddrFrom16([16]byte(r.data[at:]))
	}
	return netip.AddrFrom4([4]byte(r.data[at:]))
}

// network is an address and its mask, side by side.
func (r raw) network(at int) Network { return MaskedNetwork(r.addr(at), r.addr(at+16)) }

// masked is a value and its mask.
func (r raw) masked(at int) MaskedValue { return MaskedValue{r.u32(at), r.u32(at + 4)} }

// ports is a range, __u16 [2].
func (r raw) ports(at int) PortRange { return PortRange{r.u16(at), r.u16(at + 2)} }

// given makes a condition from a bit for its presence and one for its negation.
func given[T any](flags, inverted, bit uint32, value T) Condition[T] {
	if flags&bit == 0 {
		return Condition[T]{}
	}
	return Condition[T]{Given: true, Negated: inverted&bit != 0, Value: value}
}

// flagGiven is like given for an option without a value.
func flagGiven(flags, inverted, bit uint32) Condition[bool] {
	return given(flags, inverted, bit, inverted&bit == 0)
}
