package nftproxy

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

func TestNames(t *testing.T) {
	name := decision.ServicePortName{Namespace: "default", Name: "web", Port: "http"}
	v4, v6 := netip.MustParseAddrPort("10.244.1.2:8080"), netip.MustParseAddrPort("[fd00:10:244:1::2]:8080")
	for _, c := range []struct{ have, want string }{
		{Base(name, decision.TCP), "SUSTUHLJ-default/web/tcp/http"},
		{EndpointBase(name, decision.TCP, v4), "SVLGPL42-default/web/tcp/http__10.244.1.2/8080"},
	} {
		if c.have != c.want {
			t.Errorf("%s, want %s", c.have, c.want)
		}
	}
	for _, ep := range []netip.AddrPort{v4, v6} {
		text := "endpoint-" + EndpointBase(name, decision.TCP, ep)
		n, ok := ParseName(text)
		if !ok || n.Service != name || n.Protocol != decision.TCP || n.Endpoint != ep || n.Want() != text || n.String() != text {
			t.Errorf("%s: %+v, %t", text, n, ok)
		}
	}
	long := decision.ServicePortName{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("s", 63), Port: strings.Repeat("p", 63)}
	if n, ok := ParseName("endpoint-" + EndpointBase(long, decision.SCTP, netip.MustParseAddrPort("[2001:db8:1111:2222:3333:4444:5555:6666]:65535"))); ok || n.Kind != EndpointChain || len(n.Base) != 256-16 {
		t.Errorf("%+v, %t", n, ok)
	}
	for _, text := range []string{"services", "service-ips", "service-A", "endpoint-A-b/c/tcp/d", "service-A-b/c/icmp/d", "local-A/b", "affinity-A-a/b/tcp/__1.2.3/80"} {
		if n, ok := ParseName(text); ok {
			t.Errorf("%s: %+v", text, n)
		}
	}
}
