package noderules

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// network is that of a node: pods on a bridge, others behind eth0.
func network() *netfilter.Host {
	h := new(netfilter.Host)
	h.AddAddress("lo", netip.MustParsePrefix("127.0.0.1/8"))
	h.AddAddress("eth0", netip.MustParsePrefix("172.20.0.2/16"))
	h.AddAddress("eth0", netip.MustParsePrefix("fd00:172::2/64"))
	h.AddAddress("cni0", netip.MustParsePrefix("10.244.1.1/24"))
	h.AddAddress("cni0", netip.MustParsePrefix("fd00:10::1/64"))
	h.Routes = []netfilter.Route{
		{Destination: netip.MustParsePrefix("0.0.0.0/0"), Interface: "eth0"}, {Destination: netip.MustParsePrefix("::/0"), Interface: "eth0"},
	}
	return h
}

func dump(table, text string) string {
	return "*" + table + "\n" + strings.TrimSpace(text) + "\nCOMMIT\n"
}

// Flows: of a pod, of a client that is masqueraded, of the node itself, to the node, and of IPv6.
var (
	pod    = Flow{Protocol: decision.TCP, Source: at("10.244.1.9:4000"), Destination: at("10.96.0.20:80"), Endpoint: at("10.244.2.2:8080"), Seen: at("10.244.1.9:4000")}
	client = Flow{Protocol: decision.TCP, Source: at("192.0.2.1:4000"), Destination: at("172.20.0.2:30080"), Endpoint: at("10.244.2.2:8080"), Seen: at("172.20.0.2:4000"), Mark: 0x4000}
	own    = Flow{Protocol: decision.UDP, Source: at("172.20.0.2:4000"), Destination: at("10.96.0.20:53"), Endpoint: at("10.244.1.5:53"), Seen: at("172.20.0.2:4000"), Local: true}
	host   = Flow{Protocol: decision.TCP, Source: at("10.244.1.9:4000"), Destination: at("10.96.0.1:443"), Endpoint: at("172.20.0.2:6443"), Seen: at("10.244.1.9:4000")}
	six    = Flow{Protocol: decision.SCTP, Source: at("[fd00:10::9]:4000"), Destination: at("[fd00:96::20]:80"), Endpoint: at("[fd00:20::2]:8080"), Seen: at("[fd00:10::9]:4000")}
	onward = Flow{Protocol: decision.TCP, Source: at("10.244.7.7:4000"), Destination: at("10.244.1.5:8080"), Endpoint: at("10.244.1.5:8080"), Seen: at("10.244.7.7:4000")}
)

func at(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

// TestFind: the rule or policy that drops a flow, with the kernel's count.
func TestFind(t *testing.T) {
	const none = ":INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n"
	filter := func(rules string) string { return dump("filter", none+rules) }
	for name, tt := range map[string]struct {
		rules string
		flow  Flow
		want  string // empty: nothing drops it
	}{
		"no rules":               {filter(""), pod, ""},
		"by the endpoint":        {filter("[7:420] -A FORWARD -d 10.244.2.2/32 -p tcp -m tcp --dport 8080 -j DROP"), pod, "rule -A FORWARD -d 10.244.2.2/32 -p tcp -m tcp --dport 8080 -j DROP filter/FORWARD 7"},
		"by the cluster IP":      {filter("[7:420] -A FORWARD -d 10.96.0.20/32 -j DROP"), pod, ""},
		"in another chain":       {filter("[7:420] -A INPUT -d 10.244.2.2/32 -j DROP"), pod, ""},
		"by its original port":   {filter("[1:60] -A FORWARD -p tcp -m conntrack --ctorigdst 10.96.0.20 -j REJECT --reject-with icmp-port-unreachable"), pod, "rule -A FORWARD -p tcp -m conntrack --ctorigdst 10.96.0.20 -j REJECT --reject-with icmp-port-unreachable filter/FORWARD 1 rejected"},
		"what is translated":     {filter("[1:60] -A FORWARD -m conntrack --ctstate DNAT -j DROP"), pod, "rule -A FORWARD -m conntrack --ctstate DNAT -j DROP filter/FORWARD 1"},
		"what is new":            {filter("[1:60] -A FORWARD -i cni0 -o eth0 -m conntrack --ctstate NEW -j DROP"), pod, "rule -A FORWARD -i cni0 -o eth0 -m conntrack --ctstate NEW -j DROP filter/FORWARD 1"},
		"invalid":                {filter("[1:60] -A FORWARD -m conntrack --ctstate INVALID -j DROP"), pod, ""},
		"in a chain of its own":  {filter(":MINE - [0:0]\n[9:540] -A FORWARD -j MINE\n[3:180] -A MINE -s 10.244.1.9/32 -j DROP"), pod, "rule -A MINE -s 10.244.1.9/32 -j DROP filter/MINE 3"},
		"never met":              {filter("[0:0] -A FORWARD -d 10.244.2.2/32 -j DROP"), pod, "rule -A FORWARD -d 10.244.2.2/32 -j DROP filter/FORWARD 0"},
		"without counters":       {filter("-A FORWARD -d 10.244.2.2/32 -j DROP"), pod, "rule -A FORWARD -d 10.244.2.2/32 -j DROP filter/FORWARD 0"},
		"the policy":             {dump("filter", ":FORWARD DROP [12:720]\n[3:180] -A FORWARD -o cni0 -j ACCEPT"), pod, "the policy DROP of chain FORWARD filter/FORWARD 12"},
		"accepted by the mark":   {dump("filter", ":FORWARD DROP [12:720]\n[3:180] -A FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT\n-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"), client, ""},
		"masqueraded":            {dump("mangle", ":POSTROUTING ACCEPT [0:0]\n[2:120] -A POSTROUTING -s 192.0.2.1/32 -d 10.244.2.2/32 -j DROP"), client, "rule -A POSTROUTING -s 192.0.2.1/32 -d 10.244.2.2/32 -j DROP mangle/POSTROUTING 2"},
		"its replies":            {dump("raw", ":PREROUTING ACCEPT [0:0]\n[4:240] -A PREROUTING -s 10.244.2.2/32 -d 172.20.0.2/32 -j DROP"), client, "rule -A PREROUTING -s 10.244.2.2/32 -d 172.20.0.2/32 -j DROP raw/PREROUTING 4 reply"},
		"translated replies":     {filter("[4:240] -A FORWARD -s 10.244.2.2/32 -d 192.0.2.1/32 -m conntrack --ctstate ESTABLISHED -j DROP"), client, "rule -A FORWARD -s 10.244.2.2/32 -d 192.0.2.1/32 -m conntrack --ctstate ESTABLISHED -j DROP filter/FORWARD 4 reply"},
		"of the node itself":     {filter("[1:60] -A OUTPUT -d 10.244.1.5/32 -p udp -j DROP"), own, "rule -A OUTPUT -d 10.244.1.5/32 -p udp -j DROP filter/OUTPUT 1"},
		"to the node itself":     {filter("[1:60] -A INPUT -i cni0 -p tcp -m tcp --dport 6443 -j DROP"), host, "rule -A INPUT -i cni0 -p tcp -m tcp --dport 6443 -j DROP filter/INPUT 1"},
		"replies of the node":    {filter("[1:60] -A OUTPUT -p tcp -m tcp --sport 6443 -j DROP"), host, "rule -A OUTPUT -p tcp -m tcp --sport 6443 -j DROP filter/OUTPUT 1 reply"},
		"at the endpoint's node": {filter("[1:60] -A FORWARD -i eth0 -o cni0 -s 10.244.7.7/32 -j DROP"), onward, "rule -A FORWARD -i eth0 -o cni0 -s 10.244.7.7/32 -j DROP filter/FORWARD 1"},
		"other family":           {filter("[1:60] -A FORWARD -j DROP"), six, ""},
		"now and then":           {filter("[1:60] -A FORWARD -m statistic --mode random --probability 0.50000000000 -j DROP"), pod, ""},
		"but now and then":       {filter("[1:60] -A FORWARD -m statistic --mode random --probability 0.50000000000 -j ACCEPT\n[1:60] -A FORWARD -j DROP"), pod, ""},
		"by a connection's mark": {dump("mangle", ":PREROUTING ACCEPT [0:0]\n-A PREROUTING -i cni0 -j CONNMARK --set-xmark 0x1/0xffffffff") +
			filter("[5:300] -A FORWARD -i eth0 -m connmark --mark 0x1 -j DROP"), pod, "rule -A FORWARD -i eth0 -m connmark --mark 0x1 -j DROP filter/FORWARD 5 reply"},
		"of a set": {filter("[1:60] -A FORWARD -m set --match-set bad dst -j DROP"), pod, ""},
		"nat's rules do not see it": {dump("nat", ":PREROUTING ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n-A PREROUTING -p tcp -j DNAT --to-destination 10.9.9.9\n-A POSTROUTING -j MASQUERADE") +
			filter("[1:60] -A FORWARD -s 10.244.1.9/32 -d 10.9.9.9/32 -j DROP"), pod, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := NewHost([]Listing{{"iptables-legacy-save", ""}, {"iptables-nft-save", tt.rules}}, network())
			if err != nil {
				t.Fatal(err)
			}
			check(t, h, &tt.flow, tt.want)
		})
	}
}

func check(t *testing.T, h *Host, f *Flow, want string) {
	t.Helper()
	got := ""
	if d := h.Find(f); d != nil {
		got = fmt.Sprintf("%s %s/%s %d", d, d.Table, d.Chain, d.Packets)
		if d.Rejected {
			got += " rejected"
		}
		if d.Reply {
			got += " reply"
		}
	}
	if got != want {
		t.Errorf("%q\nwant %q", got, want)
	}
}

// TestListings: each program's rules count, by its family; what cannot be read is an error, and leaves the others.
func TestListings(t *testing.T) {
	const drop = ":FORWARD ACCEPT [0:0]\n[1:80] -A FORWARD -j DROP"
	good := Listing{"ip6tables-legacy-save", dump("filter", drop)}
	h, err := NewHost([]Listing{{"iptables-nft-save", "*filter\n-A NOWHERE -j DROP\nCOMMIT\n"}, good}, network())
	if err == nil || !strings.Contains(err.Error(), "iptables-nft-save: ") || !strings.Contains(err.Error(), "NOWHERE") {
		t.Errorf("%v, want an error of iptables-nft-save", err)
	}
	check(t, h, &six, "rule -A FORWARD -j DROP filter/FORWARD 1")
	check(t, h, &pod, "")
	if d := h.Find(&six); d.Program != good.Program {
		t.Errorf("listed by %s, want %s", d.Program, good.Program)
	}
}
