package kubechains_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/kubesave"
)

// recordings has the rules that kube-proxy 1.36.3 wrote for the objects there, on a node
// with nfacct, as TestRealKubeProxy records them.
const recordings = "testdata/kube-proxy-1.36.3"

// configuration is a way to configure kube-proxy.
type configuration struct {
	name   string
	flags  []string // kube-proxy's
	config servicetable.NodeConfig
	kernel kubechains.Kernel
}

func prefixes(texts ...string) (ps []netip.Prefix) {
	for _, s := range texts {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

// configurations are one for each setting that the rules depend on.
var configurations = func() []configuration {
	pods := prefixes("10.244.0.0/16", "fd00:10:244::/48")
	all := []configuration{
		{name: "default", config: servicetable.NodeConfig{ClusterCIDRs: pods, LocalhostNodePorts: true}},
		{name: "localhost-nodeports-off", flags: []string{"--iptables-localhost-nodeports=false"}, config: servicetable.NodeConfig{ClusterCIDRs: pods}},
		{
			name: "addresses-with-loopback", flags: []string{"--nodeport-addresses=127.0.0.0/8,172.20.0.0/16,fd00:172:20::/64"},
			config: servicetable.NodeConfig{ClusterCIDRs: pods, LocalhostNodePorts: true, NodePortAddresses: prefixes("127.0.0.0/8", "172.20.0.0/16", "fd00:172:20::/64")},
		},
		{
			name: "addresses-with-loopback-off", flags: []string{"--nodeport-addresses=127.0.0.0/8,172.20.0.0/16,::1/128,fd00:172:20::/64", "--iptables-localhost-nodeports=false"},
			config: servicetable.NodeConfig{ClusterCIDRs: pods, NodePortAddresses: prefixes("127.0.0.0/8", "172.20.0.0/16", "::1/128", "fd00:172:20::/64")},
		},
		{
			name: "addresses-without-loopback", flags: []string{"--nodeport-addresses=172.20.0.0/16"},
			config: servicetable.NodeConfig{ClusterCIDRs: pods, LocalhostNodePorts: true, NodePortAddresses: prefixes("172.20.0.0/16")},
		},
		{
			name: "addresses-of-ipv6", flags: []string{"--nodeport-addresses=fd00:172:20::/64"},
			config: servicetable.NodeConfig{ClusterCIDRs: pods, LocalhostNodePorts: true, NodePortAddresses: prefixes("fd00:172:20::/64")},
		},
		{
			name: "addresses-primary", flags: []string{"--nodeport-addresses=primary"},
			config: servicetable.NodeConfig{ClusterCIDRs: pods, LocalhostNodePorts: true, PrimaryNodePorts: true},
		},
		{
			name: "masquerade-all", flags: []string{"--masquerade-all", "--iptables-masquerade-bit=10"},
			config: servicetable.NodeConfig{ClusterCIDRs: pods, LocalhostNodePorts: true, MasqueradeAll: true, MasqueradeMark: 1 << 10},
		},
		{name: "no-detection", config: servicetable.NodeConfig{LocalhostNodePorts: true}},
		{
			name: "detect-node-cidr", flags: []string{"--detect-local-mode=NodeCIDR"},
			config: servicetable.NodeConfig{Mode: servicetable.NodeCIDR, LocalhostNodePorts: true},
		},
		{
			name: "detect-bridge", flags: []string{"--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0"},
			config: servicetable.NodeConfig{Mode: servicetable.BridgeInterface, Bridge: "cni0", LocalhostNodePorts: true},
		},
		{
			name: "detect-interface-prefix", flags: []string{"--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"},
			config: servicetable.NodeConfig{Mode: servicetable.InterfaceNamePrefix, InterfacePrefix: "veth", LocalhostNodePorts: true},
		},
		{
			name: "tcp-be-liberal", flags: []string{"--conntrack-tcp-be-liberal"},
			config: servicetable.NodeConfig{ClusterCIDRs: pods, LocalhostNodePorts: true}, kernel: kubechains.Kernel{TCPLiberal: true},
		},
	}
	for i := range all {
		c := &all[i]
		c.config.Name = "node-a"
		c.kernel.NFAcct = true
		if len(c.config.ClusterCIDRs) > 0 {
			c.flags = append(c.flags, "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48")
		}
	}
	return all
}()

func (c *configuration) file() string { return filepath.Join(recordings, c.name+".rules") }

func (c *configuration) table(t *testing.T) *decision.Table {
	t.Helper()
	table, _ := servicetable.Table(&recorded(t).Objects, c.config)
	return table
}

// recorded are the objects that the rules of testdata are for.
func recorded(t *testing.T) *manifest.Objects {
	t.Helper()
	objects, err := manifest.Load([]string{filepath.Join(recordings, "objects.yaml")})
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// TestRecordedKubeProxy: rendered rules are those that the real kube-proxy wrote, word for word.
func TestRecordedKubeProxy(t *testing.T) {
	for _, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			text, err := os.ReadFile(c.file())
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range differences(string(text), c.rendered(t)) {
				t.Error(p)
			}
		})
	}
}

// TestRecordedThereAndBack: what the real kube-proxy wrote has no problems, and the objects that are
// read out of it are rendered to the same rules.
func TestRecordedThereAndBack(t *testing.T) {
	for _, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			text, err := os.ReadFile(c.file())
			if err != nil {
				t.Fatal(err)
			}
			second := strings.LastIndex(string(text), "*mangle")
			var nodes []*audit.Node
			for i, part := range []string{string(text[:second]), string(text[second:])} {
				dump, err := iptables.Parse(strings.NewReader(part), iptables.Options{Family: []iptables.Family{iptables.IPv4, iptables.IPv6}[i]})
				if err != nil {
					t.Fatal(err)
				}
				n := audit.Read(dump)
				for _, p := range n.Problems {
					t.Errorf("%s: %s", n.Family, p)
				}
				nodes = append(nodes, n)
			}
			if v4 := nodes[0].Contested; len(v4) != 1 || !strings.Contains(v4[0].Text, "198.51.100.7 port 80 (TCP) is claimed by default/claim-") {
				t.Errorf("contested: %v", v4)
			}
			path := filepath.Join(t.TempDir(), "objects.yaml")
			var b bytes.Buffer
			if err := errors.Join(audit.NewObjects("node-a", nodes...).WriteYAML(&b), os.WriteFile(path, b.Bytes(), 0o600)); err != nil {
				t.Fatal(err)
			}
			objects, err := manifest.Load([]string{path})
			if err != nil {
				t.Fatalf("%v\nin\n%s", err, b.String())
			}
			again := configuration{config: audit.Config("node-a", nodes...), kernel: audit.Kernel(nodes...)}
			table, _ := servicetable.Table(&objects.Objects, again.config)
			for _, p := range differences(string(text), again.renderedOf(t, table)) {
				t.Error(p)
			}
		})
	}
}

var counters = regexp.MustCompile(` \[\d+:\d+\]\n$`)

// asRecorded is what iptables-save prints without what differs each time.
func asRecorded(saved string) string {
	var b strings.Builder
	for line := range strings.Lines(saved) {
		if !strings.HasPrefix(line, "#") {
			b.WriteString(counters.ReplaceAllString(line, " [0:0]\n"))
		}
	}
	return b.String()
}

// rendered are the rules of both families, IPv4 first.
func (c *configuration) rendered(t *testing.T) string {
	t.Helper()
	return c.renderedOf(t, c.table(t))
}

func (c *configuration) renderedOf(t *testing.T, table *decision.Table) string {
	t.Helper()
	var b bytes.Buffer
	for _, f := range []decision.Family{decision.IPv4, decision.IPv6} {
		if err := kubesave.Render(&b, kubechains.Rules(table, f, c.kernel)); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// differences are those between kube-proxy's rules and those rendered, chain by chain.
func differences(saved, rendered string) []string {
	var problems []string
	want, have := byChain(saved), byChain(rendered)
	for key := range want {
		if _, ok := have[key]; !ok {
			have[key] = nil
		}
	}
	for key, rules := range have {
		if !slices.Equal(rules, want[key]) {
			problems = append(problems, fmt.Sprintf("%s: kube-proxy writes\n  %s\nrendered is\n  %s", key, strings.Join(want[key], "\n  "), strings.Join(rules, "\n  ")))
		}
	}
	slices.Sort(problems)
	return problems
}

// byChain gives the rules of each chain, by family, table and chain. The first line of a chain is
// its declaration. Where kube-proxy's order is that of a map, they are sorted, all but the last.
func byChain(text string) map[string][]string {
	rules := make(map[string][]string)
	table, family := "", map[string]int{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
			family[table]++
		case strings.HasPrefix(line, ":"), strings.HasPrefix(line, "-A "):
			chain := strings.Fields(strings.TrimLeft(line, ":-"))[0]
			if strings.HasPrefix(line, "-A ") {
				chain = strings.Fields(line)[1]
			}
			key := fmt.Sprint([]string{"", "IPv4 ", "IPv6 "}[family[table]], table, " ", chain)
			rules[key] = append(rules[key], line)
		}
	}
	for key, lines := range rules {
		switch key[len("IPv4 "):] {
		case "nat KUBE-SERVICES", "nat KUBE-NODEPORTS", "filter KUBE-SERVICES", "filter KUBE-NODEPORTS", "filter KUBE-EXTERNAL-SERVICES", "filter KUBE-PROXY-FIREWALL":
			slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(orderless(a), orderless(b)) })
		}
	}
	return rules
}

// orderless is a text by which rules in kube-proxy's random order are sorted: those with a fixed
// place get one.
func orderless(rule string) string {
	switch {
	case strings.HasPrefix(rule, ":"):
		return ""
	case strings.Contains(rule, "must be the last rule"):
		return "~" + rule
	}
	return rule
}
