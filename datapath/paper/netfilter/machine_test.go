package netfilter

import (
	"net/netip"
	"os"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// load makes a machine of a dump in iptables' testdata.
func load(t testing.TB, name string, h *Host) *Machine {
	t.Helper()
	f, err := os.Open("../iptables/testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := iptables.Parse(f, iptables.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := New([]*iptables.Dump{d}, nil, h, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// worker is the first worker of the kind cluster.
func worker() *Host {
	return &Host{
		Interfaces: []Interface{
			{Name: "lo", Addresses: []Address{{Prefix: netip.MustParsePrefix("127.0.0.1/8"), Narrow: true}}},
			{Name: "eth0", Addresses: []Address{{Prefix: netip.MustParsePrefix("172.20.0.2/16")}}},
			{Name: "veth1", Addresses: []Address{{Prefix: netip.MustParsePrefix("10.244.1.1/32")}}},
		},
		Routes: []Route{
			{Destination: netip.MustParsePrefix("10.244.1.2/32"), Interface: "veth1"},
			{Destination: netip.MustParsePrefix("10.244.0.0/24"), Interface: "eth0", Via: netip.MustParseAddr("172.20.0.4")},
			{Destination: netip.MustParsePrefix("10.244.2.0/24"), Interface: "eth0", Via: netip.MustParseAddr("172.20.0.3")},
			{Destination: netip.MustParsePrefix("0.0.0.0/0"), Interface: "eth0", Via: netip.MustParseAddr("172.20.0.1")},
		},
		RouteLocalnet: true,
	}
}

func packet(protocol uint8, from, to, in string) iptables.Packet {
	p := iptables.Packet{Protocol: protocol, Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort(to), InInterface: in, Local: in == "", TTL: 64, Length: 60}
	if protocol == protoTCP {
		p.Flags = iptables.SYN
	}
	return p
}

// TestPlace: made on the host, by the device of the capture, or by the way to its source.
func TestPlace(t *testing.T) {
	m := parse(t, worker(), "*nat", "COMMIT")
	for _, tt := range []struct {
		source, captured string
		local            bool
		in               string
	}{
		{"172.20.0.2:1", "eth0", true, ""}, {"127.0.0.1:1", "", true, ""},
		{"10.244.1.9:1", "veth1", false, "veth1"}, {"10.244.2.9:1", "any", false, "eth0"}, {"10.244.1.2:1", "", false, "veth1"},
	} {
		p := iptables.Packet{Source: netip.MustParseAddrPort(tt.source), InInterface: tt.captured}
		if m.Place(&p); p.Local != tt.local || p.InInterface != tt.in {
			t.Errorf("%+v: local %v, in by %q", tt, p.Local, p.InInterface)
		}
	}
}

// TestAdd: a packet of an entry that another program has made is translated by the entry, and meets no rule of nat.
func TestAdd(t *testing.T) {
	m := parse(t, worker(), "*nat", ":PREROUTING ACCEPT", ":POSTROUTING ACCEPT", "-A PREROUTING -p tcp", "-A POSTROUTING -p tcp", "-A POSTROUTING -j MASQUERADE", "COMMIT")
	p := packet(protoTCP, "10.244.1.2:4000", "10.96.0.20:80", "veth1")
	at := netip.MustParseAddrPort
	c := iptables.Connection{
		Original: iptables.Tuple{Protocol: protoTCP, Source: p.Source, Destination: p.Destination},
		Reply:    iptables.Tuple{Protocol: protoTCP, Source: at("10.244.2.2:8080"), Destination: at("172.20.0.2:61000")},
		SNAT:     true, DNAT: true,
	}
	s := new(State)
	if !s.Add(c) || s.Add(c) {
		t.Error("an entry is added once")
	}
	r := m.Send(p, s, nil)
	if r.Verdict != Sent || r.Out != "eth0" || r.Packet.Source != at("172.20.0.2:61000") || r.Packet.Destination != at("10.244.2.2:8080") || r.Tracking != TrackingNew || len(r.Path) > 0 {
		t.Errorf("%s: %s by %q, %s, rules %v", r.Packet.String(), r.Verdict, r.Out, r.Tracking, r.Path)
	}
	answer, _ := r.Answer()
	if back := m.Send(answer, s, nil); back.Packet.Source != p.Destination || back.Packet.Destination != p.Source || !back.Reply || len(back.Path) > 0 {
		t.Errorf("reply: %s, rules %v", back.Packet.String(), back.Path)
	}
}

// TestResetWithoutRoute: only a reset that the kernel can send closes the entry of its connection.
func TestResetWithoutRoute(t *testing.T) {
	for _, tt := range []struct {
		localnet bool
		state    tcpState
	}{{false, tcpSynSent}, {true, tcpClosed}} {
		h := worker()
		h.RouteLocalnet = tt.localnet
		m := parse(t, h, "*filter", ":INPUT ACCEPT", "-A INPUT -p tcp -j REJECT --reject-with tcp-reset", "COMMIT")
		// From an address that is not the host's own: the reset would leave by eth0, from 127.0.0.1.
		r := m.Send(packet(protoTCP, "203.0.113.77:500", "127.0.0.1:80", ""), new(State), nil)
		if r.Verdict != Rejected || r.Entry.tcp.state != tt.state {
			t.Errorf("route_localnet %v: %s, state %d, want %d", tt.localnet, r.Verdict, r.Entry.tcp.state, tt.state)
		}
	}
}
