//go:build linux

package diagnose_test

import (
	"net/netip"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// TestKernelNeedsHairpin: the kernel sends a pod's packets back to it as netfilter.Bridge says.
func TestKernelNeedsHairpin(t *testing.T) {
	requireBackends(t)
	n := newNetwork(t, plans[0])
	service := &decision.ServicePort{Protocol: decision.TCP}
	to, pod := netip.MustParseAddrPort("10.96.0.20:80"), n.plan.pods[0].String()
	r := newRuleset()
	r.append("nat", "PREROUTING", "-d 10.96.0.20/32 -p tcp -j DNAT --to-destination "+pod+":8080")
	r.append("nat", "POSTROUTING", "-s "+pod+"/32 -d "+pod+"/32 -j MASQUERADE")
	check(t, nft.load(n.node, r))
	for _, b := range []netfilter.Bridge{
		{Ports: 2}, {Ports: 2, Hairpins: 2}, {Ports: 2, PassesRules: true}, {Ports: 2, Hairpins: 2, PassesRules: true},
	} {
		calls := "0"
		if b.PassesRules {
			calls = "1"
		}
		if err := n.node.SetSysctl("net.bridge.bridge-nf-call-iptables", calls); err != nil {
			t.Skipf("the kernel has no br_netfilter: %v", err)
		}
		check(t, hairpin(n.node, n.devices[0], b.Hairpins > 0))
		check(t, n.entries.Flush())
		f := &flow{service: service, origin: fromPod, to: to}
		check(t, n.try([]*flow{f}))
		if f.answered == b.ReturnsNone() {
			t.Errorf("%+v: answered %t (%v)", b, f.answered, f.err)
		}
	}
}
