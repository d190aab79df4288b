package hostrules

import (
	"cmp"
	"encoding/binary"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// setName returns the name of an ipset by its index.
type setName func(index uint16) (name string, ok bool)

// A layout is how one revision of a module keeps its options. The layouts are those of the kernel's
// headers for user space (linux/netfilter/xt_*.h, linux/netfilter_ipv4, linux/netfilter_ipv6) on
// machines of 64 bits. No length or offset in the data is trusted.
type layout[T any] struct {
	revision uint8
	size     int // of the struct, without alignment at its end
	// read gets size bytes or more. It is not ok if it cannot say what they mean.
	read func(r raw) (T, bool)
}

// decoded finds the revision that the extension has.
func decoded[T any](f decision.Family, x xtables.Extension, sets setName, layouts []layout[T]) (t T, ok bool) {
	for _, l := range layouts {
		if l.revision == x.Revision && len(x.Data) >= l.size {
			return l.read(raw{f, sets, x.Data})
		}
	}
	return t, false
}

// matchOf returns the test of a module, or an unknown one that names it.
func matchOf(f decision.Family, x xtables.Extension, sets setName) rules.Test {
	if m, ok := decoded(f, x, sets, matches[x.Name]); ok {
		return m
	}
	return rules.Fixed{Result: rules.Unknown, Words: "-m " + cmp.Or(x.Name, "?") + " …"}
}

// targetOf returns the effect of a target that is no verdict and no jump.
func targetOf(f decision.Family, x xtables.Extension) rules.Step {
	if t, ok := decoded(f, x, nil, targets[x.Name]); ok {
		return t
	}
	return rules.Other{Harmless: harmlessTarget[x.Name], Words: "-j " + cmp.Or(x.Name, "?") + " …"}
}

// harmlessTarget are the targets that neither change nor end a packet, as far as rules of nat see.
var harmlessTarget = map[string]bool{
	"LOG": true, "NFLOG": true, "ULOG": true, "TRACE": true, "AUDIT": true, "LED": true, "RATEEST": true, "SET": true, "IDLETIMER": true,
}

// raw returns the fields of a struct; offsets must be within its size.
type raw struct {
	family decision.Family
	sets   setName
	data   []byte
}

func (r raw) u8(at int) uint8   { return r.data[at] }
func (r raw) u16(at int) uint16 { return binary.NativeEndian.Uint16(r.data[at:]) }
func (r raw) u32(at int) uint32 { return binary.NativeEndian.Uint32(r.data[at:]) }

// addr is a union nf_inet_addr, of 16 bytes.
func (r raw) addr(at int) netip.Addr { return addrOf(r.family, r.data[at:]) }

func addrOf(f decision.Family, data []byte) netip.Addr {
	if f == decision.IPv6 {
		return netip.AddrFrom16([16]byte(data))
	}
	return netip.AddrFrom4([4]byte(data))
}
