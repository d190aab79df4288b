package hostrules

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables/xtablestest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestHosts loads what programs of many nodes make.
func TestHosts(t *testing.T) {
	xtablestest.EachDump(t, "testdata/*.rules", func(t *testing.T, b xtables.Backend, dump string) {
		n := newNode(t)
		n.NeedNAT(b, decision.IPv4)
		if strings.Contains(dump, "--match-set") {
			// In this order, so that their names are not those of the indexes by chance.
			n.ipsets("other", "cali40all-ipam-pools", "cali40masq-ipam-pools")
		}
		n.Exec(dump, xtablestest.Tool(b, decision.IPv4, "restore"))
		if rules := strings.Count(dump, "\n-A "); len(n.saved(b, decision.IPv4).Rules) != rules {
			t.Fatalf("%d rules are there, want %d", len(n.saved(b, decision.IPv4).Rules), rules)
		}
		n.asSaved(b, decision.IPv4)
	})
}

// ipsets makes sets of networks.
func (n node) ipsets(names ...string) {
	n.Helper()
	if err := n.NS.Do(func() error {
		for _, name := range names {
			if err := netlink.IpsetCreate(name, "hash:net", netlink.IpsetCreateOptions{}); err != nil {
				return fmt.Errorf("ipset %s: %w", name, err)
			}
		}
		return nil
	}); err != nil {
		netnstest.Missing(n, err.Error())
	}
}

// TestSetNames: the kernel keeps the index of a set, and whatever options the match has is
// read.
func TestSetNames(t *testing.T) {
	n := newNode(t)
	n.NeedNAT(xtables.Legacy, decision.IPv4)
	n.ipsets("a", "b")
	n.Exec("*nat\n-A POSTROUTING -m set ! --match-set b src,dst -m set --match-set a dst --return-nomatch ! --update-counters --packets-gt 5 ! --bytes-eq 7 -j MASQUERADE\nCOMMIT\n",
		xtablestest.Tool(xtables.Legacy, decision.IPv4, "restore"))
	n.asSaved(xtables.Legacy, decision.IPv4, "set")
	n.Exec("*nat\n-A POSTROUTING -m set ! --match-set b src,dst -m set --match-set a dst --return-nomatch ! --update-counters --packets-gt 5 ! --bytes-eq 7 -j MASQUERADE\nCOMMIT\n",
		xtablestest.Tool(xtables.NFT, decision.IPv4, "restore"))
	n.asSaved(xtables.NFT, decision.IPv4, "set")
}

// TestNewerIPTables: iptables 1.8.10 and newer write native expressions where 1.8.9 has
// xtables' modules; the tables look like those of iptables, and so do the rules.
func TestNewerIPTables(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	n := newNode(t)
	n.Exec(`
table ip nat {
	chain PREROUTING { type nat hook prerouting priority dstnat; meta l4proto tcp counter redirect to :80-90 random; }
	chain POSTROUTING {
		type nat hook postrouting priority srcnat;
		oifname != "docker0" ip saddr 172.17.0.0/16 counter masquerade fully-random
		ip daddr 224.0.0.0/4 counter return comment "multicast"
		meta l4proto tcp ip saddr 10.0.0.0/8 counter snat to 192.0.2.1-192.0.2.9:80-90 random
		meta mark & 0x4000 != 0x4000 counter return
		counter meta mark set mark xor 0x4000
		meta l4proto icmp icmp type echo-request counter goto KUBE-POSTROUTING
	}
	chain KUBE-POSTROUTING { counter log prefix "a b" level debug; counter log group 3; }
}
`, "nft", "-f", "-")
	want := `-A PREROUTING -p tcp -j REDIRECT --to-ports 80-90 --random
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE --random-fully
-A POSTROUTING -d 224.0.0.0/4 -m comment --comment multicast -j RETURN
-A POSTROUTING -s 10.0.0.0/8 -p tcp -j SNAT --to-source 192.0.2.1-192.0.2.9:80-90 --random
-A POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A POSTROUTING -p icmp @th,0,8 8 -g KUBE-POSTROUTING
-A KUBE-POSTROUTING -j LOG …
-A KUBE-POSTROUTING -j NFLOG …
`
	if got := rulesText(n.only(xtables.NFT, decision.IPv4)); got != want {
		t.Errorf("read\n%swant\n%s", got, want)
	}
}
