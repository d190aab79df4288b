package hostrules

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables/xtablestest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestOrder sends a packet through tables that all translate it, and looks which of them
// did: the first one. Then that one goes, and the next shows. This is the order that Read
// gives, as far as it reports to know it.
func TestOrder(t *testing.T) {
	native := func(table string, priority int) loaded {
		return loaded{
			name: fmt.Sprintf("ip %s out", table), tool: "nft", args: []string{"-f", "-"},
			rules:  fmt.Sprintf("table ip %s { chain out { type nat hook postrouting priority %d; udp dport 9 counter snat to 192.0.2.1:%%d; }; }\n", table, priority),
			remove: fmt.Sprintf("delete table ip %s\n", table),
		}
	}
	of := func(b xtables.Backend) loaded {
		rule := "-o veth -p udp -m udp --dport 9 -j SNAT --to-source 192.0.2.1:%d"
		return loaded{
			name: "nat", tool: xtablestest.Tool(b, decision.IPv4, "restore"), args: []string{"--noflush"},
			rules: "*nat\n-A POSTROUTING " + rule + "\nCOMMIT\n", remove: "*nat\n-F POSTROUTING\nCOMMIT\n",
		}
	}
	for _, c := range []struct {
		name    string
		tables  []loaded // in the order of their making
		first   []int    // the order in which the kernel evaluates them
		unknown bool     // Read cannot know
	}{
		{"newer natives first", []loaded{native("a", 100), native("b", 100), native("c", 100)}, []int{2, 1, 0}, false},
		{"lower priorities first", []loaded{native("a", 99), native("b", 100), native("c", -5)}, []int{2, 0, 1}, false},
		{"iptables-nft and natives", []loaded{native("a", 100), of(xtables.NFT), native("b", 100)}, []int{2, 1, 0}, false},
		{"legacy, then nft", []loaded{of(xtables.Legacy), native("a", 100)}, []int{1, 0}, true},
		{"nft, then legacy", []loaded{native("a", 100), of(xtables.Legacy)}, []int{1, 0}, true},
		{"nft of lower priority, then legacy", []loaded{native("a", 99), of(xtables.Legacy)}, []int{0, 1}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, l := range c.tables {
				netnstest.RequireTool(t, l.tool)
			}
			n, peer := newNode(t), newNode(t)
			n.connect(peer)
			for i, l := range c.tables {
				n.Exec(fmt.Sprintf(l.rules, 1000+i), l.tool, l.args...)
			}
			r := n.read()
			if got := r.OrderUnknown(decision.IPv4); got != c.unknown {
				t.Errorf("order unknown: %t, want %t", got, c.unknown)
			}
			var want, got []string
			for _, i := range c.first {
				want = append(want, c.tables[i].name)
			}
			for _, table := range r.Of(decision.IPv4) {
				got = append(got, table.Name)
			}
			if !c.unknown && !slices.Equal(got, want) {
				t.Errorf("read in the order %q, want %q", got, want)
			}
			for _, i := range c.first {
				if port := n.sourcePort(peer); port != uint16(1000+i) {
					t.Errorf("table %d translates (port %d), want %d", int(port)-1000, port, i)
				}
				n.Exec(c.tables[i].remove, c.tables[i].tool, c.tables[i].args...)
			}
		})
	}
}

// loaded is a table with one rule, which sets the source port to the number put in.
type loaded struct {
	name, tool    string
	args          []string
	rules, remove string
}

func (n node) connect(peer node) {
	n.Helper()
	steps := []error{
		n.NS.AddVeth("veth", peer.NS, "veth"),
		n.NS.AddAddress("veth", netip.MustParsePrefix("192.0.2.1/24")), peer.NS.AddAddress("veth", netip.MustParsePrefix("192.0.2.2/24")),
		n.NS.SetUp("veth"), peer.NS.SetUp("veth"),
	}
	for _, err := range steps {
		if err != nil {
			n.Fatal(err)
		}
	}
}

// sourcePort is what the peer sees of a packet to its port 9.
func (n node) sourcePort(peer node) uint16 {
	n.Helper()
	at := netip.MustParseAddrPort("192.0.2.2:9")
	server, err := peer.NS.ListenPacket(n.Context(), at)
	if err != nil {
		n.Fatal(err)
	}
	defer server.Close()
	client, err := n.NS.Dial(n.Context(), "udp", netip.AddrPort{}, at)
	if err != nil {
		n.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Write([]byte("x")); err != nil {
		n.Fatal(err)
	}
	_, from, err := server.ReadFrom(make([]byte, 10))
	if err != nil {
		n.Fatal(err)
	}
	return netip.MustParseAddrPort(from.String()).Port()
}
