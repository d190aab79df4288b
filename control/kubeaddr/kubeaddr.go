// Package kubeaddr reads IP addresses and prefixes as kube-proxy reads them: with
// ParseIPSloppy and ParseCIDRSloppy of k8s.io/utils/net. Clusters hold spellings that
// Go's net/netip refuses, because Kubernetes accepted them for years.
//
// It is a ground package.
package kubeaddr

import (
	"fmt"
	"net/netip"
	"strings"

	utilnet "k8s.io/utils/net"
)

// Parse reads an address. Zeros before a number are decimal: 172.30.0.041 is
// 172.30.0.41. An IPv4-mapped IPv6 address is the IPv4 address, as net.IP.To4 makes it
// one for kube-proxy.
func Parse(s string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return a.Unmap(), nil
	}
	if a, ok := netip.AddrFromSlice(utilnet.ParseIPSloppy(s)); ok {
		return a.Unmap(), nil
	}
	return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
}

// Unbracket removes the brackets of an IPv6 address such as [fd00::10].
func Unbracket(s string) string {
	if len(s) > 2 && s[0] == '[' && s[len(s)-1] == ']' {
		return s[1 : len(s)-1]
	}
	return s
}

// CanBeHost reports whether an address can be that of a host, as the API server checks it for
// endpoints: it is not unspecified, loopback, link-local or multicast.
func CanBeHost(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast()
}

// ParsePrefix reads a prefix, with the spellings of Parse. Bits of a host are cut off. A
// mapped prefix of 96 bits and more is an IPv4 prefix.
func ParsePrefix(s string) (netip.Prefix, error) {
	_, n, err := utilnet.ParseCIDRSloppy(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR", s)
	}
	a, _ := netip.AddrFromSlice(n.IP)
	bits, size := n.Mask.Size()
	if a.Is4In6() && size == 128 {
		return netip.PrefixFrom(a.Unmap(), bits-96), nil
	}
	return netip.PrefixFrom(a, bits), nil
}

// Plain is how to write an address or a prefix that Parse or ParsePrefix reads. The
// result is empty for a text that needs no other spelling, or that is neither.
func Plain(s string) string {
	if p, err := ParsePrefix(s); err == nil {
		if q, err := netip.ParsePrefix(s); err != nil || q.Addr().Is4In6() {
			return p.String()
		}
		return ""
	}
	if a, err := Parse(s); err == nil {
		if b, err := netip.ParseAddr(s); err != nil || b.Is4In6() {
			return a.String()
		}
	}
	return ""
}

// Respelled collects the old spellings among the fields of an object.
type Respelled []string

// See notes a text if it has an old spelling. The format and the arguments are the name of its field.
func (r *Respelled) See(text, format string, args ...any) {
	if plain := Plain(strings.TrimSpace(text)); plain != "" {
		*r = append(*r, fmt.Sprintf("%s %q is read as %s", fmt.Sprintf(format, args...), text, plain))
	}
}

// Warning is one line about the object, empty if there was nothing to note.
func (r Respelled) Warning(object string) string {
	const shown = 3
	list, more := r[:min(len(r), shown)], ""
	if n := len(r) - len(list); n > 0 {
		more = fmt.Sprintf(", and %d more", n)
	}
	if len(list) == 0 {
		return ""
	}
	return fmt.Sprintf("%s: old spelling of addresses: %s%s; write them in this form", object, strings.Join(list, ", "), more)
}
