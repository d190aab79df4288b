package serving

import (
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestPaths sends TCP and UDP by every way there is to a service and holds what
// the server saw against what the daemon says it did.
func TestPaths(t *testing.T) { e2etest.InEachScope(t, testPaths) }

func testPaths(t *testing.T, c *e2etest.Cluster) {
	// Below those that the kernel gives: two clients masqueraded alike never share one. A socket of
	// IPv6 takes the port of IPv4, too: no two of both families share one either.
	var port atomic.Int32
	port.Store(20000)
	e2etest.Families(t, func(t *testing.T, at func(v4, v6 string, port int) string) {
		const anyWeb = "default/web-1 default/web-2 default/web-3"
		web := func(port int) string { return at("10.96.0.20", "fd00:10:96::20", port) }
		solo := func(port int) string { return at("10.96.0.30", "fd00:10:96::30", port) }
		shell := at("10.244.0.9", "fd00:10:244::9", 0)
		nodeB := at("172.21.0.3", "fd00:172:21::3", 0)
		gatewayA := at("10.244.0.1", "fd00:10:244::1", 0)
		tests := []struct {
			name, from  string
			tcp, udp    string // where to
			answeredBy  string // one of these pods
			seenAs      string // one of these source addresses
			masqueraded string // the reason, or empty
		}{
			{"pod to ClusterIP", "shell", web(80), web(53), anyWeb, shell, ""},
			{"node to ClusterIP", "node-b", solo(80), solo(53), "default/solo", nodeB, "source-outside-cluster"},
			{"outside client to node port of a node without the pod", "outside", at("172.21.0.3", "fd00:172:21::3", 30090), at("172.21.0.3", "fd00:172:21::3", 30090), "default/solo", nodeB, "external"},
			{"outside client to node port of the pod's node", "outside", at("172.21.0.2", "fd00:172:21::2", 30090), at("172.21.0.2", "fd00:172:21::2", 30090), "default/solo", gatewayA, "external"},
			{"pod to node port of another node", "shell", at("172.21.0.3", "fd00:172:21::3", 30090), at("172.21.0.3", "fd00:172:21::3", 30090), "default/solo", nodeB, "external"},
			{"node to its own node port", "node-a", at("172.21.0.2", "fd00:172:21::2", 30090), at("172.21.0.2", "fd00:172:21::2", 30090), "default/solo", gatewayA, "external"},
			{"hairpin", "solo", solo(80), solo(53), "default/solo", gatewayA, "hairpin"},
			{"hairpin by node port", "solo", at("172.21.0.2", "fd00:172:21::2", 30090), at("172.21.0.2", "fd00:172:21::2", 30090), "default/solo", gatewayA, "external"},
		}
		for _, tt := range tests {
			for network, to := range map[string]string{"tcp": tt.tcp, "udp": tt.udp} {
				t.Run(tt.name+" "+network, func(t *testing.T) {
					c.Use(t)
					from := netip.MustParseAddrPort(at("0.0.0.0", "::", int(port.Add(1))))
					conn := c.Dial(tt.from, network, from, to)
					a := c.Ask(conn)
					r := c.Record("dnat", strings.ToUpper(network), conn.LocalAddr(), conn.RemoteAddr())
					if !strings.Contains(tt.answeredBy, a.Pod) || a.Pod == "" {
						t.Errorf("answered by %q, want one of %s", a.Pod, tt.answeredBy)
					}
					if r.Conntrack != "created" || r.Pod != a.Pod || r.Endpoint != a.Local {
						t.Errorf("the record says to %s (%s, entry %s); %s at %s answered", r.Endpoint, r.Pod, r.Conntrack, a.Pod, a.Local)
					}
					if e2etest.HostOf(a.Client) != tt.seenAs {
						t.Errorf("the server saw the client as %s, want %s", a.Client, tt.seenAs)
					}
					if r.MasqueradeReason != tt.masqueraded || r.Masquerade != (tt.masqueraded != "") {
						t.Errorf("masqueraded %v for %q, want for %q", r.Masquerade, r.MasqueradeReason, tt.masqueraded)
					}
					if tt.masqueraded != "" && r.MasqueradeAddress != tt.seenAs {
						t.Errorf("the record says masqueraded as %s; the server saw %s", r.MasqueradeAddress, tt.seenAs)
					}
					if got, want := netip.MustParseAddrPort(a.Client).Port(), netip.MustParseAddrPort(conn.LocalAddr().String()).Port(); got != want {
						t.Errorf("the server saw source port %d, the client has %d, which was free", got, want)
					}
				})
			}
		}
	})
}

func TestNoEndpointsIsRefusedAtOnce(t *testing.T) {
	e2etest.InEachScope(t, testNoEndpointsIsRefusedAtOnce)
}

func testNoEndpointsIsRefusedAtOnce(t *testing.T, c *e2etest.Cluster) {
	e2etest.Families(t, func(t *testing.T, at func(v4, v6 string, port int) string) {
		c.Use(t)
		vip := func(port int) string { return at("10.96.0.40", "fd00:10:96::40", port) }
		nodePort := at("172.21.0.3", "fd00:172:21::3", 30100)
		for _, tt := range []struct{ from, to string }{
			{"shell", vip(80)}, {"node-a", vip(80)}, {"outside", nodePort}, {"shell", nodePort},
		} {
			if _, err := c.TryDial(tt.from, "tcp", e2etest.AnyPort, tt.to); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("tcp from %s to %s: error %v, want refused", tt.from, tt.to, err)
			}
		}
		for _, tt := range []struct{ from, to string }{{"shell", vip(53)}, {"node-a", vip(53)}, {"outside", nodePort}} {
			conn := c.Dial(tt.from, "udp", e2etest.AnyPort, tt.to)
			if _, err := e2etest.Ask(conn); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("udp from %s to %s: error %v, want refused", tt.from, tt.to, err)
			}
			if r := c.Record("reject", "UDP", conn.LocalAddr(), conn.RemoteAddr()); r.Reason != "no-endpoints" {
				t.Errorf("rejected for %s", r.Reason)
			}
		}
	})
}

// TestRefusedAtUnlistedAddresses: a node port without endpoints is refused at every address of
// the node, also at those that --nodeport-addresses closes; one with endpoints is not open
// there (kube-proxy's KUBE-EXTERNAL-SERVICES has no condition on the address).
func TestRefusedAtUnlistedAddresses(t *testing.T) {
	t.Parallel()
	for _, scope := range []string{"all", "services"} {
		t.Run(scope, func(t *testing.T) {
			t.Parallel()
			c := e2etest.NewClusterWith(t, []string{"--scope", scope, "--nodeport-addresses", "192.0.2.0/24,2001:db8::/64"})
			listenEverywhere(c, "node-a", 30090, 30100)
			e2etest.Families(t, func(t *testing.T, at func(v4, v6 string, port int) string) {
				c.Use(t)
				nodePort := func(port int) string { return at("172.21.0.2", "fd00:172:21::2", port) }
				if got := outcome(c, "outside", "tcp", nodePort(30100)); got != becomesRefused {
					t.Errorf("without endpoints: %s, want %s", got, becomesRefused)
				}
				want := theNode + " sees " + at("172.21.0.100", "fd00:172:21::100", 0)
				if got := outcome(c, "outside", "tcp", nodePort(30090)); got != want {
					t.Errorf("with endpoints: %s, want %s", got, want)
				}
			})
		})
	}
}

// TestOtherTrafficPasses: what is for no service goes its way untouched.
func TestOtherTrafficPasses(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	e2etest.Families(t, func(t *testing.T, at func(v4, v6 string, port int) string) {
		c.Use(t)
		for network, port := range map[string]int{"tcp": 8080, "udp": 5353} {
			conn := c.Dial("shell", network, e2etest.AnyPort, at("10.244.1.2", "fd00:10:244:1::2", port))
			if a := c.Ask(conn); a.Pod != "default/web-2" || a.Client != conn.LocalAddr().String() {
				t.Errorf("%s: answered by %+v", network, a)
			}
			if r := c.Record("accept", strings.ToUpper(network), conn.LocalAddr(), conn.RemoteAddr()); r.Conntrack != "" {
				t.Errorf("%s: the record speaks of an entry %s", network, r.Conntrack)
			}
		}
		// A port the service does not have is the service's business as little as in
		// kube-proxy's iptables mode: it finds no way.
		if _, err := c.TryDial("node-a", "tcp", e2etest.AnyPort, at("172.21.0.2", "fd00:172:21::2", 81)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("unserved port of the node: error %v, want refused by the node itself", err)
		}
	})
}

// TestScopeServices: what is for no service passes the queues by.
func TestScopeServices(t *testing.T) {
	t.Parallel()
	c := e2etest.NewClusterWith(t, []string{"--scope", "services"})
	e2etest.Families(t, func(t *testing.T, at func(v4, v6 string, port int) string) {
		c.Use(t)
		for network, port := range map[string]int{"tcp": 8080, "udp": 5353} {
			for _, from := range []string{"shell", "node-a"} {
				conn := c.Dial(from, network, e2etest.AnyPort, at("10.244.1.2", "fd00:10:244:1::2", port))
				if a := c.Ask(conn); a.Pod != "default/web-2" || a.Client != conn.LocalAddr().String() {
					t.Errorf("%s: answered by %+v", network, a)
				}
			}
		}
	})
	c.Use(t)
	for _, from := range []string{"shell", "node-a"} {
		c.Sync(from)
	}
	if n := c.Count(func(r *flow.Record) bool { return r.Verdict == "accept" }); n > 0 {
		t.Errorf("%d flows that were for no service were queued", n)
	}
}

// TestRepliesAreNotQueued: no record ever starts at an endpoint that only answers.
func TestRepliesAreNotQueued(t *testing.T) { e2etest.InEachScope(t, testRepliesAreNotQueued) }

func testRepliesAreNotQueued(t *testing.T, c *e2etest.Cluster) {
	for range 20 {
		for _, from := range []string{"shell", "node-a", "solo"} {
			c.Ask(c.Dial(from, "tcp", e2etest.AnyPort, "10.96.0.20:80"))
			c.Ask(c.Dial(from, "udp", e2etest.AnyPort, "10.96.0.20:53"))
			c.Ask(c.Dial(from, "udp", e2etest.AnyPort, "[fd00:10:96::20]:53"))
		}
	}
	for _, host := range []string{"shell", "solo", "node-a", "node-b"} {
		c.Sync(host)
	}
	if n := c.Count(func(r *flow.Record) bool {
		p := netip.MustParseAddrPort(r.Source).Port()
		return p == 8080 || p == 5353
	}); n > 0 {
		t.Errorf("%d replies were queued", n)
	}
	if n := c.Count(func(r *flow.Record) bool { return r.Service == "default/web:echo" }); n != 120 {
		t.Errorf("%d flows to the echo port were decided, want 120", n)
	}
}
