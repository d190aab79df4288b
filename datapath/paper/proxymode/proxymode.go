// Package proxymode recognises the service proxy, and its mode, that wrote the rules of a host.
package proxymode

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
)

// Mode is the service proxy that wrote the rules of a host, and its mode.
type Mode uint8

// The modes.
const (
	ModeUnknown    Mode = iota // the rules do not show it
	ModeIPTables               // kube-proxy: its rules translate
	ModeIPVS                   // kube-proxy: virtual servers of IPVS translate
	ModeUserspace              // kube-proxy, until 1.25: its rules redirect to its own ports
	ModeKubeRouter             // kube-router's service proxy: virtual servers of IPVS translate
	ModeNFTables               // kube-proxy: maps of nftables lead to rules that translate
)

var modeNames = []string{"unknown", "kube-proxy in iptables mode", "kube-proxy in IPVS mode", "kube-proxy in userspace mode", "kube-router's service proxy (IPVS)", "kube-proxy in nftables mode"}

func (m Mode) String() string { return modeNames[m] }

// IPVS reports whether virtual servers of IPVS translate packets to services, so that the rules do
// not show their endpoints.
func (m Mode) IPVS() bool { return m == ModeIPVS || m == ModeKubeRouter }

// Proof is what shows a mode: a chain or a rule.
type Proof struct {
	Text string // "chain KUBE-LOAD-BALANCER", "ipset KUBE-CLUSTER-IP"
	Line int
}

func (p Proof) String() string {
	if p.Line == 0 {
		return p.Text
	}
	return fmt.Sprintf("%s, line %d", p.Text, p.Line)
}

// IPVS reports whether the rules of a host are those of a service proxy that uses IPVS.
func IPVS(dumps ...*iptables.Dump) bool {
	mode, _ := ModeOf(dumps)
	return mode.IPVS()
}

// ModeOf finds the mode of the service proxy by the rules of a host, and what shows it. A rule that
// leads to the chain of a service shows more than chains that may be left over from another mode.
func ModeOf(dumps []*iptables.Dump) (Mode, Proof) {
	found := make(map[Mode]Proof)
	see := func(m Mode, line int, kind, name string) {
		if m == ModeUnknown {
			return
		}
		if _, known := found[m]; !known {
			found[m] = Proof{kind + " " + name, line}
		}
	}
	for _, d := range dumps {
		if d.Ruleset != nil {
			mode, proof := OfRuleset(d.Ruleset)
			if _, known := found[mode]; !known {
				found[mode] = proof
			}
			continue
		}
		for _, t := range d.Tables {
			for _, c := range t.Chains {
				see(chainMode(t.Name, c.Name), c.Line, "chain", c.Name)
			}
			for _, r := range t.Rules {
				see(chainMode(t.Name, r.Chain), r.Line, "chain", r.Chain)
				for _, m := range r.Matches {
					if set, ok := m.(iptables.SetMatch); ok {
						see(setMode(set.Set), r.Line, "ipset", set.Set)
					}
				}
				if to, ok := r.Target.(iptables.Jump); ok && t.Name == "nat" && serviceChain(to.Chain) {
					see(ModeIPTables, r.Line, "chain", to.Chain)
				}
			}
		}
	}
	for _, m := range []Mode{ModeIPTables, ModeNFTables, ModeIPVS, ModeKubeRouter, ModeUserspace} {
		if p, ok := found[m]; ok && (m != ModeUserspace || !hasServices(dumps)) {
			return m, p
		}
	}
	return ModeUnknown, Proof{}
}

// hasServices reports whether the rules have kube-proxy's chain KUBE-SERVICES, which mode userspace does not make. OpenShift 3 has the
// chains of that mode, too, for Services without Pods.
func hasServices(dumps []*iptables.Dump) bool {
	return slices.ContainsFunc(dumps, func(d *iptables.Dump) bool {
		return slices.ContainsFunc(d.Tables, func(t *iptables.Table) bool { return t.Chain(kubechains.Services) != nil })
	})
}

// OfRuleset finds the mode of the service proxy by a ruleset of nftables. Of rules that programs of iptables-nft wrote, it has
// nothing to say: [ModeOf] reads them as iptables-save prints them.
func OfRuleset(r *nftables.Ruleset) (Mode, Proof) {
	for _, t := range r.Tables {
		if KubeProxyTable(t) {
			return ModeNFTables, Proof{fmt.Sprintf("table %s %s", t.Family, t.Name), t.Line}
		}
	}
	return ModeUnknown, Proof{}
}

// KubeProxyTable reports whether a table of nftables is one of kube-proxy's.
func KubeProxyTable(t *nftables.Table) bool {
	return (t.Family == nftables.FamilyIP || t.Family == nftables.FamilyIP6) && t.Name == nftproxy.Table
}

// DaemonName is the name of the tables of nfqproxy's daemon.
const DaemonName = "nfqproxy"

// DaemonTable is the table of nfqproxy's daemon in the rules of a host; nil: there is none.
func DaemonTable(r *nftables.Ruleset) *nftables.Table {
	for _, t := range r.Tables {
		if (t.Family == nftables.FamilyIP || t.Family == nftables.FamilyIP6) && t.Name == DaemonName {
			return t
		}
	}
	return nil
}

// OfChain is the mode of the service proxy that has a chain of that name in a table of iptables.
func OfChain(table, chain string) (Mode, bool) {
	mode := chainMode(table, chain)
	if mode == ModeUnknown && table == "nat" && serviceChain(chain) {
		mode = ModeIPTables
	}
	return mode, mode != ModeUnknown
}

// chainMode is the mode of kube-proxy that has a chain of that name.
func chainMode(table, chain string) Mode {
	switch chain {
	case "KUBE-LOAD-BALANCER", "KUBE-NODE-PORT", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-FIRE-WALL":
		return ModeIPVS
	case "KUBE-PORTALS-CONTAINER", "KUBE-PORTALS-HOST", "KUBE-NODEPORT-CONTAINER", "KUBE-NODEPORT-HOST", "KUBE-NODEPORT-NON-LOCAL":
		if table == "nat" || table == "filter" {
			return ModeUserspace
		}
	case "KUBE-ROUTER-SERVICES", "KUBE-ROUTER-HAIRPIN":
		return ModeKubeRouter
	}
	return ModeUnknown
}

// ServiceSets are the ipsets of kube-proxy's IPVS mode whose elements are addresses, or addresses
// and ports, of services: by the beginning of their names (pkg/proxy/ipvs/ipset.go).
var ServiceSets = []string{"KUBE-CLUSTER-IP", "KUBE-EXTERNAL-IP", "KUBE-LOAD-BALANCER", "kube-router-svip", "kube-router-service-ips", "kube-router-ipvs-services"}

// setMode is the mode of a service proxy that has an ipset of that name. The sets of the other
// family are named KUBE-6-..., and inet6:kube-router-... .
func setMode(name string) Mode {
	name = PlainSet(name)
	begins := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	switch {
	case slices.ContainsFunc([]string{
		"KUBE-CLUSTER-IP", "KUBE-LOOP-BACK", "KUBE-EXTERNAL-IP", "KUBE-LOAD-BALANCER", "KUBE-NODE-PORT-", "KUBE-IPVS-IPS", "KUBE-HEALTH-CHECK-NODE-PORT",
	}, begins):
		return ModeIPVS
	case slices.ContainsFunc([]string{"kube-router-svip", "kube-router-service-ips", "kube-router-ipvs-services"}, begins):
		return ModeKubeRouter
	}
	return ModeUnknown
}

// PlainSet is the name of a service proxy's ipset without the mark of IPv6.
func PlainSet(name string) string {
	if rest, ok := strings.CutPrefix(name, "KUBE-6-"); ok {
		return "KUBE-" + rest
	}
	return strings.TrimPrefix(name, "inet6:")
}

// serviceChain reports whether a chain of that name is of one service, in iptables mode.
func serviceChain(name string) bool {
	return slices.ContainsFunc([]string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-XLB-", "KUBE-FW-", "KUBE-SEP-"}, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}
