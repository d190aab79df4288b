package survey

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// TestStaysOnBridge: a reply needs a bridge to pass the rules if the packet was translated between two of its ports, and keeps
// its source.
func TestStaysOnBridge(t *testing.T) {
	s := &surveyor{host: &netfilter.Host{Bridges: map[string]netfilter.Bridge{"cni0": {}, "cni1": {PassesRules: true}}}}
	translated := netfilter.Entry{Connection: iptables.Connection{DNAT: true}}
	masqueraded := netfilter.Entry{Connection: iptables.Connection{DNAT: true, SNAT: true}}
	for _, tt := range []struct {
		from, to string
		entry    *netfilter.Entry
		want     bool
	}{
		{"cni0", "cni0", &translated, true},
		{"cni0", "cni0", &masqueraded, false},
		{"cni0", "cni0", &netfilter.Entry{}, false},
		{"cni0", "cni0", nil, false},
		{"cni1", "cni1", &translated, false},
		{"eth0", "cni0", &translated, false},
		{"eth0", "eth0", &translated, false},
	} {
		c := &connection{from: &Source{Device: tt.from}}
		if got := s.staysOnBridge(c, &netfilter.Way{Result: &netfilter.Result{Out: tt.to, Entry: tt.entry}}); got != tt.want {
			t.Errorf("from %s to %s, %+v: %v", tt.from, tt.to, tt.entry, got)
		}
	}
}

// TestNeedsHairpin: an endpoint that is its own client needs it, unless IPVS translates.
func TestNeedsHairpin(t *testing.T) {
	s := &surveyor{host: &netfilter.Host{Bridges: map[string]netfilter.Bridge{"cni0": {PassesRules: true, Ports: 2}, "cni1": {PassesRules: true, Ports: 2, Hairpins: 1}, "cni2": {PassesRules: true, Ports: 2, Promiscuous: true}}}}
	for _, tt := range []struct {
		device, to string
		ipvs       *audit.Node
		want       bool
	}{
		{"cni0", "10.244.1.2", nil, true},
		{"cni0", "10.244.1.3", nil, false},
		{"cni0", "10.244.1.2", new(audit.Node), false},
		{"cni1", "10.244.1.2", nil, false},
		{"cni2", "10.244.1.2", nil, false},
		{"eth0", "10.244.1.2", nil, false},
	} {
		s.ipvs = tt.ipvs
		c := &connection{from: &Source{Addr: netip.MustParseAddr("10.244.1.2"), Device: tt.device}}
		p := iptables.Packet{Destination: netip.AddrPortFrom(netip.MustParseAddr(tt.to), 8080)}
		if got := s.needsHairpin(c, &netfilter.Way{Result: &netfilter.Result{Out: tt.device, Packet: p}}); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

// TestKnowsRoutes: with other routing rules, a packet may have another route; where its device's packets are not forwarded, none counts.
func TestKnowsRoutes(t *testing.T) {
	h := &netfilter.Host{NoForwarding: true, OtherRules: true, ForwardingDiffers: []string{"eth1"}}
	for _, text := range []string{`[{"ifname":"eth0","addr_info":[{"local":"172.20.0.2","prefixlen":16}]}]`, `[{"dst":"default","gateway":"172.20.0.1","dev":"eth0"}]`} {
		if err := h.Read(strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	s := &surveyor{host: h}
	for _, tt := range []struct {
		p    iptables.Packet
		want bool
	}{
		{iptables.Packet{InInterface: "eth0"}, true},
		{iptables.Packet{InInterface: "eth1"}, false},
		{iptables.Packet{Local: true}, false},
	} {
		tt.p.Source, tt.p.Destination = netip.MustParseAddrPort("203.0.113.9:40000"), netip.MustParseAddrPort("10.244.1.2:80")
		if got := s.knowsRoutes(&netfilter.Way{Result: &netfilter.Result{NoWay: true, Packet: tt.p}}); got != tt.want {
			t.Errorf("%+v: %v", tt.p, got)
		}
	}
}
