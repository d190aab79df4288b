package redact

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// Text replaces the addresses, MAC addresses and known host names in a text. Addresses may be followed by a prefix
// length, a mask or a port, or be the ends of a range. Addresses in other forms (hexadecimal, in bytes of packets) stay. With
// anyName it replaces host names of letters only, too, which in rules may be words of the language.
func (r *Redactor) Text(text string, anyName bool) string {
	text = endpointChain.ReplaceAllStringFunc(text, r.chain)
	text = nftEndpoint.ReplaceAllStringFunc(text, r.nftName)
	text = jsonNetwork.ReplaceAllStringFunc(text, r.jsonNetwork)
	text = jsonRange.ReplaceAllStringFunc(text, r.jsonRange)
	text = bridgeID.ReplaceAllStringFunc(text, r.bridgeID)
	text = r.scan(text)
	text = dashed.ReplaceAllStringFunc(text, r.dashed)
	for _, n := range r.names {
		if len(n.plain) >= minName && (anyName || telling(n.plain)) {
			text = replaceName(text, n)
		}
	}
	return text
}

// minName is the length of a host name that is replaced in texts: shorter ones are too likely to be other words.
const minName = 2

var (
	// jsonNetwork is a network in two fields of JSON, as nft and ip print it: the bits behind the prefix are to be zero
	// afterwards, too.
	jsonNetwork = regexp.MustCompile(`"(?:addr|src|dst)": ?"([0-9A-Fa-f:.]+)", ?"(?:len|srclen|dstlen)": ?(\d+)`)
	jsonRange   = regexp.MustCompile(`"range": ?\[ ?"([0-9A-Fa-f:.]+)", ?"([0-9A-Fa-f:.]+)" ?\]`)
	// bridgeID is a priority and a MAC address without leading zeros.
	bridgeID = regexp.MustCompile(`\b([0-9a-f]{4})\.((?:[0-9a-f]{1,2}:){5}[0-9a-f]{1,2})\b`)
	// dashed is an address in the names that clouds give to hosts.
	dashed = regexp.MustCompile(`\bip-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3}\b`)
	mac    = regexp.MustCompile(`^(?:[0-9A-Fa-f]{2}:){5}(?:(?:[0-9A-Fa-f]{2}:){14})?[0-9A-Fa-f]{2}$`)
	dotted = regexp.MustCompile(`\d{1,3}(?:\.\d{1,3}){3}`)
)

// done marks an address that is a pseudonym already: scan leaves it out. It is no character of addresses.
const done = "\x00"

func (r *Redactor) jsonNetwork(field string) string {
	m := jsonNetwork.FindStringSubmatch(field)
	a, err := netip.ParseAddr(m[1])
	length, err2 := strconv.Atoi(m[2])
	if err != nil || err2 != nil {
		return field
	}
	return strings.Replace(field, `"`+m[1]+`"`, `"`+done+r.network(a, length).String()+`"`, 1)
}

func (r *Redactor) jsonRange(field string) string {
	m := jsonRange.FindStringSubmatch(field)
	first, err := netip.ParseAddr(m[1])
	last, err2 := netip.ParseAddr(m[2])
	if err != nil || err2 != nil {
		return field
	}
	from, to := r.ends(first, last)
	return fmt.Sprintf(`"range": ["%s%s", "%s%s"]`, done, from, done, to)
}

// ends are the pseudonyms of the ends of a range, in their order.
func (r *Redactor) ends(first, last netip.Addr) (from, to netip.Addr) {
	from, to = r.Address(first), r.Address(last)
	if to.Less(from) {
		return to, from
	}
	return from, to
}

func (r *Redactor) bridgeID(id string) string {
	m := bridgeID.FindStringSubmatch(id)
	var a net.HardwareAddr
	for part := range strings.SplitSeq(m[2], ":") {
		b, _ := strconv.ParseUint(part, 16, 8)
		a = append(a, byte(b))
	}
	a = r.MAC(a)
	return fmt.Sprintf("%s.%x:%x:%x:%x:%x:%x", m[1], a[0], a[1], a[2], a[3], a[4], a[5])
}

// network is the pseudonym of an address before a prefix length: one of a network, whose bits behind the prefix are zero, is
// one, too.
func (r *Redactor) network(a netip.Addr, length int) netip.Addr {
	p := r.Address(a)
	if network, err := a.WithZone("").Prefix(length); err == nil && network.Addr() == a.WithZone("") {
		if network, err := p.WithZone("").Prefix(length); err == nil {
			return network.Addr()
		}
	}
	return p
}

func (r *Redactor) dashed(host string) string {
	a, err := netip.ParseAddr(strings.ReplaceAll(strings.TrimPrefix(host, "ip-"), "-", "."))
	if err != nil {
		return host
	}
	return "ip-" + strings.ReplaceAll(r.Address(a).String(), ".", "-")
}

// scan replaces the addresses of a text.
func (r *Redactor) scan(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); {
		end := i
		if i > 0 && isWordByte(text[i-1]) { // within a word, up to a colon
			for end < len(text) && isAddressByte(text[end]) && text[end] != ':' {
				end++
			}
		}
		if end == i && (!isAddressByte(text[i]) || i > 0 && isWordByte(text[i-1])) {
			end++
		}
		if end > i {
			out.WriteString(text[i:end])
			i = end
			continue
		}
		for end < len(text) && isAddressByte(text[end]) {
			end++
		}
		if i > 0 && text[i-1:i] == done {
			out.WriteString(text[i:end])
			i = end
			continue
		}
		used, replaced := r.run(text[i:end], text[end:])
		out.WriteString(replaced)
		i += used
	}
	return strings.ReplaceAll(out.String(), done, "")
}

func isAddressByte(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' || c == ':' || c == '.'
}

func isWordByte(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
}

// run replaces the addresses in a run of characters that addresses consist of; after is the text behind it, of which it may
// use some.
func (r *Redactor) run(text, after string) (used int, replaced string) {
	core := strings.TrimRight(text, ".:")
	if strings.HasSuffix(text, "::") {
		core = text
	}
	front := ""
	if strings.HasPrefix(core, ":") && !strings.HasPrefix(core, "::") {
		front, core = ":", core[1:]
	}
	rest := text[len(front)+len(core):]
	if rest == "" && after != "" && isWordByte(after[0]) {
		return len(text), text // a part of a word
	}
	if mac.MatchString(core) {
		if a, err := net.ParseMAC(core); err == nil {
			return len(text), front + likeCase(core, r.MAC(a).String()) + rest
		}
	}
	if a, err := netip.ParseAddr(core); err == nil {
		if rest != "" {
			return len(text), front + r.Address(a).String() + rest
		}
		more, s := r.withSuffix(a, core, after)
		return len(text) + more, front + s
	}
	// IPv4 with a port, or behind another number. Five numbers with dots are no address.
	at := dotted.FindStringIndex(text)
	if at == nil || at[1] < len(text) && text[at[1]] == '.' && at[1]+1 < len(text) && isDigit(text[at[1]+1]) ||
		at[0] > 0 && (text[at[0]-1] == '.' || isWordByte(text[at[0]-1])) || at[1] < len(text) && isWordByte(text[at[1]]) {
		return len(text), text
	}
	a, err := netip.ParseAddr(text[at[0]:at[1]])
	if err != nil {
		return len(text), text
	}
	return len(text), text[:at[0]] + r.Address(a).String() + text[at[1]:]
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// likeCase writes hexadecimal digits as the original has them.
func likeCase(original, text string) string {
	if strings.ContainsAny(original, "ABCDEF") {
		return strings.ToUpper(text)
	}
	return text
}

var (
	lengthBehind = regexp.MustCompile(`^/(\d{1,3})\b`)
	maskBehind   = regexp.MustCompile(`^/([0-9A-Fa-f:]*:[0-9A-Fa-f:.]*|\d{1,3}(?:\.\d{1,3}){3})`)
	rangeBehind  = regexp.MustCompile(`^-(\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*)`)
)

// withSuffix replaces an address with the length, the mask or the other end of a range behind it, and returns how much of
// that it used.
func (r *Redactor) withSuffix(a netip.Addr, written, after string) (used int, replaced string) {
	p := r.Address(a)
	if m := maskBehind.FindStringSubmatch(after); m != nil {
		if mask, err := netip.ParseAddr(m[1]); err == nil && mask.BitLen() == a.BitLen() {
			if and(a, mask) == a {
				p = and(p, mask)
			}
			return len(m[0]), p.String() + m[0]
		}
	}
	if m := lengthBehind.FindStringSubmatch(after); m != nil {
		length, _ := strconv.Atoi(m[1])
		return len(m[0]), r.network(a, length).String() + m[0]
	}
	if m := rangeBehind.FindStringSubmatch(after); m != nil {
		if last, err := netip.ParseAddr(m[1]); err == nil && last.BitLen() == a.BitLen() && a.Less(last) {
			from, to := r.ends(a, last)
			return len(m[0]), from.String() + "-" + to.String()
		}
	}
	if p == a {
		return 0, written
	}
	return 0, p.String()
}

func and(a, mask netip.Addr) netip.Addr {
	b, m := a.AsSlice(), mask.AsSlice()
	for i := range b {
		b[i] &= m[i]
	}
	masked, _ := netip.AddrFromSlice(b)
	return masked
}

// replaceName replaces a host name wherever no other character of a name is beside it. In names of letters only, "-" is one.
func replaceName(text string, n name) string {
	part := isWordByte
	if !telling(n.plain) {
		part = func(c byte) bool { return isWordByte(c) || c == '-' }
	}
	var out strings.Builder
	for from := 0; ; {
		i := strings.Index(text[from:], n.plain)
		if i < 0 {
			out.WriteString(text[from:])
			return out.String()
		}
		start, end := from+i, from+i+len(n.plain)
		out.WriteString(text[from:start])
		if start > 0 && part(text[start-1]) || end < len(text) && part(text[end]) {
			out.WriteString(n.plain)
		} else {
			out.WriteString(n.pseudonym)
		}
		from = end
	}
}

// telling reports whether a host name is unlikely to be another word.
func telling(host string) bool { return strings.ContainsAny(host, "-.0123456789") }
