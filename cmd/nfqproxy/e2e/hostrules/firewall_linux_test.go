package hostrules

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// firewallServices are a Service with a health check node port, and one whose endpoint is in
// the host network of node-b.
const firewallServices = `
---
apiVersion: v1
kind: Service
metadata: {name: checked, namespace: default}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.160
  clusterIPs: [10.96.0.160, "fd00:10:96::160"]
  externalTrafficPolicy: Local
  healthCheckNodePort: 32100
  ports: [{name: http, port: 80, protocol: TCP, nodePort: 31110}]
---
apiVersion: v1
kind: Service
metadata: {name: agent, namespace: default}
spec:
  type: NodePort
  clusterIP: 10.96.0.170
  clusterIPs: [10.96.0.170, "fd00:10:96::170"]
  ports: [{name: http, port: 80, protocol: TCP, nodePort: 31120}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: agent-ipv4, namespace: default, labels: {kubernetes.io/service-name: agent}}
addressType: IPv4
ports: [{name: http, port: 8099, protocol: TCP}]
endpoints: [{addresses: ["172.21.0.3"], nodeName: node-b}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: agent-ipv6, namespace: default, labels: {kubernetes.io/service-name: agent}}
addressType: IPv6
ports: [{name: http, port: 8099, protocol: TCP}]
endpoints: [{addresses: ["fd00:172:21::3"], nodeName: node-b}]
`

// TestHostFirewall: with the policy DROP in FORWARD, as Docker sets it, and INPUT, node ports
// and health check node ports work as with kube-proxy: by either back end, in both families.
func TestHostFirewall(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"nft", "legacy"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			netnstest.RequireTool(t, "iptables-"+backend)
			netnstest.RequireTool(t, "ip6tables-"+backend)
			testHostFirewall(t, e2etest.NewCluster(t), backend)
		})
	}
}

func testHostFirewall(t *testing.T, c *e2etest.Cluster, backend string) {
	iptables := func(commands ...string) {
		t.Helper()
		for _, program := range []string{"iptables-", "ip6tables-"} {
			for _, command := range commands {
				if out, err := c.Host("node-a").Run("", program+backend, append([]string{"-w"}, strings.Fields(command)...)...); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
		}
	}
	accepted := func(chain string) {
		t.Helper()
		for _, program := range []string{"iptables-", "ip6tables-"} {
			e2etest.Eventually(t, e2etest.Timeout, chain+" to jump to our chain", func() bool {
				out, err := c.Host("node-a").Run("", program+backend, "-w", "-S", chain)
				if err != nil {
					t.Fatal(err)
				}
				return strings.Contains(out, "-j NFQPROXY-")
			})
		}
	}
	c.Edit(func(s string) string { return s + firewallServices })
	e2etest.Families(t, func(t *testing.T, at func(string, string, int) string) {
		l, err := c.Host("node-b").Listen(t.Context(), netip.MustParseAddrPort(at("172.21.0.3", "fd00:172:21::3", 8099)))
		if err != nil {
			t.Fatal(err)
		}
		c.T.Cleanup(func() { _ = l.Close() })
		go echoAll(l)
	})

	// The daemon runs when Docker starts.
	iptables("-P FORWARD DROP", "-N DOCKER-USER", "-A DOCKER-USER -j RETURN", "-A FORWARD -j DOCKER-USER")
	accepted("FORWARD")
	forwarded := func() {
		t.Helper()
		e2etest.Families(t, func(t *testing.T, at func(string, string, int) string) {
			for range 4 { // to several endpoints, on this node and on another
				c.Ask(c.Dial("outside", "tcp", e2etest.AnyPort, at("172.21.0.2", "fd00:172:21::2", 30080)))
				c.Ask(c.Dial("outside", "udp", e2etest.AnyPort, at("172.21.0.2", "fd00:172:21::2", 30080)))
			}
			conn := c.Dial("outside", "tcp", e2etest.AnyPort, at("172.21.0.2", "fd00:172:21::2", 31120))
			if _, err := io.WriteString(conn, "host network"); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 12)
			if _, err := io.ReadFull(conn, got); err != nil || string(got) != "host network" {
				t.Errorf("the endpoint in the host network answers %q, %v", got, err)
			}
		})
	}
	forwarded()
	open := c.Dial("outside", "tcp", e2etest.AnyPort, "172.21.0.2:30090")

	// It is started again, and an administrator begins anew.
	iptables("-F FORWARD", "-A FORWARD -j DOCKER-USER")
	accepted("FORWARD")
	forwarded()
	c.Ask(open)
	e2etest.Eventually(t, e2etest.Timeout, "the repairs to be counted", func() bool { return c.Metric("node-a", "nfqproxy_host_filter_repaired_total") >= 2 })

	iptables("-P INPUT DROP")
	accepted("INPUT")
	e2etest.Families(t, func(t *testing.T, at func(string, string, int) string) {
		url := fmt.Sprintf("http://%s/healthz", at("172.21.0.2", "fd00:172:21::2", 32100))
		if code, _, body, err := c.Fetch("outside", url); err != nil || !strings.Contains(body, `"localEndpoints"`) {
			t.Errorf("%s answers %d, %q, %v", url, code, body, err)
		}
	})

	if code, body := c.Get("node-b", e2etest.HealthPort, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz answers %d, %s", code, body)
	}

	// Once stopped, the rules stay for those who are connected; cleanup removes them.
	c.Must(c.StopDaemon(t.Context(), "node-a"))
	accepted("FORWARD")
	code, stdout, stderr := e2etest.Run(t, c.Host("node-a"), "cleanup")
	if code != 0 || strings.Count(stdout, "removed iptables ("+backend+"), IPv") != 4 {
		t.Errorf("cleanup: %d, %q, %q", code, stdout, stderr)
	}
	for _, program := range []string{"iptables-", "ip6tables-"} {
		out, err := c.Host("node-a").Run("", program+backend+"-save")
		if err != nil || strings.Contains(out, "NFQPROXY") || !strings.Contains(out, "-A FORWARD -j DOCKER-USER") {
			t.Errorf("after cleanup: %v\n%s", err, out)
		}
	}
}

// echoAll sends back what connections send.
func echoAll(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}()
	}
}
