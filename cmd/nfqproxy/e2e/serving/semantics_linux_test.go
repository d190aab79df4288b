package serving

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// TestExternalPolicyLocal: the node with the pod keeps the client's address, the one
// without drops; pods and the node itself are served anyway.
func TestExternalPolicyLocal(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	e2etest.Families(t, func(t *testing.T, at func(v4, v6 string, port int) string) {
		c.Use(t)
		nodeA, nodeB := at("172.21.0.2", "fd00:172:21::2", 30110), at("172.21.0.3", "fd00:172:21::3", 30110)
		for network := range map[string]bool{"tcp": true, "udp": true} {
			for _, tt := range []struct{ name, from, to, seenAs, branch string }{
				{"outside, node with the pod", "outside", nodeB, at("172.21.0.100", "fd00:172:21::100", 0), "external-policy"},
				{"pod, node without", "shell", nodeA, at("10.244.0.9", "fd00:10:244::9", 0), "pod-short-circuit"},
				{"the node without itself", "node-a", nodeA, at("172.21.0.2", "fd00:172:21::2", 0), "node-short-circuit"},
			} {
				t.Run(tt.name+" "+network, func(t *testing.T) {
					c.Use(t)
					conn := c.Dial(tt.from, network, e2etest.AnyPort, tt.to)
					a := c.Ask(conn)
					if a.Pod != "default/web-2" || e2etest.HostOf(a.Client) != tt.seenAs {
						t.Errorf("%s answered and saw %s, want default/web-2 and %s", a.Pod, a.Client, tt.seenAs)
					}
					if r := c.Record("dnat", strings.ToUpper(network), conn.LocalAddr(), conn.RemoteAddr()); r.Branch != tt.branch {
						t.Errorf("branch %q, want %q", r.Branch, tt.branch)
					}
				})
			}
		}
		c.Use(t)
		conn := c.Dial("outside", "udp", e2etest.AnyPort, nodeA)
		if _, err := conn.Write([]byte("anybody?")); err != nil {
			t.Fatal(err)
		}
		r := c.Record("drop", "UDP", conn.LocalAddr(), conn.RemoteAddr())
		remote := flow.Excluded{Endpoint: at("10.244.1.2", "fd00:10:244:1::2", 5353), Reason: "not-local"}
		if r.Reason != "no-local-endpoints" || !slices.Contains(r.Excluded, remote) {
			t.Errorf("dropped for %s, excluded %v", r.Reason, r.Excluded)
		}
	})
}

// TestLoadBalancer: external and load balancer IPs lead to the service; only the
// latter are for the allowed sources alone.
func TestLoadBalancer(t *testing.T) { e2etest.InEachScope(t, testLoadBalancer) }

func testLoadBalancer(t *testing.T, c *e2etest.Cluster) {
	routeVIPs(c, "outside", "172.21.0.3", "fd00:172:21::3")
	e2etest.Families(t, func(t *testing.T, at func(v4, v6 string, port int) string) {
		c.Use(t)
		lb, external := at("203.0.113.10", "2001:db8:8::8", 80), at("198.51.100.7", "2001:db8:7::7", 80)
		for _, tt := range []struct{ from, to, entry string }{
			{"outside", lb, "load-balancer-ip"}, {"outside", external, "external-ip"}, {"shell", external, "external-ip"},
		} {
			conn := c.Dial(tt.from, "tcp", e2etest.AnyPort, tt.to)
			if a := c.Ask(conn); a.Pod != "default/web-1" {
				t.Errorf("%s to %s: answered by %+v", tt.from, tt.to, a)
			}
			if r := c.Record("dnat", "TCP", conn.LocalAddr(), conn.RemoteAddr()); r.Entry != tt.entry {
				t.Errorf("%s to %s: entry %s, want %s", tt.from, tt.to, r.Entry, tt.entry)
			}
		}
		conn := c.Dial("shell", "udp", e2etest.AnyPort, at("203.0.113.10", "2001:db8:8::8", 53))
		if _, err := conn.Write([]byte("may I?")); err != nil {
			t.Fatal(err)
		}
		if r := c.Record("drop", "UDP", conn.LocalAddr(), conn.RemoteAddr()); r.Reason != "source-not-allowed" {
			t.Errorf("dropped for %s", r.Reason)
		}
	})
}

// TestLoadBalancerWithoutDaemon: the kernel's copy knows the sources that may use a load balancer's
// address.
func TestLoadBalancerWithoutDaemon(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	routeVIPs(c, "outside", "172.21.0.2", "fd00:172:21::2")
	c.Must(c.KillDaemon("node-a"))
	e2etest.Families(t, func(t *testing.T, at func(v4, v6 string, port int) string) {
		c.Use(t)
		lb := at("203.0.113.10", "2001:db8:8::8", 80)
		c.Ask(c.Dial("outside", "tcp", e2etest.AnyPort, lb))
		if got := silent(c, false, "shell", lb); got != becomesSilent {
			t.Errorf("from a source that is not allowed: %s", got)
		}
		c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, at("198.51.100.7", "2001:db8:7::7", 80))) // an external IP
	})
}

// routeVIPs leads a client's packets to external and load balancer IPs by way of a node.
func routeVIPs(c *e2etest.Cluster, client, via4, via6 string) {
	c.T.Helper()
	for to, via := range map[string]string{
		"203.0.113.10/32": via4, "198.51.100.7/32": via4, "2001:db8:8::8/128": via6, "2001:db8:7::7/128": via6,
	} {
		c.Must(c.Host(client).AddRoute(netns.Route{Destination: netip.MustParsePrefix(to), Via: netip.MustParseAddr(via), Link: "eth0"}))
	}
}

// TestAffinity: a client stays with its endpoint, by whatever address of the service
// port, also over a restart of the daemon; it moves on when the endpoint goes away.
func TestAffinity(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	e2etest.Families(t, func(t *testing.T, at func(v4, v6 string, port int) string) {
		c.Use(t)
		vip, nodePort := at("10.96.0.60", "fd00:10:96::60", 80), at("172.21.0.2", "fd00:172:21::2", 30120)
		ask := func(to string) string {
			t.Helper()
			return c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, to)).Pod
		}
		first := ask(vip)
		for range 10 {
			for _, to := range []string{vip, nodePort} {
				if pod := ask(to); pod != first {
					t.Fatalf("%s went to %s after %s", to, pod, first)
				}
			}
		}
		c.Must(c.KillDaemon("node-a"))
		if err := c.StartDaemon(t.Context(), "node-a"); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if pod := ask(vip); pod != first {
				t.Fatalf("after a restart %s, before %s", pod, first)
			}
		}
	})
	t.Run("the endpoint goes away", func(t *testing.T) {
		c.Use(t)
		first := c.Ask(c.Dial("solo", "tcp", e2etest.AnyPort, "10.96.0.60:80")).Pod
		address := map[string]string{"default/web-1": "10.244.0.2", "default/web-2": "10.244.1.2", "default/web-3": "10.244.1.3"}[first]
		c.Edit(func(s string) string {
			before, after, _ := strings.Cut(s, "name: sticky-ipv4")
			return before + "name: sticky-ipv4" + strings.Replace(after, `["`+address+`"]`, `["10.244.0.250"]`+"\n  conditions: {ready: false}", 1)
		})
		second := c.Ask(c.Dial("solo", "tcp", e2etest.AnyPort, "10.96.0.60:80")).Pod
		if second == first {
			t.Errorf("still %s, which is no longer an endpoint", second)
		}
		if third := c.Ask(c.Dial("solo", "tcp", e2etest.AnyPort, "10.96.0.60:80")).Pod; third != second {
			t.Errorf("not bound to the new endpoint: %s, then %s", second, third)
		}
	})
}

// TestLocalhostNodePort: the node reaches node ports on 127.0.0.1.
func TestLocalhostNodePort(t *testing.T) { e2etest.InEachScope(t, testLocalhostNodePort) }

func testLocalhostNodePort(t *testing.T, c *e2etest.Cluster) {
	conn := c.Dial("node-a", "tcp", e2etest.AnyPort, "127.0.0.1:30090")
	if a := c.Ask(conn); a.Pod != "default/solo" || e2etest.HostOf(a.Client) != "10.244.0.1" {
		t.Errorf("answered by %+v", a)
	}
}

// TestTerminatingFallback: a service whose only endpoints terminate is still served,
// as long as they do.
func TestTerminatingFallback(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	const target = `- addresses: ["10.244.0.4"]`
	c.Edit(func(s string) string {
		unready := "- addresses: [\"10.244.0.251\"]\n  conditions: {ready: false}\n" // a change to wait for
		return strings.Replace(s, target, unready+target+"\n  conditions: {ready: false, serving: true, terminating: true}", 1)
	})
	conn := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.30:80")
	if a := c.Ask(conn); a.Pod != "default/solo" {
		t.Errorf("answered by %+v", a)
	}
	c.Edit(func(s string) string {
		return strings.Replace(s, "serving: true, terminating", "serving: false, terminating", 1)
	})
	refused := c.Dial("shell", "udp", e2etest.AnyPort, "10.96.0.30:53")
	if _, err := refused.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	if r := c.Record("reject", "UDP", refused.LocalAddr(), refused.RemoteAddr()); !slices.Contains(r.Excluded, flow.Excluded{Endpoint: "10.244.0.4:5353", Reason: "not-serving"}) {
		t.Errorf("excluded %v", r.Excluded)
	}
}
