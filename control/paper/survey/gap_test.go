package survey

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/paper/pastedrules"
)

func surveyOf(t *testing.T, text string) *Survey {
	t.Helper()
	input, err := pastedrules.Read(strings.NewReader(text), iptables.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Run(input.Dumps, Known{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestGaps: connections whose chains the text lacks are counted once each, and one line names all of the chains.
func TestGaps(t *testing.T) {
	const text = `*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.20/32 -p tcp -m comment --comment "default/web cluster IP" -m tcp --dport 80 -j KUBE-SVC-LOLE4ISW44XBNF3G
-A KUBE-SERVICES -d 10.96.0.21/32 -p tcp -m comment --comment "default/api cluster IP" -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA
COMMIT
`
	s := surveyOf(t, text)
	if s.Connections == 0 || s.Judged != 0 {
		t.Errorf("%d of %d connections have a known end, want none", s.Judged, s.Connections)
	}
	for _, want := range []string{
		"the end of 2 connections: rules jump to a chain that is not in the file: KUBE-SVC-AAAAAAAAAAAAAAAA, KUBE-SVC-LOLE4ISW44XBNF3G",
		"the end of 2 connections: the file does not show the endpoints: default/api, default/web",
	} {
		if !slices.Contains(s.Skipped, want) {
			t.Errorf("skipped %q, want %q among them", s.Skipped, want)
		}
	}
}

// TestOtherPodNetworks: whether a rule drops pods is not known, if it drops a private network and nothing shows the pods' own.
func TestOtherPodNetworks(t *testing.T) {
	const text = `*raw
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A PREROUTING -s 192.168.0.0/16 -j DROP
-A PREROUTING -s 198.51.100.0/24 -j DROP
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-LOLE4ISW44XBNF3G - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A KUBE-SEP-AAAAAAAAAAAAAAAA -p tcp -m comment --comment "default/web" -m tcp -j DNAT --to-destination 10.0.9.21:8080
-A KUBE-SERVICES -d 10.96.0.20/32 -p tcp -m comment --comment "default/web cluster IP" -m tcp --dport 80 -j KUBE-SVC-LOLE4ISW44XBNF3G
-A KUBE-SVC-LOLE4ISW44XBNF3G -m comment --comment "default/web -> 10.0.9.21:8080" -j KUBE-SEP-AAAAAAAAAAAAAAAA
COMMIT
`
	s := surveyOf(t, text)
	at := slices.IndexFunc(s.Losses, func(l *Loss) bool { return l.Condition != "" })
	if at < 0 || s.Losses[at].Certainty != NotKnown || s.Losses[at].Condition != "where pods have addresses in 192.168.0.0/16" || s.Losses[at].Rule.Line != 4 {
		for _, l := range s.Losses {
			t.Errorf("loss %+v, want one of the rule in line 4, not known", *l)
		}
	}
	if from := s.Sources[0].String(); from != "a pod of this node (10.0.9.99, by eth0: a guess)" {
		t.Errorf("source %s", from)
	}
}

// TestOutsider: the client outside has no address that a rule or a set names, or the host has. What names all clients, or a network of
// destinations, says nothing about it.
func TestOutsider(t *testing.T) {
	for _, tt := range []struct{ rules, set, host, want string }{
		{want: "203.0.113.9"},
		{rules: "-A FORWARD -s 0.0.0.0/0 -j ACCEPT", want: "203.0.113.9"},
		{rules: "-A FORWARD -d 203.0.113.0/24 -j ACCEPT", want: "203.0.113.9"},
		{rules: "-A FORWARD -s 203.0.113.9/32 -j DROP", want: "198.51.100.9"},
		{rules: "-A FORWARD ! -s 203.0.113.0/24 -j DROP", want: "198.51.100.9"},
		{rules: "-A FORWARD -d 203.0.113.9/32 -j DROP", want: "198.51.100.9"},
		{rules: "-A FORWARD -m iprange --src-range 203.0.113.1-203.0.113.20 -j DROP", want: "198.51.100.9"},
		{set: "203.0.113.9/32", want: "198.51.100.9"},
		{set: "203.0.113.8/31", want: "198.51.100.9"}, // as a range
		{host: "203.0.113.9", want: "198.51.100.9"},
		{rules: "-A FORWARD -s 203.0.113.9 -j DROP\n-A FORWARD -s 198.51.100.0/24 -j DROP", host: "192.0.2.9", want: "203.0.113.77"},
		{rules: "-A FORWARD -s 203.0.113.0/24 -j DROP\n-A FORWARD -s 198.51.100.0/24 -j DROP\n-A FORWARD -s 192.0.2.0/24 -j DROP", want: "198.18.0.9"},
		{rules: "-A FORWARD -s 128.0.0.0/1 -j DROP", want: "203.0.113.9"}, // nothing is left
	} {
		input, err := pastedrules.Read(strings.NewReader("*filter\n:FORWARD ACCEPT [0:0]\n"+tt.rules+"\nCOMMIT\n"), iptables.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s := &surveyor{dumps: input.Dumps, survey: &Survey{Nodes: []*audit.Node{{Family: decision.IPv4}}}, host: new(netfilter.Host)}
		if tt.set != "" {
			e := iptables.Element{Network: netip.MustParsePrefix(tt.set)}
			if !e.Network.IsSingleIP() {
				e = iptables.Element{Range: iptables.AddrRange{First: e.Network.Addr(), Last: e.Network.Addr().Next()}}
			}
			s.known.Sets = map[string]*iptables.Set{"banned": {Elements: []iptables.Element{e}}}
		}
		if tt.host != "" {
			s.host.Interfaces = []netfilter.Interface{{Name: "eth0", Addresses: []netfilter.Address{{Prefix: netip.PrefixFrom(netip.MustParseAddr(tt.host), 24)}}}}
		}
		if got := s.outsider(); got.String() != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}
