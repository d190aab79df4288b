package trace

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftrules"
)

// TestHandles: rules of JSON have handles, and those of text lines.
func TestHandles(t *testing.T) {
	for name, c := range map[string]struct {
		ruleset string
		line    int
		handle  uint64
	}{
		"text": {"table inet f { # handle 1\n\tchain in { # handle 2\n\t\ttype filter hook input priority filter; policy accept;\n\t\ttcp dport 22 drop # handle 7\n\t}\n}\n", 4, 0},
		"JSON": {`{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"table": {"family": "inet", "name": "f", "handle": 1}},
{"chain": {"family": "inet", "table": "f", "name": "in", "handle": 2, "type": "filter", "hook": "input", "prio": 0, "policy": "accept"}},
{"rule": {"family": "inet", "table": "f", "chain": "in", "handle": 7, "expr": [{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 22}}, {"drop": null}]}}]}`, 0, 7},
	} {
		rs, err := nftables.Read(name, strings.NewReader(c.ruleset))
		if err != nil {
			t.Fatal(err)
		}
		d, _ := nftrules.Compile(rs, iptables.IPv4)
		host := new(netfilter.Host)
		host.AddAddress("eth0", netip.MustParsePrefix("192.0.2.1/24"))
		m, err := netfilter.New([]*iptables.Dump{d}, nil, host, netfilter.Options{})
		if err != nil {
			t.Fatal(err)
		}
		p := iptables.FirstPacket(6, netip.MustParseAddrPort("192.0.2.7:40000"), netip.MustParseAddrPort("192.0.2.1:22"), false)
		p.InInterface = "eth0"
		tr, err := Run(m, &Question{Packet: p})
		if err != nil || len(tr.Ways) != 1 {
			t.Fatal(tr, err)
		}
		if w := tr.Ways[0]; w.Verdict != "dropped" || w.Line != c.line || w.Handle != c.handle {
			t.Errorf("%s: %s by line %d, handle %d", name, w.Verdict, w.Line, w.Handle)
		}
	}
}

// TestHostileRuleset: chains that lead in a circle, by a jump and by a map, are refused as the kernel does; a packet without
// bytes has no headers.
func TestHostileRuleset(t *testing.T) {
	compile := func(chains string) (*netfilter.Machine, error) {
		rs, err := nftables.Read("file", strings.NewReader("table inet f {\n"+chains+"\n}\n"))
		if err != nil {
			t.Fatal(err)
		}
		d, _ := nftrules.Compile(rs, iptables.IPv4)
		host := new(netfilter.Host)
		host.AddAddress("eth0", netip.MustParsePrefix("192.0.2.1/24"))
		return netfilter.New([]*iptables.Dump{d}, nil, host, netfilter.Options{})
	}
	const base = "chain in {\ntype filter hook input priority filter;\n"
	_, err := compile("chain a {\njump b\n}\nchain b {\ntcp dport vmap { 22 : jump a }\n}\n" + base + "jump a\n}\n")
	if err == nil || !strings.Contains(err.Error(), "the chains lead in a circle") {
		t.Errorf("%v, want an error about the circle", err)
	}
	m, err := compile(base + "@th,16,8 5 drop\n@nh,0,8 5 drop\nip ttl < 3 drop\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	p := iptables.FirstPacket(6, netip.MustParseAddrPort("192.0.2.7:40000"), netip.MustParseAddrPort("192.0.2.1:22"), false)
	p.InInterface, p.Length = "eth0", 0
	if tr, err := Run(m, &Question{Packet: p}); err != nil || tr.Ways[0].Verdict != "delivered" {
		t.Errorf("%+v, %v", tr, err)
	}
}

// TestRejectWithoutCode: nft lists a condition on the source and the type of the frame as raw bytes, and a reject behind it without
// its code.
func TestRejectWithoutCode(t *testing.T) {
	const rules = `table inet t {
	chain c {
		type filter hook prerouting priority filter; policy accept;
		@ll,48,64 0x200000001010800 meta iiftype ether reject
		@ll,96,16 0x800 ether saddr 02:00:00:00:01:03 reject
		ether saddr 02:00:00:00:01:04 reject
	}
}
`
	rs, err := nftables.Read("rules", strings.NewReader(rules))
	if err != nil {
		t.Fatal(err)
	}
	d, _ := nftrules.Compile(rs, iptables.IPv4)
	host := new(netfilter.Host)
	host.AddAddress("eth0", netip.MustParsePrefix("192.0.2.1/24"))
	m, err := netfilter.New([]*iptables.Dump{d}, nil, host, netfilter.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for last, want := range map[byte]string{1: string(iptables.UnknownUnreachable), 2: "", 3: string(iptables.UnknownUnreachable), 4: "icmp-port-unreachable"} {
		p := iptables.FirstPacket(6, netip.MustParseAddrPort("192.0.2.7:40000"), netip.MustParseAddrPort("192.0.2.1:22"), false)
		p.InInterface, p.MAC, p.Supposed = "eth0", &iptables.MACAddress{2, 0, 0, 0, 1, last}, 0
		got, err := Run(m, &Question{Packet: p})
		if err != nil {
			t.Fatal(err)
		}
		if with := got.Ways[0].With; with != want {
			t.Errorf("a frame of 02:00:00:00:01:%02x: %s with %q, want %q: %s", last, got.Ways[0].Verdict, with, want, got.Ways[0].Why)
		}
	}
}
