package nftrules

import (
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

// prefixOf is the one network that a constant is.
func prefixOf(f *field, e nftables.Expr) (netip.Prefix, bool) {
	length := 8 * f.Size()
	if p, ok := e.(nftables.Prefix); ok {
		e, length = p.Address, p.Length
	}
	l, ok := e.(nftables.Literal)
	if !ok {
		return netip.Prefix{}, false
	}
	a, err := netip.ParseAddr(l.Text)
	if err != nil || a.BitLen() != 8*f.Size() || a.Zone() != "" {
		return netip.Prefix{}, false
	}
	p, err := a.Prefix(length)
	return p, err == nil
}
