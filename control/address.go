package control

import (
	"net/netip"
	"slices"
	"strings"

	utilnet "k8s.io/utils/net"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// addressesOf gives the addresses of a family, each once.
func addressesOf(f decision.Family, texts []string) []netip.Addr {
	var addrs []netip.Addr
	for _, s := range texts {
		a, err := parseAddr(s)
		if a = a.Unmap(); err == nil && decision.FamilyOf(a) == f && !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// rangesOf gives the prefixes of a family; none, if one of them is everything. White
// space around them is let pass, as the API server does.
func rangesOf(f decision.Family, texts []string) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, s := range texts {
		p, err := parsePrefix(strings.TrimSpace(s))
		if err != nil || decision.FamilyOf(p.Addr()) != f {
			continue
		}
		if p.Bits() == 0 {
			return nil
		}
		prefixes = append(prefixes, p)
	}
	return prefixes
}

// parsePrefix reads a prefix. As to Go's net package, and so to kube-proxy,
// IPv4-mapped addresses are IPv4 to it.
func parsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		// Zeros before a number of an IPv4 address mean nothing in Kubernetes.
		_, n, sloppy := utilnet.ParseCIDRSloppy(s)
		if sloppy != nil {
			return netip.Prefix{}, err
		}
		a, _ := netip.AddrFromSlice(n.IP)
		ones, _ := n.Mask.Size()
		p = netip.PrefixFrom(a, ones)
	}
	if p = p.Masked(); p.Addr().Is4In6() {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p, nil
}

// parseAddr reads an address, as leniently.
func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err == nil {
		return a, nil
	}
	if a, ok := netip.AddrFromSlice(utilnet.ParseIPSloppy(s)); ok {
		return a.Unmap(), nil
	}
	return a, err
}
