package hostrules

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// outsideService has an endpoint outside of the cluster, which does not listen at one port.
const outsideService = `
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere, namespace: default}
spec:
  type: NodePort
  clusterIP: 10.96.0.90
  clusterIPs: [10.96.0.90, "fd00:10:96::90"]
  ports:
  - {name: http, port: 80, protocol: TCP, nodePort: 30190}
  - {name: echo, port: 53, protocol: UDP, nodePort: 30190}
  - {name: nobody, port: 99, protocol: UDP, nodePort: 30192}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: elsewhere-ipv4, namespace: default, labels: {kubernetes.io/service-name: elsewhere}}
addressType: IPv4
ports:
- {name: http, port: 8080, protocol: TCP}
- {name: echo, port: 5353, protocol: UDP}
- {name: nobody, port: 9999, protocol: UDP}
endpoints:
- addresses: ["172.21.0.100"]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: elsewhere-ipv6, namespace: default, labels: {kubernetes.io/service-name: elsewhere}}
addressType: IPv6
ports:
- {name: http, port: 8080, protocol: TCP}
- {name: echo, port: 5353, protocol: UDP}
- {name: nobody, port: 9999, protocol: UDP}
endpoints:
- addresses: ["fd00:172:21::100"]
`

// hostMasquerades are rules as CNI plugins write them; %s is the pods' network, and the
// second one that of the node's own pods.
var hostMasquerades = map[string]string{
	"kind": `*nat
:KIND-MASQ-AGENT - [0:0]
-A POSTROUTING -m addrtype ! --dst-type LOCAL -m comment --comment "kind-masq-agent: ensure nat POSTROUTING directs all non-LOCAL destination traffic to our custom KIND-MASQ-AGENT chain" -j KIND-MASQ-AGENT
-A KIND-MASQ-AGENT -d %[1]s -m comment --comment "kind-masq-agent: local traffic is not subject to MASQUERADE" -j RETURN
-A KIND-MASQ-AGENT -m comment --comment "kind-masq-agent: outbound traffic is subject to MASQUERADE (must be last in chain)" -j MASQUERADE
COMMIT
`,
	"flannel": `*nat
-A POSTROUTING -s %[1]s -d %[1]s -m comment --comment "flanneld masq" -j RETURN
-A POSTROUTING -s %[1]s ! -d %[3]s -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A POSTROUTING ! -s %[1]s -d %[2]s -m comment --comment "flanneld masq" -j RETURN
-A POSTROUTING ! -s %[1]s -d %[1]s -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
COMMIT
`,
}

// TestHostMasquerade: a flow that is translated leaves with the source that the node's own
// rules give to one that is not, whichever back end of iptables they are in.
func TestHostMasquerade(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"iptables", "ip6tables"} {
		for _, backend := range []string{"nft", "legacy"} {
			netnstest.RequireTool(t, tool+"-"+backend+"-restore")
		}
	}
	c := e2etest.NewClusterWith(t, nil, func(s *lab.Spec) {
		// Who answers pods is not to need the masquerade: then its absence is seen, too.
		s.Clients[0].RoutesToPods = true
		s.Clients[0].Ports = []lab.Port{{Port: 8080, Protocol: 6}, {Port: 5353, Protocol: 17}}
	})
	c.Edit(func(text string) string { return text + outsideService })
	for _, backend := range []string{"nft", "legacy"} {
		for name, rules := range hostMasquerades {
			t.Run(name+", "+backend, func(t *testing.T) { c.Use(t); hostMasquerade(c, t, backend, rules) })
		}
	}
}

// TestHostMasqueradeOff: with --host-masquerade=off the node's rules do not count.
func TestHostMasqueradeOff(t *testing.T) {
	t.Parallel()
	netnstest.RequireTool(t, "iptables-nft-restore")
	c := e2etest.NewClusterWith(t, []string{"--host-masquerade=off"}, func(s *lab.Spec) {
		s.Clients[0].RoutesToPods = true
		s.Clients[0].Ports = []lab.Port{{Port: 8080, Protocol: 6}}
	})
	c.Edit(func(text string) string { return text + outsideService })
	loadRules(c, "node-a", "iptables-nft-restore", fmt.Sprintf(hostMasquerades["kind"], "10.244.0.0/16"))
	conn := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.90:80")
	if a := c.Ask(conn); a.Client != conn.LocalAddr().String() {
		t.Errorf("the server saw %s, want the pod's own address %s", a.Client, conn.LocalAddr())
	}
}

// TestHostMasqueradeAddress: a rule for an address that the node does not have yet counts
// when it has it. A conversation keeps the address though the rule is gone, as with
// kube-proxy, and loses it with the address.
func TestHostMasqueradeAddress(t *testing.T) {
	t.Parallel()
	netnstest.RequireTool(t, "iptables-nft-restore")
	netnstest.RequireTool(t, "ip")
	const address, service = "172.21.0.8", "10.96.0.90:53"
	c := e2etest.NewClusterWith(t, nil, func(s *lab.Spec) {
		s.Clients[0].RoutesToPods = true
		s.Clients[0].Ports = []lab.Port{{Port: 8080, Protocol: 6}, {Port: 5353, Protocol: 17}}
	})
	c.Edit(func(text string) string { return text + outsideService })
	seen := func() string { return e2etest.HostOf(c.Ask(c.Dial("shell", "udp", e2etest.AnyPort, service)).Client) }
	loadRules(c, "node-a", "iptables-nft-restore", "*nat\n-A POSTROUTING -s 10.244.0.9/32 -d 172.21.0.100/32 -j SNAT --to-source "+address+"\nCOMMIT\n")
	e2etest.Eventually(t, e2etest.Timeout, "the counter of flows whose rules have an unknown effect", func() bool {
		return seen() == "10.244.0.9" && c.Metric("node-a", "nfqproxy_host_rules_unknown_flows_total") > 0
	})
	c.Logged(address + " is no address of this host")
	c.Must(c.Host("node-a").AddAddress("eth0", netip.MustParsePrefix(address+"/16")))
	e2etest.Eventually(t, e2etest.Timeout, "the rule to count", func() bool { return seen() == address })
	e2etest.Eventually(t, e2etest.Timeout, "the counter of flows that the host masquerades", func() bool {
		return c.Metric("node-a", "nfqproxy_host_masqueraded_flows_total") > 0
	})
	old := c.Dial("shell", "udp", e2etest.AnyPort, service)
	if a := e2etest.HostOf(c.Ask(old).Client); a != address {
		t.Errorf("the server saw %s, want %s", a, address)
	}
	loadRules(c, "node-a", "iptables-nft-restore", "*nat\nCOMMIT\n")
	e2etest.Eventually(t, e2etest.Timeout, "the rule not to count any more", func() bool { return seen() == "10.244.0.9" })
	if a := e2etest.HostOf(c.Ask(old).Client); a != address {
		t.Errorf("without the rule the server saw %s of a conversation that goes on, want %s", a, address)
	}
	if _, err := c.Host("node-a").Run("", "ip", "addr", "del", address+"/16", "dev", "eth0"); err != nil {
		t.Fatal(err)
	}
	e2etest.Eventually(t, e2etest.Timeout, "the conversation to go on without the address", func() bool {
		if err := old.SetDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		a, err := e2etest.Ask(old)
		return err == nil && a.Client == old.LocalAddr().String()
	})
}

// load has a node's rules replaced by one of iptables' programs.
func loadRules(c *e2etest.Cluster, node, program, rules string) {
	c.T.Helper()
	if _, err := c.Host(node).Run(rules, program, "-w"); err != nil {
		c.T.Fatal(err)
	}
}

// hostMasquerade compares, for rules on node-a, what a server outside sees of flows that
// are translated and of flows that are not.
func hostMasquerade(c *e2etest.Cluster, t *testing.T, backend, rules string) {
	v4 := fmt.Sprintf(rules, "10.244.0.0/16", "10.244.0.0/24", "224.0.0.0/4")
	v6 := fmt.Sprintf(rules, "fd00:10:244::/56", "fd00:10:244::/64", "ff00::/8")
	loadRules(c, "node-a", "iptables-"+backend+"-restore", v4)
	loadRules(c, "node-a", "ip6tables-"+backend+"-restore", v6)
	e2etest.Families(t, func(t *testing.T, at func(v4, v6 string, port int) string) {
		c.Use(t)
		elsewhere := at("10.96.0.90", "fd00:10:96::90", 80)
		// The daemon hears of the rules some time after they were made.
		e2etest.Eventually(t, e2etest.Timeout, "the rules to count", func() bool { return masqueraded(c, "shell", elsewhere) })
		for _, tt := range []struct {
			name, from          string
			network             string
			translated, natural string
		}{
			{"pod to elsewhere", "shell", "tcp", elsewhere, at("172.21.0.100", "fd00:172:21::100", 8080)},
			{"pod to elsewhere", "shell", "udp", at("10.96.0.90", "fd00:10:96::90", 53), at("172.21.0.100", "fd00:172:21::100", 5353)},
			{"pod to elsewhere by node port", "shell", "tcp", at("172.21.0.2", "fd00:172:21::2", 30190), at("172.21.0.100", "fd00:172:21::100", 8080)},
			{"pod to a pod of this node", "shell", "tcp", at("10.96.0.30", "fd00:10:96::30", 80), at("10.244.0.4", "fd00:10:244::4", 8080)},
			{"pod to a pod of this node", "shell", "udp", at("10.96.0.30", "fd00:10:96::30", 53), at("10.244.0.4", "fd00:10:244::4", 5353)},
			{"node to elsewhere", "node-a", "tcp", elsewhere, at("172.21.0.100", "fd00:172:21::100", 8080)},
		} {
			t.Run(tt.name+" "+tt.network, func(t *testing.T) {
				c.Use(t)
				natural := e2etest.HostOf(c.Ask(c.Dial(tt.from, tt.network, e2etest.AnyPort, tt.natural)).Client)
				conn := c.Dial(tt.from, tt.network, e2etest.AnyPort, tt.translated)
				seen := e2etest.HostOf(c.Ask(conn).Client)
				if seen != natural {
					t.Errorf("the server saw %s, and without translation %s", seen, natural)
				}
				own := e2etest.HostOf(conn.LocalAddr().String())
				// An earlier connection may have had the same ports.
				c.WaitRecord("a record of that", func(r *flow.Record) bool {
					return r.Source == conn.LocalAddr().String() && r.Destination == conn.RemoteAddr().String() && (r.Masquerade || seen == own) &&
						(r.MasqueradeReason == "host-masquerade") == strings.Contains(r.MasqueradeRule, "MASQUERADE")
				})
			})
		}
		c.Use(t)
	})
	c.Use(t)
	loadRules(c, "node-a", "iptables-"+backend+"-restore", "*nat\nCOMMIT\n")
	loadRules(c, "node-a", "ip6tables-"+backend+"-restore", "*nat\nCOMMIT\n")
	for _, to := range []string{"10.96.0.90:80", "[fd00:10:96::90]:80"} {
		e2etest.Eventually(t, e2etest.Timeout, "the rules not to count any more", func() bool { return !masqueraded(c, "shell", to) })
	}
}

// masqueraded says whether the source of a connection that is made now is translated.
func masqueraded(c *e2etest.Cluster, from, to string) bool {
	c.T.Helper()
	conn := c.Dial(from, "tcp", e2etest.AnyPort, to)
	defer conn.Close()
	return c.Ask(conn).Client != conn.LocalAddr().String()
}
