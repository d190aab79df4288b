package iptables

import (
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Family is the address family of a dump: iptables' or ip6tables'.
type Family = decision.Family

// The families.
const (
	FamilyUnknown Family = 0
	IPv4                 = decision.IPv4
	IPv6                 = decision.IPv6
)

// addrBits is the length of an address.
func addrBits(f Family) int {
	if f == IPv6 {
		return 128
	}
	return 32
}

// isOf reports whether an address is of the family. An IPv4 address mapped into IPv6 is an IPv6
// one.
func isOf(a netip.Addr, f Family) bool {
	return a.IsValid() && a.Zone() == "" && a.BitLen() == addrBits(f)
}

// FamilyOf returns the family that the words of a rule show; FamilyUnknown: they show none.
func FamilyOf(args []Token) Family {
	for i := 0; i+1 < len(args); i++ {
		value := args[i+1].Text
		switch args[i].Text {
		case "-m":
			if m := modules[value]; m != nil && m.family != FamilyUnknown {
				return m.family
			}
		case "-j":
			if t := targets[value]; t != nil && t.family != FamilyUnknown {
				return t.family
			}
		case "--reject-with":
			switch {
			case strings.HasPrefix(value, "icmp-"):
				return IPv4
			case strings.HasPrefix(value, "icmp6-"):
				return IPv6
			}
		case "-s", "-d", "--source", "--src", "--destination", "--dst", "--to", "--to-destination", "--to-source",
			"--ctorigsrc", "--ctorigdst", "--ctreplsrc", "--ctrepldst", "--src-range", "--dst-range", "--on-ip", "--mask":
			if f := familyOfAddress(value); f != FamilyUnknown {
				return f
			}
		}
	}
	return FamilyUnknown
}

// familyOfAddress returns the family of a text that begins with an address.
func familyOfAddress(text string) Family {
	if strings.HasPrefix(text, "[") {
		return IPv6
	}
	if i := strings.IndexAny(text, "/-"); i >= 0 {
		text = text[:i]
	}
	if a, err := netip.ParseAddr(text); err == nil {
		if a.Is4() {
			return IPv4
		}
		return IPv6
	}
	// 1.2.3.4:80; an IPv6 address would be in brackets.
	if _, err := netip.ParseAddrPort(text); err == nil {
		return IPv4
	}
	return FamilyUnknown
}
