package netfilter

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// FuzzHost: whatever a file has, it is read without a panic, and packets find their way through the host.
func FuzzHost(f *testing.F) {
	f.Add(`[{"ifname":"lo","flags":["LOOPBACK","UP"],"addr_info":[{"local":"127.0.0.1","prefixlen":8,"scope":"host"}]}]`)
	f.Add(`[{"ifname":"eth0","link_type":"ether","address":"00:11:22:33:44:55","addr_info":[{"local":"10.0.0.1","prefixlen":24},{"local":"fd00::1","prefixlen":200},{"local":"x"}]}]`)
	f.Add(`[{"dst":"default","gateway":"10.0.0.254","dev":"eth0"},{"dst":"10.0.0.0/24","dev":"eth0","prefsrc":"10.0.0.1"},{"type":"blackhole","dst":"10.9.0.0/16"}][{"dst":"fd00::/8","via":{"host":"::1"}}]`)
	f.Add(`[{"dst":"10.0.0.9","dev":"eth0","lladdr":"00:11:22:33:44:66","state":["STALE"]},{"dst":"10.0.0.254","dev":"eth0","state":["FAILED"]},{"dst":"x","state":[]}]`)
	f.Add(`[{"dst":"default","nexthops":[{"gateway":"10.0.0.254","dev":"eth0"},{}]},null,[]]`)
	dump, err := iptables.Parse(strings.NewReader("*filter\n-A INPUT -m addrtype --dst-type LOCAL,BROADCAST -j ACCEPT\n-A FORWARD -m addrtype --dst-type UNICAST --limit-iface-out -j DROP\nCOMMIT\n"), iptables.Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		h := &Host{}
		if err := h.Read(strings.NewReader(text)); err != nil {
			if err.Error() == "" {
				t.Error("an error without a text")
			}
			return
		}
		machine, err := New([]*iptables.Dump{dump}, nil, h, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range []string{"127.0.0.1:80", "10.0.0.1:80", "10.0.0.255:80", "224.0.0.1:80", "192.0.2.9:80"} {
			for _, device := range []string{"eth0", "lo", ""} {
				machine.Explore(iptables.Packet{Protocol: 17, Source: netip.MustParseAddrPort("10.0.0.7:40000"), Destination: netip.MustParseAddrPort(to), InInterface: device, TTL: 64, Length: 60}, nil, 10)
			}
		}
	})
}
