package nftrules

import (
	"slices"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

// kindICMPX are the codes of "reject with icmpx".
var kindICMPX = &kind{size: 1, names: map[string]uint64{"no-route": 0, "port-unreachable": 1, "host-unreachable": 2, "admin-prohibited": 3}}

// Numbers writes numbers for the names of protocols, states and the like in a rule or an element that nft printed, as nft -n does.
func Numbers(line string) string {
	words := strings.Fields(line)
	out := slices.Clone(words)
	var of *kind
	inSet := false
	for i, w := range words {
		inSet = inSet && w != "}" || w == "{"
		if i > 1 {
			if k := kindBehind(words[i-2], words[i-1]); k != nil {
				of = k
			}
		}
		if of != nil {
			if number, ok := of.numbers(w); ok {
				out[i] = number
				continue
			}
		}
		// A part of a concatenation.
		if number, ok := kindProtocol.numbers(w); ok && (i > 0 && words[i-1] == "." || i+1 < len(words) && words[i+1] == ".") {
			out[i] = number
		} else if number, ok := kindPort.numbers(w); ok && strings.HasPrefix(w, `"`) && i > 0 && words[i-1] == "." {
			out[i] = number
		} else if !inSet && !slices.Contains([]string{"}", "&", "|", "==", "!=", "!", "vmap", "map"}, w) {
			of = nil
		}
	}
	return strings.Join(out, " ")
}

// kindBehind is the kind of the values behind two words; nil: they are not the name of a field.
func kindBehind(a, b string) *kind {
	switch {
	case a == "meta":
		return metaKinds[b]
	case a == "ct":
		return ctKinds[b]
	case a == "ether" && b == "type":
		return kindEtherty
	case b == "type" && slices.Contains([]string{"saddr", "daddr", "iif", "oif", "mark"}, a): // fib
		return kindFib
	case a == "with":
		return map[string]*kind{"icmp": kindICMPCode, "icmpv6": kindICMP6Code, "icmpx": kindICMPX}[b]
	}
	return headers[a].fields[b].kind
}

// numbers writes numbers for names between commas. false: one of them is none of the kind.
func (k *kind) numbers(word string) (string, bool) {
	if k.size > 8 {
		return "", false
	}
	parts := strings.Split(strings.Trim(word, `,"()`), ",")
	for i, p := range parts {
		b, ok := k.constant(nftables.Literal{Text: p})
		if !ok {
			return "", false
		}
		parts[i] = strconv.FormatUint(numberOf(b), 10)
	}
	return strings.Join(parts, ","), true
}
