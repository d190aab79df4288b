package proxymode

import (
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

func TestModeOf(t *testing.T) {
	for _, c := range []struct {
		name  string
		rules []string
		want  Mode
		proof string
	}{
		{"nothing", []string{"*nat", ":KUBE-SERVICES - [0:0]", "COMMIT"}, ModeUnknown, ""},
		{"iptables", []string{"*nat", ":KUBE-SERVICES - [0:0]", ":KUBE-SVC-A - [0:0]", "-A KUBE-SERVICES -d 10.96.0.20/32 -j KUBE-SVC-A", "COMMIT"}, ModeIPTables, "chain KUBE-SVC-A, line 4"},
		{"IPVS by a set", []string{"*nat", ":KUBE-SERVICES - [0:0]", "-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT", "COMMIT"}, ModeIPVS, "ipset KUBE-CLUSTER-IP, line 3"},
		{"IPVS by a set of IPv6", []string{"*nat", ":KUBE-SERVICES - [0:0]", "-A KUBE-SERVICES -m set --match-set KUBE-6-CLUSTER-IP dst,dst -j ACCEPT", "COMMIT"}, ModeIPVS, "ipset KUBE-6-CLUSTER-IP, line 3"},
		{"IPVS by a chain", []string{"*nat", ":KUBE-LOAD-BALANCER - [0:0]", "COMMIT"}, ModeIPVS, "chain KUBE-LOAD-BALANCER, line 2"},
		{"chains of IPVS are left over", []string{
			"*nat", ":KUBE-LOAD-BALANCER - [0:0]", ":KUBE-SERVICES - [0:0]", ":KUBE-SVC-A - [0:0]", "-A KUBE-SERVICES -d 10.96.0.20/32 -j KUBE-SVC-A", "COMMIT",
		}, ModeIPTables, "chain KUBE-SVC-A, line 5"},
		{"userspace", []string{"*nat", ":KUBE-PORTALS-CONTAINER - [0:0]", "COMMIT"}, ModeUserspace, "chain KUBE-PORTALS-CONTAINER, line 2"},
		{"kube-router", []string{"*filter", ":KUBE-ROUTER-SERVICES - [0:0]", "COMMIT"}, ModeKubeRouter, "chain KUBE-ROUTER-SERVICES, line 2"},
		{"network policies only", []string{
			"*filter", ":KUBE-NWPLCY-A - [0:0]", "-A KUBE-NWPLCY-A -m set --match-set KUBE-SRC-A src -j ACCEPT", "COMMIT",
		}, ModeUnknown, ""},
	} {
		d, err := iptables.Parse(strings.NewReader(strings.Join(c.rules, "\n")+"\n"), iptables.Options{})
		if err != nil {
			t.Fatal(err)
		}
		mode, proof := ModeOf([]*iptables.Dump{d})
		if mode != c.want || proof.String() != c.proof {
			t.Errorf("%s: %s by %q, want %s by %q", c.name, mode, proof, c.want, c.proof)
		}
		if IPVS(d) != (c.want == ModeIPVS || c.want == ModeKubeRouter) {
			t.Errorf("%s: IPVS %v", c.name, IPVS(d))
		}
	}
}

func TestOfRuleset(t *testing.T) {
	for text, want := range map[string]string{
		"table inet filter {\n}\ntable ip6 kube-proxy {\n}\n": "kube-proxy in nftables mode, table ip6 kube-proxy, line 3",
		"table inet kube-proxy {\n}\n":                        "unknown, ",
	} {
		r, err := nftables.Read("rules", strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		mode, proof := OfRuleset(r)
		if have := mode.String() + ", " + proof.String(); have != want {
			t.Errorf("%q: %q, want %q", text, have, want)
		}
	}
}
