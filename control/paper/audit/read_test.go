package audit_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// only is the one service of some rules of nat.
func only(t *testing.T, rules string) *audit.Service {
	t.Helper()
	node := audit.Read(parse(t, nat("", rules), decision.IPv4))
	if len(node.Services) != 1 {
		t.Fatalf("%d services, want 1, of\n%s", len(node.Services), rules)
	}
	return node.Services[0]
}

// TestShares: what part of the flows an endpoint gets, by whatever kind of statistic.
func TestShares(t *testing.T) {
	for _, c := range []struct{ first, want string }{
		{"-m statistic --mode random --probability 0.25000000000", "0.25 0.75"},
		{"-m statistic --mode random ! --probability 0.25000000000", "0.75 0.25"},
		{"-m statistic --mode nth --every 4 --packet 0", "0.25 0.75"},
		{"-m statistic --mode nth ! --every 4 --packet 0", "0.75 0.25"},
	} {
		s := only(t, `-A KUBE-SERVICES -d 10.96.0.20/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-SVC-AAAAAAAAAAAAAAAA `+c.first+` -j KUBE-SEP-A
-A KUBE-SVC-AAAAAAAAAAAAAAAA -j KUBE-SEP-B
-A KUBE-SEP-A -p tcp -m tcp -j DNAT --to-destination 10.244.1.1:80
-A KUBE-SEP-B -p tcp -m tcp -j DNAT --to-destination 10.244.1.2:80
`)
		if have := fmt.Sprintf("%.2f %.2f", s.Endpoints[0].Share, s.Endpoints[1].Share); have != c.want {
			t.Errorf("%s: %s, want %s", c.first, have, c.want)
		}
	}
}

// TestFirewallChains: who may use a load balancer IP, with and without comments.
func TestFirewallChains(t *testing.T) {
	for _, c := range []struct {
		name, chain, ranges string
		node                bool
	}{
		{"two ranges", "-s 10.1.0.0/16;-s 10.2.0.0/16", "[10.1.0.0/16 10.2.0.0/16]", false},
		{"a range, and the node", "-s 10.1.0.0/16;-s 192.0.2.10/32", "[10.1.0.0/16]", true},
		{"everyone, ranges all the same", "-s 10.1.0.0/16;", "[]", false},
		{"all but one", "! -s 10.1.0.0/16", "[]", false},
	} {
		for _, comment := range []string{"", ` -m comment --comment "default/web loadbalancer IP"`} {
			rules := "-A KUBE-SERVICES -d 192.0.2.10/32 -p tcp" + comment + " -m tcp --dport 80 -j KUBE-FW-AAAAAAAAAAAAAAAA\n"
			for match := range strings.SplitSeq(c.chain, ";") {
				rules += "-A KUBE-FW-AAAAAAAAAAAAAAAA " + match + comment + " -j KUBE-EXT-AAAAAAAAAAAAAAAA\n"
			}
			s := only(t, rules)
			if have := fmt.Sprint(s.SourceRanges); have != c.ranges || s.NodeAllowed != c.node || fmt.Sprint(s.LoadBalancerIPs) != "[192.0.2.10]" {
				t.Errorf("%s (%q): ranges %s, node %t, addresses %v; want %s, %t", c.name, comment, have, s.NodeAllowed, s.LoadBalancerIPs, c.ranges, c.node)
			}
		}
	}
}

// TestForeignRules: rules in kube-proxy's chains that kube-proxy would not have written are
// no services.
func TestForeignRules(t *testing.T) {
	const to = " -j KUBE-SVC-AAAAAAAAAAAAAAAA\n"
	for _, rule := range []string{
		"-A KUBE-SERVICES -d 10.96.0.0/24 -p tcp -m tcp --dport 80" + to,
		"-A KUBE-SERVICES ! -d 10.96.0.20/32 -p tcp -m tcp --dport 80" + to,
		"-A KUBE-SERVICES -d 10.96.0.20/32 -p tcp -m tcp --dport 80:90" + to,
		"-A KUBE-SERVICES -s 10.0.0.1/32 -d 10.96.0.20/32 -p tcp -m tcp --dport 80" + to,
		"-A KUBE-SERVICES -d 10.96.0.20/32 -p tcp" + to,
		"-A KUBE-SERVICES -d 10.96.0.20/32" + to,
		"-A KUBE-NODEPORTS" + to,
		"-A KUBE-NODEPORTS -p tcp -m tcp --dport 30000:30010" + to,
	} {
		if node := audit.Read(parse(t, nat("", rule), decision.IPv4)); len(node.Services) > 0 {
			t.Errorf("%s is %+v", rule, node.Services[0])
		}
	}
	filter := "-A KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment \"default/web has no endpoints\" -m tcp --dport 30080 -j REJECT --reject-with icmp-port-unreachable\n"
	if node := audit.Read(parse(t, nat(filter, ""), decision.IPv4)); len(node.Services) > 0 {
		t.Errorf("%s is %+v", filter, node.Services[0])
	}
}
