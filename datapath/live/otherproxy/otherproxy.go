// Package otherproxy tells which service proxy serves the node that nfqproxy only observes.
package otherproxy

import (
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
)

// Unknown is the name of a proxy that left none of the traces that Find knows.
const Unknown = "unknown proxy"

// Cilium is the name of Cilium in kube-proxy's place, which translates before connection tracking sees a packet.
const Cilium = "Cilium"

// chain is the one that kube-proxy has in its mode iptables, and in IPVS mode too.
const chain = "KUBE-SERVICES"

// Find names the service proxy of the calling thread's network namespace by what it leaves in the kernel: its tables and
// chains, and its devices. Several are possible; the first of these counts, as it translates before the others see a
// packet: kube-proxy, whose modes are in parentheses, nfqproxy, kube-router, Cilium and OVN-Kubernetes. Cilium may be there
// as the network plugin only, and virtual servers may be of others. It needs CAP_NET_ADMIN, and changes nothing: not even a module is loaded.
func Find() (string, error) {
	ipvs := hasDevice("kube-ipvs0")
	for _, f := range []decision.Family{decision.IPv4, decision.IPv6} {
		for _, of := range []struct{ table, proxy string }{{"kube-proxy", "kube-proxy (nftables)"}, {"nfqproxy", "nfqproxy"}} {
			t, err := nft.Get(nft.Family(f), unix.NFT_MSG_GETTABLE, nft.NamedTable(of.table))
			if err != nil {
				return "", err
			}
			if t != nil {
				return of.proxy, nil
			}
		}
		mode, err := iptables(f)
		switch {
		case err != nil:
			return "", err
		case mode != "" && ipvs:
			return "kube-proxy (ipvs)", nil
		case mode != "":
			return "kube-proxy (" + mode + ")", nil
		}
	}
	for _, of := range []struct{ device, proxy string }{{"kube-dummy-if", "kube-router"}, {"cilium_host", Cilium}, {"ovn-k8s-mp0", "OVN-Kubernetes"}} {
		if hasDevice(of.device) {
			return of.proxy, nil
		}
	}
	return Unknown, nil
}

// iptables names the mode by the back end of iptables whose table nat has kube-proxy's chain; empty: neither has it.
func iptables(f decision.Family) (string, error) {
	c, err := nft.Get(nft.Family(f), unix.NFT_MSG_GETCHAIN, nft.NamedChain("nat", chain))
	if c != nil || err != nil {
		return "iptables", err
	}
	t, err := xtables.ReadLoaded(f, "nat")
	if t == nil || err != nil {
		return "", err
	}
	chains, err := t.Chains()
	if slices.ContainsFunc(chains, func(c xtables.Chain) bool { return c.Name == chain }) {
		return "iptables-legacy", err
	}
	return "", err
}

func hasDevice(name string) bool {
	_, err := net.InterfaceByName(name)
	return err == nil
}
