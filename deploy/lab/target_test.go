package lab

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

func TestParseTarget(t *testing.T) {
	for _, tt := range []struct {
		to, protocol string
		want         target
	}{
		{"10.96.0.10:80", "", target{decision.TCP, "10.96.0.10", 80, false, "/"}},
		{"10.96.0.10:80", "UDP", target{decision.UDP, "10.96.0.10", 80, false, "/"}},
		{"[fd00::10]:80", "tcp", target{decision.TCP, "fd00::10", 80, false, "/"}},
		{"fd00::10", "", target{decision.TCP, "fd00::10", 0, false, "/"}},
		{"web", "", target{decision.TCP, "web", 0, false, "/"}},
		{"web/", "", target{decision.TCP, "web", 0, false, "/"}},
		{"web.shop:8080", "udp", target{decision.UDP, "web.shop", 8080, false, "/"}},
		{"web/download?bytes=7", "", target{decision.TCP, "web", 0, true, "/download?bytes=7"}},
		{"http://web.shop/", "", target{decision.TCP, "web.shop", 80, true, "/"}},
		{"HTTP://web:81/a%20b?c=d", "tcp", target{decision.TCP, "web", 81, true, "/a%20b?c=d"}},
		{"http://[fd00::10]", "", target{decision.TCP, "fd00::10", 80, true, "/"}},
		{"udp://kube-dns.kube-system:53", "", target{decision.UDP, "kube-dns.kube-system", 53, false, "/"}},
		{"tcp://fd00::10", "", target{decision.TCP, "fd00::10", 0, false, "/"}},
	} {
		got, field, err := parseTarget(tt.to, tt.protocol)
		if err != nil || got != tt.want {
			t.Errorf("%q %s: %+v, %s: %v; want %+v", tt.to, tt.protocol, got, field, err, tt.want)
		}
	}
	for _, tt := range []struct{ to, protocol, field, err string }{
		{"", "", "to", "want a URL"},
		{":80", "", "to", "want a URL"},
		{"http://", "", "to", "want a URL"},
		{"web:0", "", "to", "want a port"},
		{"web:65536", "", "to", "want a port"},
		{"web:x", "", "to", "want a URL"},
		{"user@web", "", "to", "want a URL"},
		{"https://web", "", "to", "do not encrypt"},
		{"ftp://web", "", "to", "unknown scheme"},
		{"10.96.0.10:80", "sctp", "protocol", "want tcp or udp"},
		{"http://web", "udp", "protocol", "another protocol"},
		{"udp://web:53", "tcp", "protocol", "another protocol"},
	} {
		if _, field, err := parseTarget(tt.to, tt.protocol); field != tt.field || err == nil || !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%q %s: %s: %v, want %s: %s", tt.to, tt.protocol, field, err, tt.field, tt.err)
		}
	}
}

func FuzzParseTarget(f *testing.F) {
	f.Add("http://web.shop:80/x?y", "tcp")
	f.Add("[fd00::1]:80", "")
	f.Fuzz(func(t *testing.T, to, protocol string) {
		got, _, err := parseTarget(to, protocol)
		if err == nil && (got.host == "" || got.protocol != decision.TCP && got.protocol != decision.UDP || strings.ContainsAny(got.path, "\r\n ")) {
			t.Errorf("%q: %+v", to, got)
		}
	})
}

func TestPortOf(t *testing.T) {
	one, two, none := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.96.0.2"), netip.MustParseAddr("10.96.0.3")
	port := func(at netip.Addr, n uint16, p decision.Protocol) *decision.ServicePort {
		return &decision.ServicePort{ClusterIP: at, Port: n, Protocol: p}
	}
	services := []*decision.ServicePort{port(one, 3000, decision.TCP), port(one, 53, decision.UDP), port(two, 8080, decision.TCP), port(two, 80, decision.TCP), port(two, 53, decision.UDP), port(two, 54, decision.UDP)}
	for _, tt := range []struct {
		at   netip.Addr
		p    decision.Protocol
		want uint16
		err  string
	}{
		{one, decision.TCP, 3000, ""}, {one, decision.UDP, 53, ""}, {two, decision.TCP, 80, ""}, {none, decision.TCP, 80, ""},
		{two, decision.UDP, 0, "give one of these ports: 53, 54"}, {none, decision.UDP, 0, "give the port"},
	} {
		got, err := portOf(services, tt.at, tt.p)
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s %s: %d, %v; want %d, %q", tt.at, tt.p, got, err, tt.want, tt.err)
		}
	}
}
