package audit_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
)

// listing is what nft lists of a small cluster.
func listing(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("testdata/kube-proxy-1.36.nft")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestNFTablesProblems: one damage after the other.
func TestNFTablesProblems(t *testing.T) {
	good := listing(t)
	clean := audit.ReadNFTables(readRuleset(t, good))[0]
	if len(clean.Services) != 8 || len(clean.Problems)+len(clean.Gaps) > 0 {
		t.Fatalf("%d services, problems %q, gaps %q", len(clean.Services), clean.Problems, clean.Gaps)
	}
	const (
		web    = "SUSTUHLJ-default/web/tcp/http"
		bank   = "ER2S2ZJC-default/bank/tcp/"
		shop   = "EMNFMILR-default/shop/tcp/"
		sticky = "EDE2N7RF-default/sticky/tcp/"
		first  = "IBJ4YARU-default/sticky/tcp/__10.244.1.2/8080"
		second = "H3W2JPS2-default/sticky/tcp/__10.244.2.2/8080"
	)
	for _, c := range []struct{ name, from, to, want string }{
		{
			"a number without endpoint", "mod 2 map { 0 : 10.244.1.2 . 8080, 1 : 10.244.2.2 . 8080 }", "mod 3 map { 0 : 10.244.1.2 . 8080, 1 : 10.244.2.2 . 8080 }",
			"line 212: 33.33% of the flows of default/web:http get no endpoint: the map of service-" + web + " has no element for some of the numbers",
		},
		{
			"unequal shares", "mod 2 map { 0 : 10.244.1.2 . 8080, 1 : 10.244.2.2 . 8080 }", "mod 3 map { 0 : 10.244.1.2 . 8080, 1 : 10.244.2.2 . 8080, 2 : 10.244.2.2 . 8080 }",
			"line 212: service-" + web + " gives the endpoints of default/web:http unequal shares: 33.33%, 66.67%",
		},
		{
			"a chain without rules", "\t\tmeta l4proto tcp dnat ip to numgen random mod 2 map { 0 : 10.244.1.2 . 8080, 1 : 10.244.2.2 . 8080 }\n", "",
			"line 211: service-" + web + " of default/web:http selects no endpoint: its packets pass untranslated",
		},
		{
			"an element that leads nowhere", "10.96.0.20 . tcp . 80 : goto service-" + web, "10.96.0.20 . tcp . 80 : drop",
			"line 47: service-ips does not lead 10.96.0.20 port 80 (TCP) to the chain of a service",
		},
		{
			"a stale chain", "tcp . 30080 : goto external-" + web, "tcp . 30080 : goto external-" + shop,
			"line 215: no rule and no element of a map leads to chain external-" + web,
		},
		{
			"another protocol", "10.96.0.20 . tcp . 80 : goto service-" + web, "10.96.0.20 . udp . 80 : goto service-" + web,
			"line 47: packets of UDP go to service-" + web + ", which is for TCP",
		},
		{
			"a foreign rule", "\tchain service-" + web + " {\n", "\tchain service-" + web + " {\n\t\tip saddr 10.0.0.1 drop\n",
			"line 212: service-" + web + " has a rule that kube-proxy does not write: ip saddr 10.0.0.1 drop",
		},
		{
			"no masquerade from outside", "\t\tmeta mark set meta mark | 0x00004000 comment \"masquerade\"\n\t\tgoto service-" + bank + "\n", "\t\tgoto service-" + bank + "\n",
			"line 166: external-" + bank + " of default/bank masquerades nothing: replies from endpoints on other nodes do not come back here",
		},
		{
			"open to all", "\t\tip saddr != 192.0.2.0/28 drop\n", "",
			"line 171: firewall-" + bank + " of default/bank drops nothing: the load balancer IPs are open to all sources",
		},
		{
			"the clients of another", "ip saddr @affinity-" + first + " goto endpoint-" + first, "ip saddr @affinity-" + second + " goto endpoint-" + first,
			"line 205: the clients in affinity-" + second + " go to endpoint-" + first + ", which is another endpoint",
		},
		{
			"no affinity", "\t\tupdate @affinity-" + first + " { ip saddr }\n", "",
			"line 189: endpoint-" + first + " does not record its clients: default/sticky has no session affinity to 10.244.1.2:8080",
		},
		{
			"another address than the name's", "meta l4proto tcp dnat to 10.244.1.2:8080", "meta l4proto tcp dnat to 10.244.1.3:8080",
			"line 189: endpoint-" + first + " translates to 10.244.1.3:8080",
		},
		{
			"no translation", "\t\tmeta l4proto tcp dnat to 10.244.1.2:8080\n", "",
			"lines 189 and 207: endpoint-" + first + " of default/sticky has no DNAT to one address and port",
		},
		{
			"a cluster IP that is not listed", "10.96.0.20, 10.96.0.30,", "10.96.0.30,",
			"line 10: cluster-ips lacks 10.96.0.20, the cluster IP of default/web:http",
		},
		{
			"a cluster IP of nobody", "10.96.0.20, 10.96.0.30,", "10.96.0.20, 10.96.0.30, 10.96.0.31,",
			"line 13: cluster-ips has 10.96.0.31, which is not the cluster IP of any service: other programs' packets to it are rejected",
		},
		{
			"a hairpin of nobody", "10.244.1.2 . 10.244.1.2 . tcp . 8080,", "10.244.1.2 . 10.244.1.2 . tcp . 8080, 10.244.1.9 . 10.244.1.9 . tcp . 8080,",
			"line 6: hairpin-connections has 10.244.1.9:8080 (TCP), which is not an endpoint of any service",
		},
		{
			"no hook", "\t\ttype nat hook output priority -100; policy accept;\n\t\tjump services\n", "\t\ttype nat hook output priority -100; policy accept;\n",
			"line 119: nat-output does not lead to services: the node's own packets reach no service",
		},
		{
			"no masquerading", " meta mark set meta mark ^ 0x00004000 masquerade fully-random\n", " meta mark set meta mark ^ 0x00004000\n",
			"line 147: masquerading has no rule that masquerades marked packets: flows that should be masqueraded get no replies",
		},
		{
			"another mark", "\t\tmeta mark set meta mark | 0x00004000 comment \"masquerade\"\n\t\tgoto service-" + bank, "\t\tmeta mark set meta mark | 0x00008000 comment \"masquerade\"\n\t\tgoto service-" + bank,
			"line 167: masquerading matches the mark 0x4000, but external-" + bank + " sets 0x8000",
		},
		{
			"pods detected in two ways", "\t\tip saddr 10.244.0.0/16 goto service-" + shop, "\t\tip saddr 10.245.0.0/16 goto service-" + shop,
			"line 184: pods are detected by saddr 10.245.0.0/16, but in most rules by saddr 10.244.0.0/16",
		},
		{
			"refused with endpoints", "elements = { 10.96.0.80 . tcp . 80 comment \"default/nobody-home\" : goto reject-chain }", "elements = { 10.96.0.80 . tcp . 80 comment \"default/nobody-home\" : goto reject-chain, 10.96.0.70 . tcp . 80 comment \"default/zoned\" : goto reject-chain }",
			"line 229: service-YFDG3N4L-default/zoned/tcp/ of default/zoned has endpoints, but no-endpoint-services says that it has none",
		},
		{
			"a wrong name", "service-" + sticky, "service-AAAAAAAA-default/sticky/tcp/",
			"line 204: chain service-AAAAAAAA-default/sticky/tcp/ should be service-" + sticky + ", the hash of default/sticky/tcp",
		},
		{
			"neither rejected nor dropped", "comment \"default/nobody-home\" : goto reject-chain", "comment \"default/nobody-home\" : accept",
			"line 28: no-endpoint-services neither rejects nor drops packets to 10.96.0.80 port 80 (TCP)",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(good, c.from) {
				t.Fatal("nothing to replace")
			}
			replaced := strings.Replace(good, c.from, c.to, 1)
			if c.name == "a wrong name" {
				replaced = strings.ReplaceAll(good, c.from, c.to)
			}
			var have []string
			for _, p := range audit.ReadNFTables(readRuleset(t, replaced))[0].Problems {
				have = append(have, p.String())
			}
			if !slices.Contains(have, c.want) {
				t.Errorf("problems\n%s\nwant\n%s", strings.Join(have, "\n"), c.want)
			}
		})
	}
}

// TestNFTablesGaps: what a part of a listing does not show.
func TestNFTablesGaps(t *testing.T) {
	good := listing(t)
	without := func(block string) string {
		at := strings.Index(good, block)
		end := strings.Index(good[at:], "\n\t}\n") + at + len("\n\t}\n")
		return good[:at] + good[end:]
	}
	terse := good
	for {
		at := strings.Index(terse, "\t\telements = {")
		if at < 0 {
			break
		}
		terse = terse[:at] + terse[at+strings.Index(terse[at:], "}\n")+2:]
	}
	for _, c := range []struct{ name, text, want string }{
		{"a chain", without("\tchain external-ER2S2ZJC-default/bank/tcp/ {"), "line 52: chain external-ER2S2ZJC-default/bank/tcp/ is not in the file"},
		{"a map", without("\tmap service-nodeports {"), "table ip kube-proxy has no map service-nodeports in the file"},
		{"elements", terse, "line 1: no map of table ip kube-proxy has elements: the addresses of services are not shown (nft without -t prints them)"},
		{"nfqproxy", "table ip nfqproxy {\n}\n", "line 1: table ip nfqproxy is nfqproxy's: its daemon selects the endpoints, and rules do not show the Services"},
		{"all", "table inet filter {\n}\n", "the ruleset has no table ip kube-proxy or ip6 kube-proxy: kube-proxy did not write rules in nftables mode on this node, or the file does not have them"},
	} {
		n := audit.ReadNFTables(readRuleset(t, c.text))[0]
		var have []string
		for _, g := range n.Gaps {
			have = append(have, g.String())
		}
		if !slices.Contains(have, c.want) {
			t.Errorf("%s: gaps\n%s\nwant\n%s", c.name, strings.Join(have, "\n"), c.want)
		}
		if len(n.Problems) > 0 {
			t.Errorf("%s: problems %q", c.name, n.Problems)
		}
	}
}
