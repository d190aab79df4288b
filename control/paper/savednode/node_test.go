package savednode

import (
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// saved writes a bundle.
func saved(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if _, ok := files["bundle.json"]; !ok {
		must(t, os.WriteFile(filepath.Join(dir, "bundle.json"), []byte(`{"version": 1, "node": "host-a"}`), 0o600))
	}
	for name, text := range files {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

func opened(t *testing.T, files map[string]string) *Node {
	t.Helper()
	n, err := Open(saved(t, files))
	must(t, err)
	return n
}

// TestWorker: the bundle of the documentation.
func TestWorker(t *testing.T) {
	n, err := Open("testdata/worker1")
	must(t, err)
	if n.Name != "worker1" || len(n.Missing()) != 3 {
		t.Errorf("%s, missing %q", n.Name, n.Missing())
	}
	rules := n.IPTables(iptables.FamilyUnknown)
	if len(rules) != 1 || rules[0].File != "testdata/worker1/iptables-nft.rules" || rules[0].Backend != iptables.BackendNFT || rules[0].Family != iptables.IPv4 {
		t.Errorf("%+v", rules)
	}
	h, notes := n.Host(iptables.IPv4)
	if !h.Complete() || h.NoForwarding || !h.RouteLocalnet || !h.LocalnetKnown || len(notes) != 0 || !h.Has(netip.MustParseAddr("172.20.0.2")) {
		t.Errorf("%+v, notes %q", h, notes)
	}
}

// TestName: kube-proxy's configuration has the node's name where it is another one than the host's.
func TestName(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"host-a": {},
		"node-1": {"kube-proxy.args": "/usr/bin/kube-proxy\n--hostname-override=node-1\n--v=2\n"},
		"node-2": {"kube-proxy.args": "kube-proxy\n--hostname-override\nnode-2\n"},
		"node-3": {"kube-proxy.conf": "mode: iptables\nhostnameOverride: \"node-3\"\n"},
	} {
		if got := opened(t, files).Name; got != name {
			t.Errorf("%s, want %s", got, name)
		}
	}
}

const plainAddr = `1: lo: <LOOPBACK,UP> mtu 65536
    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
    inet 127.0.0.1/8 scope host lo
2: eth0@if9: <UP> mtu 1400 qdisc noqueue
    link/ether 02:00:00:00:00:01 brd ff:ff:ff:ff:ff:ff
    inet 172.20.0.2/16 brd 172.20.255.255 scope global eth0
       valid_lft forever preferred_lft forever
    inet 172.20.0.9/16 scope global secondary eth0
    inet6 fe80::1/64 scope link
3: tun0: <POINTOPOINT,UP> mtu 1400
    link/none
    inet 10.9.0.1 peer 10.9.0.2/32 scope global tun0
`

const jsonAddr = `[{"ifname":"lo","link_type":"loopback","address":"00:00:00:00:00:00","addr_info":[{"local":"127.0.0.1","prefixlen":8,"scope":"host"}]},
{"ifname":"eth0","link_type":"ether","address":"02:00:00:00:00:01","addr_info":[{"local":"172.20.0.2","prefixlen":16,"scope":"global"},
{"local":"172.20.0.9","prefixlen":16,"scope":"global","secondary":true},{"local":"fe80::1","prefixlen":64,"scope":"link"}]},
{"ifname":"tun0","link_type":"none","addr_info":[{"local":"10.9.0.1","address":"10.9.0.2","prefixlen":32,"scope":"global"}]}]`

const plainRoutes = `default via 172.20.0.1 dev eth0 metric 100
10.244.2.0/24 via 172.20.0.3 dev eth0 src 172.20.0.2
10.244.3.0/24
	nexthop via 172.20.0.4 dev eth0 weight 1
	nexthop via 172.20.0.5 dev eth0 weight 1
blackhole 10.245.0.0/16
local 192.0.2.0/24 dev lo table local scope host
local 172.20.0.2 dev eth0 table local scope host
local default dev lo table 100 scope host
10.0.0.0/8 dev eth0 table 7
throw 10.1.0.0/16 table 7
`

const jsonRoutes = `[{"dst":"default","gateway":"172.20.0.1","dev":"eth0","metric":100},{"dst":"10.244.2.0/24","gateway":"172.20.0.3","dev":"eth0","prefsrc":"172.20.0.2"},
{"dst":"10.244.3.0/24","nexthops":[{"gateway":"172.20.0.4","dev":"eth0"},{"gateway":"172.20.0.5","dev":"eth0"}]},{"type":"blackhole","dst":"10.245.0.0/16"},
{"type":"local","dst":"192.0.2.0/24","dev":"lo","table":"local"},{"type":"local","dst":"172.20.0.2","dev":"eth0","table":"local"},
{"type":"local","dst":"default","dev":"lo","table":"100"},{"dst":"10.0.0.0/8","dev":"eth0","table":"7"},{"type":"throw","dst":"10.1.0.0/16","table":"7"}]`

// TestHost: what ip prints with -j and without is the same host: its tables, local networks of the table local, and
// routing rules and their tables. Rules that are not followed are named.
func TestHost(t *testing.T) {
	sysctls := "net/ipv4/ip_forward = 0\nnet/ipv4/conf/all/route_localnet = 0\nnet/ipv4/conf/all/rp_filter = 1\nnet/ipv4/conf/eth0/rp_filter = 0\nnet/ipv4/conf/eth0/route_localnet = 1\n" +
		"net/ipv4/conf/default/forwarding = 1\nnet/ipv4/conf/cni0/forwarding = 1\nnet/ipv4/conf/eth0/forwarding = 0\n"
	plain := opened(t, map[string]string{
		"addr.txt": plainAddr, "route4.txt": plainRoutes, "route6.txt": "default via fe80::9 dev eth0\n", "sysctls.txt": sysctls,
		"rule4.txt": "0:\tfrom all lookup local\n9:\tfrom all fwmark 0x200/0xf00 lookup 100\n10:\tnot from 10.0.0.0/8 to 10.0.0.1 iif nonsuch [detached] lookup 7 proto static\n" +
			"11:\tfrom all uidrange 0-99 lookup 7\n12:\tfrom all fwmark 0x1 unreachable\n13:\tfrom all lookup main suppress_prefixlength 0\n32766:\tfrom all lookup main\n32767:\tfrom all lookup default\n",
	})
	list := opened(t, map[string]string{
		"addr.json": jsonAddr, "route4.json": jsonRoutes, "route6.json": `[{"dst":"default","gateway":"fe80::9","dev":"eth0"}]`, "sysctls.txt": sysctls,
		"rule4.json": `[{"priority":0,"src":"all","table":"local"},{"priority":9,"src":"all","fwmark":"0x200","fwmask":"0xf00","table":"100"},{"priority":10,"not":null,"src":"10.0.0.0","srclen":8,"dst":"10.0.0.1","iif":"nonsuch","iif_detached":null,"table":"7","protocol":"static"},
{"priority":11,"src":"all","uid_start":0,"uid_end":99,"table":"7"},{"priority":12,"src":"all","fwmark":"0x1","action":"unreachable"},{"priority":13,"src":"all","table":"main","suppress_prefixlen":0},
{"priority":32766,"src":"all","table":"main"},{"priority":32767,"src":"all","table":"default"}]`,
	})
	got, notes := plain.Host(iptables.IPv4)
	want, wantNotes := list.Host(iptables.IPv4)
	compare := []cmp.Option{cmp.AllowUnexported(netfilter.Host{}), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})}
	if diff := cmp.Diff(want, got, compare...); diff != "" {
		t.Errorf("-JSON +plain:\n%s", diff)
	}
	replace := func(notes []string, path, by string) (list []string) {
		for _, n := range notes {
			list = append(list, strings.NewReplacer(path, by, ".json", "", ".txt", "").Replace(n))
		}
		return list
	}
	if !slices.Equal(replace(notes, plain.Path, "P"), replace(wantNotes, list.Path, "P")) {
		t.Errorf("notes\n%q\n%q", notes, wantNotes)
	}
	joined := strings.Join(wantNotes, "\n")
	for _, text := range []string{"see priority 11 in", "route_localnet is 1 on eth0 only"} {
		if !strings.Contains(joined, text) {
			t.Errorf("no note %q in\n%s", text, joined)
		}
	}
	if !maps.Equal(want.ReverseFilter, map[string]int{"eth0": 1}) {
		t.Errorf("rp_filter %v", want.ReverseFilter)
	}
	if !want.NoForwarding || !slices.Equal(want.ForwardingDiffers, []string{"cni0"}) || want.RouteLocalnet || !want.LocalnetKnown || !want.Complete() {
		t.Errorf("%+v", want)
	}
	if diff := cmp.Diff([]netfilter.RoutingRule{
		{Table: "local"}, {Mark: iptables.MaskedValue{Value: 0x200, Mask: 0xf00}, Table: "100"},
		{Not: true, From: netip.MustParsePrefix("10.0.0.0/8"), To: netip.MustParsePrefix("10.0.0.1/32"), In: "nonsuch", Table: "7"},
		{Mark: iptables.MaskedValue{Value: 1, Mask: 0xffffffff}, Type: netfilter.Unreachable, Priority: 12}, {Table: "main", MinBits: 1}, {Table: "main"}, {Table: "default"},
	}, want.Rules, compare...); diff != "" {
		t.Errorf("rules, -want +got:\n%s", diff)
	}
	if seven := want.Tables["7"]; len(want.Tables["100"]) != 1 || len(seven) != 2 || seven[1].Type != netfilter.NoRoute || !want.SourceMarks {
		t.Errorf("tables %+v", want.Tables)
	}
	var routes []string
	for _, r := range want.Routes {
		routes = append(routes, r.Destination.String())
	}
	if want := []string{"10.9.0.2/32", "0.0.0.0/0", "10.244.2.0/24", "10.244.3.0/24", "10.245.0.0/16", "192.0.2.0/24", "::/0"}; !slices.Equal(routes, want) {
		t.Errorf("routes %q, want %q", routes, want)
	}
}

// TestTables: a file of iptables without tables is none.
func TestTables(t *testing.T) {
	n := opened(t, map[string]string{
		"nftables.rules":        "table inet firewalld { # handle 4\n\tchain x {\n\t}\n}\n",
		"iptables-nft.rules":    "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n",
		"iptables-legacy.rules": "",
		"ipvsadm-save.txt":      "-A -t 10.96.0.1:443 -s rr\n",
	})
	if got := n.IPTables(iptables.IPv4); len(got) != 1 || len(n.IPTables(iptables.IPv6)) != 0 {
		t.Errorf("%+v", got)
	}
	if _, ok := n.NFTables(); !ok {
		t.Error("no ruleset of nftables")
	}
	if s, err := n.IPVS(); err != nil || s == nil {
		t.Errorf("virtual servers %v, %v", s, err)
	}
}

// TestDamaged: files that cannot be read are named, and the others are read.
func TestDamaged(t *testing.T) {
	for name, text := range map[string]string{"addr.json": "{", "route4.json": `[{"dst": "x"}]`, "route6.json": "7", "rule4.json": `[{"priority":1`, "link.json": "{", "addr.txt": "2: eth0: <UP>\n    inet nowhere/8\n"} {
		f := iptables.IPv4
		if strings.Contains(name, "6") {
			f = iptables.IPv6
		}
		h, notes := opened(t, map[string]string{name: text, "sysctls.txt": "net/ipv4/ip_forward = 0\nnet/ipv6/conf/all/forwarding = 0\n"}).Host(f)
		if len(notes) != 1 || !strings.Contains(notes[0], name+": ") || h.Complete() || !h.NoForwarding {
			t.Errorf("%s: %q", name, notes)
		}
	}
	if _, err := opened(t, map[string]string{"ipset-save.txt": "make me a set\n"}).Sets(); err == nil || !strings.Contains(err.Error(), "ipset-save.txt: ") {
		t.Error(err)
	}
}

// TestOpenAll: the bundles of a directory, each of another node.
func TestOpenAll(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b", "a"} {
		must(t, os.Rename(saved(t, map[string]string{"bundle.json": `{"version": 1, "node": "node-` + name + `"}`}), filepath.Join(dir, "of-"+name)))
	}
	must(t, os.WriteFile(filepath.Join(dir, "notes.md"), nil, 0o600))
	nodes, err := OpenAll(dir)
	must(t, err)
	if len(nodes) != 2 || nodes[0].Name != "node-a" || nodes[1].Name != "node-b" {
		t.Errorf("%+v", nodes)
	}
	must(t, os.WriteFile(filepath.Join(dir, "of-b", "bundle.json"), []byte(`{"version": 1, "node": "node-a"}`), 0o600))
	if _, err := OpenAll(dir); err == nil || !strings.Contains(err.Error(), "are both of node node-a") {
		t.Error(err)
	}
	if _, err := OpenAll(t.TempDir()); err == nil || !strings.Contains(err.Error(), "no bundle") {
		t.Error(err)
	}
}

// FuzzPlain: no output of ip makes reading fail in another way than with an error.
func FuzzPlain(f *testing.F) {
	f.Add(plainAddr, plainRoutes, "100: from all fwmark 0x1/0x1 lookup 100\n")
	f.Add("x", "nexthop via", "1: from")
	f.Fuzz(func(t *testing.T, addr, route, rule string) {
		h := new(netfilter.Host)
		for _, text := range [][]byte{addressesOf([]byte(addr)), routesOf([]byte(route)), rulesOf([]byte(rule))} {
			if text == nil {
				t.Fatal("no JSON")
			}
		}
		_ = h.Read(strings.NewReader(string(addressesOf([]byte(addr)))))
	})
}

// TestEntries: connection entries of both families; none is not the same as not collected.
func TestEntries(t *testing.T) {
	const entry = "ipv4     2 tcp      6 300 ESTABLISHED src=10.244.1.9 dst=10.96.0.20 sport=40000 dport=80 src=10.244.2.2 dst=10.244.1.9 sport=8080 dport=40000 [ASSURED] mark=0 use=1\n"
	for _, c := range []struct {
		files     map[string]string
		entries   int
		collected bool
	}{
		{nil, 0, false}, {map[string]string{"conntrack4.txt": ""}, 0, true}, {map[string]string{"conntrack4.txt": entry, "conntrack6.txt": ""}, 1, true},
	} {
		entries, collected, err := opened(t, c.files).Entries()
		must(t, err)
		if len(entries) != c.entries || collected != c.collected {
			t.Errorf("%v: %d entries, collected %t", c.files, len(entries), collected)
		}
	}
	if _, _, err := opened(t, map[string]string{"conntrack4.txt": "kind: Service\n"}).Entries(); err == nil || !strings.Contains(err.Error(), "conntrack4.txt: line 1") {
		t.Errorf("an error without the file: %v", err)
	}
}

// TestBridges: what a bridge forwards passes the rules if its own setting or the sysctl says so, and the module is loaded. Its ports may come
// before it, and data of other kinds may have other types.
func TestBridges(t *testing.T) {
	const links = `[{"ifname":"eth0"},{"ifname":"veth1","master":"a","linkinfo":{"info_kind":"veth","info_slave_kind":"bridge","info_slave_data":{"hairpin":true}}},{"ifname":"a","flags":["UP","PROMISC"],"linkinfo":{"info_kind":"bridge","info_data":{"nf_call_iptables":0,"nf_call_ip6tables":1}}},
{"ifname":"b","linkinfo":{"info_kind":"bridge","info_data":{"nf_call_iptables":1}}},
{"ifname":"veth2","master":"a","linkinfo":{"info_slave_kind":"bridge","info_slave_data":{"hairpin":false}}},{"ifname":"veth3","master":"bond0","linkinfo":{"info_slave_kind":"bond","info_slave_data":{"hairpin":1}}}]`
	for sysctl, want := range map[string][2]bool{"": {false, false}, "0": {false, true}, "1": {true, true}} {
		sysctls := "net/ipv4/ip_forward = 1\n"
		if sysctl != "" {
			sysctls += "net/bridge/bridge-nf-call-iptables = " + sysctl + "\nnet/bridge/bridge-nf-call-ip6tables = 0\n"
		}
		h, _ := opened(t, map[string]string{"link.json": links, "sysctls.txt": sysctls}).Host(iptables.IPv4)
		if want := map[string]netfilter.Bridge{"a": {PassesRules: want[0], Ports: 2, Hairpins: 1, Promiscuous: true}, "b": {PassesRules: want[1]}}; !maps.Equal(h.Bridges, want) {
			t.Errorf("sysctl %q: %+v, want %+v", sysctl, h.Bridges, want)
		}
		if h, _ = opened(t, map[string]string{"link.json": links, "sysctls.txt": sysctls}).Host(iptables.IPv6); h.Bridges["a"].PassesRules != (sysctl != "") {
			t.Errorf("IPv6, sysctl %q: %v", sysctl, h.Bridges)
		}
	}
	if h, _ := opened(t, map[string]string{"link.json": links}).Host(iptables.IPv4); h.Bridges != nil {
		t.Errorf("without sysctls: %v", h.Bridges)
	}
}
