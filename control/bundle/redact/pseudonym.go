// Package redact replaces addresses and names in texts by pseudonyms, so that a bundle can be given to others and still be
// asked the same questions.
//
// It is a ground package.
package redact

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/netip"
	"strings"
)

// KeySize is the size of a key, in bytes.
const KeySize = 32

// Key determines all pseudonyms. Who has it can find out which address a pseudonym stands for.
type Key [KeySize]byte

// Kept are the networks whose addresses stay what they are: programs treat them in their own way.
var kept = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/3"), // multicast, reserved, masks and broadcast
	netip.MustParsePrefix("::/96"),       // unspecified and loopback
	netip.MustParsePrefix("ff00::/8"),
}

// marked are the networks whose addresses get pseudonyms within them: which of these networks an address is in decides
// what programs do with it.
var marked = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"), // private
	netip.MustParsePrefix("100.64.0.0/10"),                               // shared (RFC 6598)
	netip.MustParsePrefix("fc00::/8"), netip.MustParsePrefix("fd00::/8"), // unique local
	netip.MustParsePrefix("fe80::/64"), netip.MustParsePrefix("fec0::/10"),
	netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("2000::/3"),
}

// keptBits is how many bits at the end of each address stay: the first and the last address of a network, and ranges
// of up to 256 addresses, stay what they are.
const keptBits = 8

// Redactor replaces addresses and names. It is not safe for concurrent use.
type Redactor struct {
	key       Key
	addresses map[netip.Addr]netip.Addr
	names     []name
	chains    map[string]string // of endpoints, see Learn
}

// name is a host name with its pseudonym.
type name struct{ plain, pseudonym string }

// New returns a redactor with a key.
func New(key Key) *Redactor {
	return &Redactor{key: key, addresses: make(map[netip.Addr]netip.Addr), chains: make(map[string]string)}
}

func (r *Redactor) sum(kind string, of []byte) []byte {
	h := hmac.New(sha256.New, r.key[:])
	h.Write([]byte(kind))
	h.Write([]byte{byte(len(of))})
	h.Write(of)
	return h.Sum(nil)
}

// Address returns the pseudonym of an address. Two addresses have as many first bits in common as their pseudonyms, and
// different addresses have different pseudonyms.
func (r *Redactor) Address(a netip.Addr) netip.Addr {
	zone := a.Zone()
	a = a.WithZone("")
	if a.Is4In6() {
		return netip.AddrFrom16(r.Address(a.Unmap()).As16())
	}
	p, ok := r.addresses[a]
	if !ok {
		p = r.permute(a)
		r.addresses[a] = p
	}
	return p.WithZone(zone)
}

// permute flips each bit of an address, or does not, by the bits in front of it: prefix-preserving pseudonyms as those of
// Crypto-PAn (Xu, Fan, Ammar, Moon: Prefix-preserving IP address anonymization, 2002), with HMAC-SHA256. It flips no bit
// on the way to a special network.
func (r *Redactor) permute(a netip.Addr) netip.Addr {
	for _, k := range kept {
		if k.Contains(a) {
			return a
		}
	}
	bits, out := a.AsSlice(), a.AsSlice()
	for i := range a.BitLen() - keptBits {
		front, _ := a.Prefix(i)
		if leads(front, kept) || leads(front, marked) {
			continue
		}
		mask := byte(0x80) >> (i % 8)
		if r.sum("address", append(front.Addr().AsSlice(), byte(i)))[0]&1 == 1 {
			out[i/8] = bits[i/8]&mask ^ mask | out[i/8]&^mask
		}
	}
	p, _ := netip.AddrFromSlice(out)
	return p
}

// leads reports whether a network is around one of the networks, and larger.
func leads(front netip.Prefix, networks []netip.Prefix) bool {
	for _, n := range networks {
		if front.Bits() < n.Bits() && front.Contains(n.Addr()) {
			return true
		}
	}
	return false
}

// MAC returns the pseudonym of a MAC address: one that is locally administered. Multicast addresses, and the one of
// zeros, stay.
func (r *Redactor) MAC(a net.HardwareAddr) net.HardwareAddr {
	if len(a) == 0 || a[0]&1 == 1 || strings.Trim(a.String(), "0:") == "" {
		return a
	}
	p := make(net.HardwareAddr, 0, len(a))
	for sum := r.sum("mac", a); len(p) < len(a); sum = r.sum("mac", sum) {
		p = append(p, sum[:min(len(sum), len(a)-len(p))]...)
	}
	p[0] = p[0]&^1 | 2
	return p
}

// Name returns the pseudonym of a host name, which [Redactor.Text] replaces from now on, also without its domain.
func (r *Redactor) Name(host string) string {
	for _, n := range r.names {
		if n.plain == host {
			return n.pseudonym
		}
	}
	short, _, qualified := strings.Cut(host, ".")
	p := "host-" + hex.EncodeToString(r.sum("name", []byte(short))[:4])
	if !qualified {
		r.names = append(r.names, name{host, p})
		return p
	}
	// The longer name first.
	r.names = append(r.names, name{host, p + ".example"}, name{short, p})
	return p + ".example"
}
