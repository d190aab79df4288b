package audit

import (
	"net/netip"
	"strconv"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

// literal is the text of a constant.
func literal(e nftables.Expr) (string, bool) {
	l, ok := e.(nftables.Literal)
	return l.Text, ok
}

func numberOf(e nftables.Expr) (uint64, bool) {
	l, ok := e.(nftables.Literal)
	if !ok {
		return 0, false
	}
	return l.Number()
}

// numbersOf is a number, or a range of numbers.
func numbersOf(e nftables.Expr) (low, high uint64, ok bool) {
	if r, isRange := e.(nftables.Range); isRange {
		low, ok1 := numberOf(r.Low)
		high, ok2 := numberOf(r.High)
		return low, high, ok1 && ok2
	}
	n, ok := numberOf(e)
	return n, n, ok
}

// portOf is a port by its number, or by its name as nft -S prints it; 0: it is none.
func portOf(e nftables.Expr) uint16 {
	text, _ := literal(e)
	if n, err := strconv.ParseUint(text, 10, 16); err == nil {
		return uint16(n)
	}
	named, _ := iptables.ServicePort(text)
	return named
}

// protocolOf is a protocol by its name or number; 0: it is none that a Service can have.
func protocolOf(e nftables.Expr) decision.Protocol {
	text, _ := literal(e)
	for _, p := range []decision.Protocol{decision.TCP, decision.UDP, decision.SCTP} {
		if text == p.Lower() || text == strconv.Itoa(int(p)) {
			return p
		}
	}
	return 0
}

func isMark(e nftables.Expr) bool { return e == nftables.Expr(nftables.Meta{Key: "mark"}) }

func addrOf(e nftables.Expr) (netip.Addr, bool) {
	text, _ := literal(e)
	a, err := netip.ParseAddr(text)
	return a, err == nil
}

// addrPortOf reads "10.244.1.2 . 80".
func addrPortOf(e nftables.Expr) (netip.AddrPort, bool) {
	c, ok := e.(nftables.Concat)
	if !ok || len(c) != 2 {
		return netip.AddrPort{}, false
	}
	a, ok := addrOf(c[0])
	return netip.AddrPortFrom(a, portOf(c[1])), ok && portOf(c[1]) != 0
}

// destinationOf reads the key of a map of services: "10.96.0.20 . tcp . 80", or for node ports "tcp . 30080".
func destinationOf(e nftables.Expr) (at claim, ok bool) {
	c, ok := e.(nftables.Concat)
	if !ok || len(c) != 2 && len(c) != 3 {
		return claim{}, false
	}
	if len(c) == 3 {
		if at.addr, ok = addrOf(c[0]); !ok {
			return claim{}, false
		}
		c = c[1:]
	}
	at.protocol, at.port = protocolOf(c[0]), portOf(c[1])
	return at, at.protocol != 0 && at.port != 0
}

// prefixesOf reads an address, a prefix, a range, or an anonymous set of those.
func prefixesOf(e nftables.Expr) (all []netip.Prefix, ok bool) {
	switch e := e.(type) {
	case nftables.Literal:
		a, ok := addrOf(e)
		if !ok {
			return nil, false
		}
		return []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}, true
	case nftables.Prefix:
		a, ok := addrOf(e.Address)
		p := netip.PrefixFrom(a, e.Length)
		return []netip.Prefix{p}, ok && p.IsValid()
	case nftables.Range:
		low, ok1 := addrOf(e.Low)
		high, ok2 := addrOf(e.High)
		if !ok1 || !ok2 || low.BitLen() != high.BitLen() || high.Less(low) {
			return nil, false
		}
		return prefixesBetween(low, high), true
	case nftables.AnonymousSet:
		for _, element := range e.Elements {
			some, ok := prefixesOf(element.Key)
			if !ok {
				return nil, false
			}
			all = append(all, some...)
		}
		return all, len(all) > 0
	}
	return nil, false
}

// prefixesBetween are the prefixes that a range of addresses consists of: nft joins adjacent ones.
func prefixesBetween(low, high netip.Addr) (all []netip.Prefix) {
	for low.IsValid() && !high.Less(low) {
		bits := low.BitLen()
		for bits > 0 {
			wider, err := low.Prefix(bits - 1)
			if err != nil || wider.Addr() != low || high.Less(last(wider)) {
				break
			}
			bits--
		}
		p := netip.PrefixFrom(low, bits)
		all = append(all, p)
		low = last(p).Next() // invalid behind the last address of all
	}
	return all
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
