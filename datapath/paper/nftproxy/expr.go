package nftproxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

func word(text string) nftables.Literal { return nftables.Literal{Text: text} }

func number[T uint16 | int](n T) nftables.Literal {
	return nftables.Literal{Text: strconv.Itoa(int(n)), Kind: nftables.Number}
}

func jump(chain string) nftables.Verdict {
	return nftables.Verdict{Kind: nftables.Jump, Chain: chain}
}

func goTo(chain string) nftables.Verdict {
	return nftables.Verdict{Kind: nftables.Goto, Chain: chain}
}

var (
	drop  = nftables.Verdict{Kind: nftables.Drop}
	dport = nftables.Payload{Protocol: "th", Field: "dport"}
	proto = nftables.Meta{Key: "l4proto"}
	mark  = nftables.Meta{Key: "mark"}
	// masquerade translates the source.
	masquerade = nftables.NAT{Kind: "masquerade", Flags: []string{"fully-random"}}
	stateNew   = nftables.Match{Op: "in", Left: nftables.CT{Key: "state"}, Right: word("new")}
	// fromNode matches packets of the node itself.
	fromNode = nftables.Match{Op: "==", Left: nftables.Fib{Flags: []string{"saddr"}, Result: "type"}, Right: word("local")}
	toNode   = nftables.Match{Op: "==", Left: nftables.Fib{Flags: []string{"daddr"}, Result: "type"}, Right: word("local")}
)

func (w *writer) saddr() nftables.Payload {
	return nftables.Payload{Protocol: string(w.ip()), Field: "saddr"}
}

func (w *writer) daddr() nftables.Payload {
	return nftables.Payload{Protocol: string(w.ip()), Field: "daddr"}
}

func is(left, right nftables.Expr) nftables.Match {
	return nftables.Match{Op: "==", Left: left, Right: right}
}

func not(left, right nftables.Expr) nftables.Match {
	return nftables.Match{Op: "!=", Left: left, Right: right}
}

// bit is the mark's bit as nft prints it.
func (w *writer) bit() nftables.Literal {
	return nftables.Literal{Text: fmt.Sprintf("0x%08x", w.node.Mark()), Kind: nftables.Number}
}

// setMark has a packet masqueraded (masqueradeRule).
func (w *writer) setMark() nftables.Statement {
	return nftables.Mangle{Key: mark, Value: nftables.Binary{Op: "|", Left: mark, Right: w.bit()}}
}

// marked matches packets that have the mark. nft takes the highest bit for a prefix.
func (w *writer) marked() nftables.Statement {
	zero := nftables.Literal{Text: "0x00000000", Kind: nftables.Number}
	if w.node.Mark() == 1<<31 {
		return not(mark, nftables.Prefix{Address: zero, Length: 1})
	}
	return not(nftables.Binary{Op: "&", Left: mark, Right: w.bit()}, zero)
}

// pod matches packets of pods, or with outside all others (LocalTrafficDetector).
func (w *writer) pod(outside bool) nftables.Statement {
	match := is
	if outside {
		match = not
	}
	d := &w.node.Detector
	switch cidr, ok := d.CIDR(w.family); {
	case d.Bridge != "":
		return match(nftables.Meta{Key: "iifname"}, nftables.Literal{Text: d.Bridge, Kind: nftables.Quoted})
	case d.InterfacePrefix != "":
		return match(nftables.Meta{Key: "iifname"}, nftables.Literal{Text: d.InterfacePrefix + "*", Kind: nftables.Quoted})
	case ok:
		return match(w.saddr(), network(cidr))
	}
	return nil
}

// network is a prefix, or the address that it is.
func network(p netip.Prefix) nftables.Expr {
	if p.IsSingleIP() {
		return word(p.Addr().String())
	}
	return nftables.Prefix{Address: word(p.Masked().Addr().String()), Length: p.Bits()}
}

// networks are prefixes as nft prints a set of them: one alone without the set, others in order and joined.
func networks(prefixes []netip.Prefix) nftables.Expr {
	if len(prefixes) == 1 {
		return network(prefixes[0])
	}
	var joined []addrRange
	sorted := slices.Clone(prefixes)
	slices.SortFunc(sorted, func(a, b netip.Prefix) int { return a.Masked().Addr().Compare(b.Masked().Addr()) })
	for _, p := range sorted {
		r := addrRange{p.Masked().Addr(), last(p)}
		if n := len(joined); n > 0 && (!joined[n-1].high.Next().IsValid() || !joined[n-1].high.Next().Less(r.low)) {
			if joined[n-1].high.Less(r.high) {
				joined[n-1].high = r.high
			}
			continue
		}
		joined = append(joined, r)
	}
	var elements []nftables.Element
	for _, r := range joined {
		elements = append(elements, nftables.Element{Key: r.expr()})
	}
	return nftables.AnonymousSet{Elements: elements}
}

// addrRange is a range of addresses.
type addrRange struct{ low, high netip.Addr }

// expr is the range as nft prints it: as a prefix if it is one.
func (r addrRange) expr() nftables.Expr {
	for bits := range r.low.BitLen() + 1 {
		if p := netip.PrefixFrom(r.low, bits); p.Masked() == p && last(p) == r.high {
			return network(p)
		}
	}
	return nftables.Range{Low: word(r.low.String()), High: word(r.high.String())}
}

// last is the last address of a prefix.
func last(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for i := p.Bits(); i < len(bytes)*8; i++ {
		bytes[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(bytes)
	return a
}

// key is the key of an element, and its bytes.
type key struct {
	expr  nftables.Expr
	order []byte
}

// single is the key of a set of addresses, which nft orders as numbers.
func single(a netip.Addr) key {
	bytes := a.AsSlice()
	slices.Reverse(bytes)
	return key{word(a.String()), bytes}
}

// keyOf is a concatenation of addresses, protocol and port.
func keyOf(p decision.Protocol, port uint16, addrs ...netip.Addr) key {
	var k key
	var parts nftables.Concat
	for _, a := range addrs {
		parts = append(parts, word(a.String()))
		k.order = append(k.order, a.AsSlice()...)
	}
	k.order = append(k.order, byte(p), byte(port>>8), byte(port))
	k.expr = append(parts, word(p.Lower()), number(port))
	return k
}
