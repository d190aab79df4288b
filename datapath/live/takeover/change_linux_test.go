package takeover

import (
	"errors"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables/xtablestest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestChangedMeanwhile: kube-proxy made its jumps anew, and another chain, between
// Find and Remove.
func TestChangedMeanwhile(t *testing.T) {
	forEach(t, func(t *testing.T, b xtables.Backend, f decision.Family) {
		n := newNode(t)
		n.load(b, f, kubeProxy(t, f, 3))
		n.load(b, f, othersOf(f))
		l := n.find()
		jump := []string{"-t", "nat", "-D", "PREROUTING", "-m", "comment", "--comment", "kubernetes service portals", "-j", "KUBE-SERVICES"}
		program := strings.TrimSuffix(xtablestest.Tool(b, f, ""), "-")
		n.Exec("", program, jump...)
		jump[2] = "-A"
		n.Exec("", program, jump...)
		n.load(b, f, "*nat\n:KUBE-SVC-NEW - [0:0]\n-A KUBE-SERVICES -j KUBE-SVC-NEW\nCOMMIT\n")
		want := withoutOwn(n.save(b, f))
		n.remove(l)
		same(n, n.save(b, f), want)
	})
}

// TestGoneMeanwhile: another program has cleaned up.
func TestGoneMeanwhile(t *testing.T) {
	forEach(t, func(t *testing.T, b xtables.Backend, f decision.Family) {
		n := newNode(t)
		n.load(b, f, kubeProxy(t, f, 3))
		l := n.find()
		for _, table := range tableNames {
			n.Exec("*"+table+"\nCOMMIT\n", xtablestest.Tool(b, f, "restore")) // flushes
		}
		n.remove(l)
		if !n.find().Empty() {
			t.Error("still there")
		}
	})
}

// TestAllOrNothing: where one chain cannot go, because a rule uses it that iptables could
// not make, the table stays as it is.
func TestAllOrNothing(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	n := newNode(t)
	n.load(xtables.NFT, decision.IPv4, kubeProxy(t, decision.IPv4, 3))
	n.Exec("add chain ip nat odd\nadd rule ip nat odd meta l4proto vmap { tcp : jump KUBE-SERVICES }\n", "nft", "-f", "-")
	before := n.Exec("", "nft", "list", "table", "ip", "nat")
	l := n.find()
	err := n.NS.Do(l.Remove)
	if !errors.Is(err, errChanged) || !strings.Contains(err.Error(), "iptables (nft), IPv4, table nat: ") {
		t.Errorf("error %v", err)
	}
	if after := n.Exec("", "nft", "list", "table", "ip", "nat"); after != before {
		t.Errorf("what is left is\n%s\nand not\n%s", after, before)
	}
	// The other tables are done.
	if lines := n.find().Lines(); len(lines) != 1 {
		t.Errorf("still there: %q", lines)
	}
	n.Exec("flush chain ip nat odd\n", "nft", "-f", "-")
	n.remove(l)
	if !n.find().Empty() {
		t.Error("still there")
	}
}
