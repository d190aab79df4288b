package hostrules

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/control/view/viewapi"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// silent is a Service whose endpoint does not exist: its flows get no answer, and no rule is the reason.
const silent = `
---
apiVersion: v1
kind: Service
metadata: {name: silent, namespace: default}
spec:
  clusterIP: 10.96.0.180
  clusterIPs: [10.96.0.180]
  ports: [{name: http, port: 80, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: silent-ipv4, namespace: default, labels: {kubernetes.io/service-name: silent}}
addressType: IPv4
ports: [{name: http, port: 8098, protocol: TCP}]
endpoints: [{addresses: ["10.244.1.77"], nodeName: node-b}]
`

// TestDrops: the findings of a lab name the rules of nodes that drop flows after they were decided, by their node,
// table and text, with the kernel's count: rules of either back end and family, on the node that decides and on that
// of the endpoint, and those that drop replies. Other rules and other flows have no such finding.
func TestDrops(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"} {
		netnstest.RequireTool(t, program)
	}
	c := e2etest.NewClusterOf(t, slices.Concat(e2etest.Lab, []byte(firewallServices), []byte(silent)), nil)
	findings := openFindings(c)
	cases := []struct {
		node, program, rule string
		from, to, protocol  string
		want                string // the beginning of the finding; %s is the rule
	}{
		{
			"node-a", "iptables-nft", "-A FORWARD -d 10.244.1.2/32 -p tcp -m tcp --dport 8080 -j DROP", "shell", "10.96.0.50:80", "tcp",
			"node node-a drops flows to default/local:http after they were translated: rule %s (iptables-nft, table filter) matches 1 recent flow without an answer, to 10.244.1.2:8080; it has counted ",
		},
		{
			"node-b", "ip6tables-nft", "-t mangle -A POSTROUTING -d fd00:10:244:1::2/128 -p tcp -j DROP", "shell", "[fd00:10:96::50]:80", "tcp",
			"node node-b drops flows to default/local:http after they were translated: rule %s (ip6tables-nft, table mangle) matches 1 recent flow without an answer, to [fd00:10:244:1::2]:8080; it has counted ",
		},
		{
			"node-a", "iptables-legacy", "-t raw -A PREROUTING -s 10.244.0.4/32 -p udp -m udp --sport 5353 -j DROP", "shell", "10.96.0.30:53", "udp",
			"node node-a drops the replies of flows to default/solo:echo after they were translated: rule %s (iptables-legacy, table raw) matches 1 recent flow without an answer, to 10.244.0.4:5353; it has counted ",
		},
		{
			"node-a", "iptables-legacy", "-A OUTPUT -d 10.244.0.2/32 -p udp -j REJECT --reject-with icmp-port-unreachable", "node-a", "10.96.0.70:53", "udp",
			"node node-a rejects flows to default/lb:echo after they were translated: rule %s (iptables-legacy, table filter) matches 1 recent flow without an answer, to 10.244.0.2:5353; it has counted 1 packet",
		},
		{
			"node-b", "iptables-nft", "-A INPUT -p tcp -m tcp --dport 8099 -j DROP", "outside", "172.21.0.2:31120", "tcp",
			"node node-b drops flows to default/agent:http after they were translated: rule %s (iptables-nft, table filter) matches 1 recent flow without an answer, to 172.21.0.3:8099; it has counted ",
		},
		// Rules that drop none of these flows.
		{"node-a", "iptables-nft", "-A FORWARD -d 10.96.0.0/16 -j DROP", "shell", "10.96.0.180:80", "tcp", ""},
		{"node-b", "iptables-nft", "-A INPUT -p udp -j DROP", "", "", "", ""},
	}
	ctx, cancel := context.WithCancel(t.Context())
	var requests sync.WaitGroup
	defer requests.Wait()
	defer cancel()
	for _, tt := range cases {
		if out, err := c.Host(tt.node).Run("", tt.program, append([]string{"-w"}, strings.Fields(tt.rule)...)...); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for _, tt := range cases {
		if tt.from == "" {
			continue
		}
		requests.Go(func() {
			if r, err := c.Request(ctx, labapi.Request{From: tt.from, To: tt.to, Protocol: tt.protocol}); err == nil && r.By != "" {
				t.Errorf("%s got an answer from %s, although there is %s", tt.to, r.By, tt.rule)
			}
		})
	}
	var list []string
	for _, tt := range cases {
		want := "NFQ041 10.244.1.77:8098 does not answer"
		if tt.want != "" {
			want = "NFQ063 " + fmt.Sprintf(tt.want, tt.rule[strings.Index(tt.rule, "-A "):])
		}
		e2etest.Eventually(t, e2etest.Timeout, "the finding "+want, func() bool {
			list = findings()
			return slices.ContainsFunc(list, func(f string) bool { return strings.HasPrefix(f, want) })
		})
	}
	drops := 0
	for _, f := range list {
		switch {
		case strings.HasPrefix(f, "NFQ063 "):
			drops++
		case strings.HasPrefix(f, "NFQ041 ") && !strings.Contains(f, "10.244.1.77"), strings.HasPrefix(f, "NFQ061 "):
			t.Errorf("finding %s", f)
		}
	}
	if drops != 5 {
		t.Errorf("%d findings about rules, want 5, one for each that drops: %q", drops, list)
	}
}

// openFindings serves the flow API of the lab, and returns its findings, code and text.
func openFindings(c *e2etest.Cluster) func() []string {
	c.T.Helper()
	c.ServeFlows()
	client, err := remote.NewClient(c.FlowAPI.URL, remote.ClientOptions{Token: c.FlowAPI.Token})
	if err != nil {
		c.T.Fatal(err)
	}
	return func() (list []string) {
		c.T.Helper()
		found, err := viewapi.Client{Client: client}.Findings(c.T.Context())
		if err != nil {
			c.T.Fatal(err)
		}
		for _, f := range found.Findings {
			if f.Code == diagnose.HostDropsFlows && (f.Do == "" || !strings.HasPrefix(f.Object, "Node ")) {
				c.T.Errorf("no remedy or no object: %+v", f)
			}
			list = append(list, string(f.Code)+" "+f.Text)
		}
		return list
	}
}
