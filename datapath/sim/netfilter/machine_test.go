package netfilter

import (
	"net/netip"
	"os"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
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
	m, err := New(d, nil, h, Options{})
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
