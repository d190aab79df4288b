package daemon

import (
	"slices"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/live/apiserver"
	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
	"github.com/nfqproxy/nfqproxy/control/observe"
)

// TestConfinementConfig: what the flags name stays possible, and nothing else.
func TestConfinementConfig(t *testing.T) {
	p := &process{cfg: proxyconfig.Default(), flags: new(Flags)}
	p.flags.flowAPI.addresses = "127.0.0.1:10253"
	c := p.confinementConfig()
	if len(c.Capabilities) != 1 || c.Capabilities[0].Name != "CAP_NET_ADMIN" || len(c.Sockets) > 0 || c.Program != "" || len(c.Reads) > 0 {
		t.Errorf("%+v", c)
	}
	p.flags.flowAPI = flowAPIFlags{addresses: "unix:/run/nfqproxy/flows.sock", tokenFile: "/token", tlsCert: "/cert", tlsKey: "/key"}
	p.cfg.MetricsBindAddress = "127.0.0.1:80"
	p.flags.stateDir = "/state"
	p.clientUses = apiserver.Uses{Files: []string{"/ca"}, Program: "aws"}
	c = p.confinementConfig()
	if !slices.Equal(c.Sockets, []string{"/run/nfqproxy"}) || c.Program != "aws" || !slices.Equal(c.Reads, []string{"/ca", "/token", "/cert", "/key"}) || !slices.Equal(c.Files, []string{"/state"}) {
		t.Errorf("%+v", c)
	}
	if want := (observe.Capability{Name: "CAP_NET_BIND_SERVICE", Use: "listening on 127.0.0.1:80"}); !slices.Contains(c.Capabilities, want) {
		t.Errorf("capabilities %v", c.Capabilities)
	}
}

func TestLowPort(t *testing.T) {
	for _, c := range []struct {
		first     uint16
		addresses []string
		want      string
	}{
		{1024, []string{"", "unix:/run/x", "0.0.0.0:10256", "127.0.0.1:0", "[::1]:1024", "nonsense"}, ""},
		{1024, []string{"0.0.0.0:10256", "[::1]:1023"}, "[::1]:1023"},
		{1024, []string{"localhost:443"}, "localhost:443"},
		{80, []string{"127.0.0.1:443"}, ""},
	} {
		if got := lowPort(c.first, c.addresses...); got != c.want {
			t.Errorf("%v from %d: %q, want %q", c.addresses, c.first, got, c.want)
		}
	}
}
