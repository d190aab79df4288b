package hostrules

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables/xtablestest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// notDecoded are the modules in the tests' rules that depend on what is not known when a flow begins, or
// concern other packets than those that are translated.
var notDecoded = []string{
	"AUDIT", "CLASSIFY", "DNAT", "ECN", "LOG", "NFLOG", "NFQUEUE", "TCPMSS", "connbytes", "connlimit", "cpu", "dscp", "ecn", "hashlimit", "helper", "hl",
	"icmp", "icmp6", "length", "limit", "mac", "physdev", "policy", "quota", "recent", "rt", "sctp", "socket", "string", "tcpmss", "time", "tos", "ttl", "u32",
}

// TestEveryRule loads each rule of the lists of package iptables, be it of whatever table,
// into the table nat, as far as that takes it, and reads it again.
func TestEveryRule(t *testing.T) {
	forEach(t, func(n node, b xtables.Backend, f decision.Family) {
		family := "ipv4"
		if f == decision.IPv6 {
			family = "ipv6"
		}
		text, err := os.ReadFile(fmt.Sprintf("../../../paper/iptables/testdata/every-%s-%s.rules", b, family))
		if err != nil {
			n.Fatal(err)
		}
		d, err := iptables.Parse(strings.NewReader(string(text)), iptables.Options{})
		if err != nil {
			n.Fatal(err)
		}
		loaded, tried := 0, 0
		for _, table := range d.Tables {
			for _, r := range table.Rules {
				tried++
				// The chains of the table that the rule could be meant for, one after the other.
				for _, chain := range []string{"POSTROUTING", "OUTPUT", "PREROUTING", "INPUT"} {
					line := fmt.Sprintf("*nat\n-A %s%s\nCOMMIT\n", chain, strings.TrimPrefix(r.String(), "-A "+r.Chain))
					if _, err := n.NS.Run(line, xtablestest.Tool(b, f, "restore"), "--noflush"); err == nil {
						loaded++
						break
					}
				}
			}
		}
		n.Logf("%d of %d rules loaded", loaded, tried)
		if loaded < tried/2 {
			n.Errorf("only %d of %d rules were loaded", loaded, tried)
		}
		n.asSaved(b, f, notDecoded...)
	})
}

// TestDumps loads the nat tables of real nodes.
func TestDumps(t *testing.T) {
	dumps := xtablestest.EachDump(t, "../../../paper/iptables/testdata/k*.rules", func(t *testing.T, b xtables.Backend, dump string) {
		n := newNode(t)
		n.NeedNAT(b, decision.IPv4)
		n.Exec(dump, xtablestest.Tool(b, decision.IPv4, "restore"))
		n.asSaved(b, decision.IPv4)
	})
	if dumps != 5 {
		t.Errorf("%d dumps, want 5", dumps)
	}
}

// TestGenericEdges: what is in the header of a legacy entry.
func TestGenericEdges(t *testing.T) {
	forEach(t, func(n node, b xtables.Backend, f decision.Family) {
		network := "10.0.0.0/8"
		if f == decision.IPv6 {
			network = "fd00::/8"
		}
		n.Exec(fmt.Sprintf(`*nat
:a - [0:0]
:b - [0:0]
-A PREROUTING -i fifteen-chars-x ! -p tcp -g a
-A POSTROUTING -o fifteen-chars-+ -j a
-A POSTROUTING ! -o e+ -g b
-A POSTROUTING ! -s %[1]s -d %[1]s
-A OUTPUT -p 253 -j RETURN
-A a -g b
-A b -p udp -m udp ! --sport 1:2 -j ACCEPT
COMMIT
`, network), xtablestest.Tool(b, f, "restore"))
		n.asSaved(b, f)
	})
}

// TestBothBackEnds: a host that changed its back end has both, in both families.
func TestBothBackEnds(t *testing.T) {
	n := newNode(t)
	for _, b := range xtablestest.Backends {
		for _, f := range families {
			n.NeedNAT(b, f)
			n.Exec(fmt.Sprintf("*nat\n-A POSTROUTING -o %s%s -j MASQUERADE\nCOMMIT\n", b, f), xtablestest.Tool(b, f, "restore"))
		}
	}
	r := n.read()
	var got []string
	for _, table := range r.Tables {
		got = append(got, fmt.Sprintf("%s %d: %s", table, table.Priority, table.Base.Rules[0]))
	}
	want := []string{
		"iptables (nft), IPv4, table nat 100: -A POSTROUTING -o nftIPv4 -j MASQUERADE",
		"iptables (legacy), IPv4, table nat 100: -A POSTROUTING -o legacyIPv4 -j MASQUERADE",
		"iptables (nft), IPv6, table nat 100: -A POSTROUTING -o nftIPv6 -j MASQUERADE",
		"iptables (legacy), IPv6, table nat 100: -A POSTROUTING -o legacyIPv6 -j MASQUERADE",
	}
	if !slices.Equal(got, want) {
		n.Errorf("read\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, f := range families {
		if !r.OrderUnknown(f) {
			n.Errorf("%s: the order is known", f)
		}
	}
	n.Exec("*nat\nCOMMIT\n", xtablestest.Tool(xtables.Legacy, decision.IPv4, "restore"))
	n.Exec("*nat\nCOMMIT\n", xtablestest.Tool(xtables.NFT, decision.IPv6, "restore"))
	for _, f := range families {
		if r := n.read(); r.OrderUnknown(f) {
			n.Errorf("%s: the order of a table without rules matters", f)
		}
	}
}

// TestNothing: where there are no rules none are read, and nothing is loaded.
func TestNothing(t *testing.T) {
	n := newNode(t)
	if r := n.read(); len(r.Tables) != 0 || r.OrderUnknown(decision.IPv4) {
		n.Errorf("read %v", r.Tables)
	}
	if _, err := os.Stat("/proc/self/net/ip_tables_names"); err == nil {
		netnstest.RequireTool(n, "cat")
		if names := n.Exec("", "cat", "/proc/self/net/ip_tables_names"); names != "" {
			n.Errorf("to read loads the tables %s", names)
		}
	}
}
