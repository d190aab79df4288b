package takeover

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables/xtablestest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

func forEach(t *testing.T, test func(t *testing.T, b xtables.Backend, f decision.Family)) {
	for _, b := range xtablestest.Backends {
		for _, f := range families {
			t.Run(fmt.Sprintf("%s/%s", b, f), func(t *testing.T) {
				netnstest.Require(t)
				netnstest.RequireTool(t, xtablestest.Tool(b, f, "restore"))
				test(t, b, f)
			})
		}
	}
}

// removesAll has Remove take away all of kube-proxy's and nothing else, word for word.
func removesAll(n node, b xtables.Backend, f decision.Family) {
	n.Helper()
	before := n.save(b, f)
	want := withoutOwn(before)
	if len(want) == len(before) {
		n.Fatal("there is nothing to remove")
	}
	l := n.find()
	if l.Empty() {
		n.Fatal("nothing found")
	}
	if want := strings.Contains(before, ":KUBE-SEP-"); l.Serve() != want {
		n.Errorf("the rules serve: %t, want %t", !want, want)
	}
	if got := n.save(b, f); got != before {
		n.Errorf("to look changes something:\n%s", got)
	}
	n.remove(l)
	same(n, n.save(b, f), want)
	if l := n.find(); !l.Empty() || l.String() != "no rules of kube-proxy" {
		n.Errorf("still there: %s", l)
	}
	n.remove(l) // again, with what is no longer true
	same(n, n.save(b, f), want)
}

func same(n node, got, want string) {
	n.Helper()
	if got == want {
		return
	}
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			n.Fatalf("line %d is\n %s\nand not\n %s", i, g[i], w[i])
		}
	}
	n.Fatalf("%d lines, want %d", len(g), len(w))
}

// TestRemoveKeepsOthers: rules of others, before and after, stay as they are.
func TestRemoveKeepsOthers(t *testing.T) {
	forEach(t, func(t *testing.T, b xtables.Backend, f decision.Family) {
		n := newNode(t)
		n.load(b, f, kubeProxy(t, f, 30))
		n.load(b, f, othersOf(f))
		n.load(b, f, strings.ReplaceAll(kubeProxy(t, f, 1), ":KUBE", "#")) // its jumps once more
		if b == xtables.Legacy && !strings.Contains(n.save(b, f), "[25:960] -A KUBE-MARK-DROP") {
			t.Error("the counters were not loaded") // as ip6tables-nft does not
		}
		removesAll(n, b, f)
		if rest := n.save(b, f); !strings.Contains(rest, "KUBE-ROUTER-INPUT") || !strings.Contains(rest, "KUBE-SVC-of-filter") || !strings.Contains(rest, "] -A KUBE-MARK-DROP") {
			t.Errorf("others' rules are not there:\n%s", rest)
		}
	})
}

// TestPublishedNodes: the rules of real nodes, kubelet's and kube-proxy's.
func TestPublishedNodes(t *testing.T) {
	xtablestest.EachDump(t, "../../kubechains/testdata/*.rules", func(t *testing.T, b xtables.Backend, dump string) {
		n := newNode(t)
		n.load(b, decision.IPv4, dump)
		removesAll(n, b, decision.IPv4)
		if rest := n.save(b, decision.IPv4); !strings.Contains(rest, "-A KUBE-FIREWALL ") || !strings.Contains(rest, ":KUBE-KUBELET-CANARY ") || ownAnyhow.MatchString(rest) {
			t.Errorf("what is left is\n%s", rest)
		}
	})
}

// TestBothBackEnds: a node that changed its back end has both.
func TestBothBackEnds(t *testing.T) {
	n := newNode(t)
	for _, f := range families {
		for _, b := range xtablestest.Backends {
			n.load(b, f, kubeProxy(t, f, 3))
		}
	}
	l := n.find()
	if lines := l.Lines(); len(lines) != 12 {
		t.Errorf("found:\n%s", l)
	}
	n.remove(l)
	for _, f := range families {
		for _, b := range xtablestest.Backends {
			if rest := n.save(b, f); ownAnyhow.MatchString(rest) {
				t.Errorf("%s, %s: what is left is\n%s", b, f, rest)
			}
		}
	}
}

// TestUsedByOthers: what a rule of another program uses stays with all it needs.
func TestUsedByOthers(t *testing.T) {
	forEach(t, func(t *testing.T, b xtables.Backend, f decision.Family) {
		n := newNode(t)
		n.load(b, f, kubeProxy(t, f, 3))
		n.load(b, f, "*nat\n:CNI-HOSTPORT-SETMARK - [0:0]\n-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ\nCOMMIT\n")
		l := n.find()
		want := fmt.Sprintf("iptables (%s), %s, table nat: chain KUBE-MARK-MASQ stays, because chain CNI-HOSTPORT-SETMARK, which is not kube-proxy's, jumps to it", b, f)
		if notes := l.Notes(); len(notes) != 1 || notes[0] != want {
			t.Errorf("notes %q, want %q", notes, want)
		}
		n.remove(l)
		rest := ""
		for line := range strings.Lines(n.save(b, f)) {
			if ownAnyhow.MatchString(line) {
				rest += regexp.MustCompile(`^\[\d+:\d+\] | \[\d+:\d+\]`).ReplaceAllString(line, "")
			}
		}
		expect := `:KUBE-MARK-MASQ -
:KUBE-POSTROUTING -
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
`
		if rest != expect {
			t.Errorf("what is left is\n%s\nwant\n%s", rest, expect)
		}
		if l := n.find(); !l.Empty() || len(l.Notes()) != 1 {
			t.Errorf("found again: %s", l)
		}
	})
}

// TestManyServices is about sizes: of messages, and of offsets.
func TestManyServices(t *testing.T) {
	forEach(t, func(t *testing.T, b xtables.Backend, f decision.Family) {
		services := 2000
		if b == xtables.NFT {
			services = 200 // as many as iptables-nft can load for an ordinary user
		}
		n := newNode(t)
		n.load(b, f, kubeProxy(t, f, services))
		n.load(b, f, othersOf(f))
		removesAll(n, b, f)
	})
}

// TestOwnTable is about mode nftables.
func TestOwnTable(t *testing.T) {
	n := newNode(t)
	netnstest.RequireTool(t, "nft")
	n.Exec(`
table ip kube-proxy {
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 10.96.0.1 . tcp . 443 : goto service-a/a/tcp/ }; }
	chain service-a/a/tcp/ { numgen random mod 1 vmap { 0 : goto endpoint-a }; }
	chain endpoint-a { meta l4proto tcp dnat to 10.244.0.2:6443; }
	chain service-endpoints-check { }
	chain nat-prerouting { type nat hook prerouting priority dstnat; ip daddr . meta l4proto . th dport vmap @service-ips; }
}
table ip6 kube-proxy { chain filter-input { type filter hook input priority -110; ct state new jump a; }; chain a { }; }
table inet kube-proxy { chain another { }; }
table ip admin { chain input { type filter hook input priority 0; jump KUBE-SERVICES; }; chain KUBE-SERVICES { accept; }; }
`, "nft", "-f", "-")
	l := n.find()
	if want := "nftables table ip kube-proxy with 4 chains\nnftables table ip6 kube-proxy with 2 chains"; l.String() != want {
		t.Errorf("found:\n%s\nwant:\n%s", l, want)
	}
	if !l.Serve() {
		t.Error("the chain of the service is not noticed")
	}
	n.Exec("", "nft", "flush map ip kube-proxy service-ips; delete chain ip kube-proxy service-a/a/tcp/")
	if n.find().Serve() {
		t.Error("rules without a service serve")
	}
	n.remove(l)
	n.remove(l)
	rest := strings.Fields(n.Exec("", "nft", "list", "tables"))
	if got := strings.Join(rest, " "); got != "table inet kube-proxy table ip admin" {
		t.Errorf("what is left: %s", got)
	}
	if !n.find().Empty() {
		t.Error("still there")
	}
}

// TestLines: an operator reads what and how much.
func TestLines(t *testing.T) {
	forEach(t, func(t *testing.T, b xtables.Backend, f decision.Family) {
		n := newNode(t)
		n.load(b, f, "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-A - [0:0]\n:KUBE-PROXY-CANARY - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n-A KUBE-SERVICES -j KUBE-SVC-A\nCOMMIT\n"+
			"*mangle\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n")
		want := fmt.Sprintf("iptables (%s), %s, table mangle: 1 chain with 0 rules, and 0 jumps to them\niptables (%s), %s, table nat: 3 chains with 1 rule, and 2 jumps to them", b, f, b, f)
		if l := n.find(); l.String() != want {
			t.Errorf("found:\n%s\nwant:\n%s", l, want)
		}
	})
}

// TestNothing: on a node without any of it nothing is found, and nothing is made.
func TestNothing(t *testing.T) {
	n := newNode(t)
	if l := n.find(); !l.Empty() || l.String() != "no rules of kube-proxy" {
		t.Errorf("found %s", l)
	}
	names := ""
	if err := n.NS.Do(func() error {
		for _, f := range families {
			tables, err := xtables.Names(f)
			if err != nil {
				return err
			}
			names += strings.Join(tables, " ")
		}
		return nil
	}); err != nil || names != "" {
		t.Errorf("to look loads tables %q, error %v", names, err)
	}
}
