package proxymode

import (
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// EBPF is the network plugin whose eBPF programs may translate packets to services before the rules of a host, and what shows it; empty:
// the rules do not show one, or a service proxy wrote them.
func EBPF(dumps []*iptables.Dump) (plugin string, proof Proof) {
	if mode, _ := ModeOf(dumps); mode != ModeUnknown {
		return "", proof
	}
	for _, d := range dumps {
		for _, t := range d.Tables {
			for _, r := range t.Rules {
				switch at := (Proof{"chain " + r.Chain, r.Line}); {
				case strings.HasPrefix(r.Chain, "CILIUM_"):
					return "Cilium", at
				case LeftToCalico(r):
					return "Calico", at
				}
			}
		}
	}
	return "", proof
}

// seenByCalico is the bit of the mark that Calico's eBPF programs set (felix, bpf/tc/defs).
const seenByCalico = 0x1000000

// LeftToCalico reports whether a rule of Calico drops packets that its eBPF programs have not seen. They see all packets before, translate,
// and decide; no rule sets the mark.
func LeftToCalico(r *iptables.Rule) bool {
	return r.Target == iptables.Drop && strings.HasPrefix(r.Chain, "cali-") &&
		slices.Contains(r.Matches, iptables.Match(iptables.Mark{Mark: iptables.MaskedValue{Value: seenByCalico, Mask: seenByCalico}, Negated: true}))
}
