package daemon

import (
	"slices"
	"syscall"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestRouteLocalnet: the sysctl that opens 127.0.0.0/8 to packets from elsewhere is set where node
// ports are served there, and only there, as kube-proxy does (TestRealKubeProxy compares it).
func TestRouteLocalnet(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"all addresses", nil, "1"},
		{"loopback among the addresses", []string{"--nodeport-addresses", "127.0.0.0/8,172.21.0.0/16"}, "1"},
		{"addresses of IPv6", []string{"--nodeport-addresses", "fd00::/8"}, "1"},
		{"addresses without loopback", []string{"--nodeport-addresses", "172.21.0.0/16"}, "0"},
		{"primary", []string{"--nodeport-addresses", "primary"}, "0"},
		{"the flag says no", []string{"--localhost-nodeports=false"}, "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ns, err := netns.New("node")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = ns.Close() })
			d := e2etest.StartNfqproxy(t, ns, slices.Concat(e2etest.Objects(t, ns, e2etest.Lab),
				[]string{"--hostname-override", "node-a", "--node-ip", "172.21.0.2", "--flow-api", ""}, c.args)...)
			if value, err := ns.Sysctl("net.ipv4.conf.all.route_localnet"); err != nil || value != c.want {
				t.Errorf("route_localnet is %q, error %v; want %s", value, err, c.want)
			}
			d.Stop(syscall.SIGTERM)
		})
	}
}
