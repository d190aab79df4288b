package kubechains_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/kubesave"
)

func init() { kubechains.Render = kubesave.Render }

// published is a node whose rules were published, and the objects of its cluster.
type published struct {
	rules   string // in testdata
	objects string // in control/testdata
	node    string
	// earlier turns the objects into those of an earlier time.
	earlier     func(*manifest.Objects)
	differences []difference
}

// difference is one between a dump and what kube-proxy writes today.
type difference struct {
	why string
	// gone are lines of the dump that are not written today, added those that are
	// written but not in the dump.
	gone, added []string
	// reworded turns a line of today into the one of then; nil: the same.
	reworded func(string) string
}

// kubelets are chains that the kubelet declares, not kube-proxy.
var kubelets = []difference{
	{why: "the kubelet sees by its canaries that rules were flushed", gone: []string{
		"mangle :KUBE-KUBELET-CANARY", "filter :KUBE-KUBELET-CANARY", "nat :KUBE-KUBELET-CANARY",
	}},
}

// kind129 are the exceptions for KinD 1.29: only what the kubelet makes.
var kind129 = append([]difference{
	{why: "it shows other programs which of the two iptables the kubelet uses", gone: []string{"mangle :KUBE-IPTABLES-HINT"}},
}, kubelets...)

var arrow = regexp.MustCompile(` -> [0-9.]+:[0-9]+"`)

// kubeadm122 are the differences between 1.22 and today.
var kubeadm122 = append([]difference{
	{
		why:      "the comments of a service chain did not name the endpoint yet",
		reworded: func(line string) string { return arrow.ReplaceAllString(line, `"`) },
	},
	{
		why: "the kubelet made KUBE-MARK-DROP, and dropped what had its mark; kube-proxy drops in the filter table today",
		gone: []string{
			"nat :KUBE-MARK-DROP",
			"nat -A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000",
			`filter -A KUBE-FIREWALL -m comment --comment "kubernetes firewall for dropping marked packets" -m mark --mark 0x8000/0x8000 -j DROP`,
		},
	},
	{
		why: "load balancers' source ranges had no chain in the filter table yet",
		added: []string{
			"filter :KUBE-PROXY-FIREWALL",
			`filter -A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL`,
			`filter -A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL`,
			`filter -A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL`,
		},
	},
	{
		why: "KUBE-FORWARD had one rule for each direction that the cluster CIDR had once distinguished; today there is one",
		gone: []string{
			`filter -A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack pod source rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`,
			`filter -A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack pod destination rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`,
		},
		added: []string{
			`filter -A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`,
		},
	},
	// That policy Cluster had no KUBE-EXT chain and policy Local one called KUBE-XLB
	// does not show: the cluster has no service that can be reached from outside.
}, kubelets...)

// beforeTheService is KinD's cluster before default/my-nginx-service was made. Docker
// had given the control plane another address.
func beforeTheService(objects *manifest.Objects) {
	const service = "my-nginx-service"
	objects.Services = slices.DeleteFunc(objects.Services, func(s *corev1.Service) bool { return s.Name == service })
	objects.EndpointSlices = slices.DeleteFunc(objects.EndpointSlices, func(s *discoveryv1.EndpointSlice) bool {
		return s.Labels[discoveryv1.LabelServiceName] == service
	})
	for _, s := range objects.EndpointSlices {
		if s.Name == "kubernetes" {
			s.Endpoints[0].Addresses[0] = "172.20.0.3"
		}
	}
}

var nodes = []published{
	{"kind-1.29-worker1-before", "kind-1.29-worker1-after", "kind-worker", beforeTheService, kind129},
	{"kind-1.29-worker1-after", "kind-1.29-worker1-after", "kind-worker", nil, kind129},
	{"kind-1.29-worker2-before", "kind-1.29-worker1-after", "kind-worker2", beforeTheService, kind129},
	{"kind-1.29-worker2-after", "kind-1.29-worker1-after", "kind-worker2", nil, kind129},
	{"kubeadm-1.22-flannel-node1", "kubeadm-1.22-flannel-node1", "node1", nil, kubeadm122},
}

func (n *published) table(t *testing.T) *decision.Table {
	t.Helper()
	objects, err := manifest.Load([]string{filepath.Join("../../control/servicetable/testdata", n.objects+".yaml")})
	if err != nil {
		t.Fatal(err)
	}
	if n.earlier != nil {
		n.earlier(objects)
	}
	table, warnings := servicetable.Table(&objects.Objects, servicetable.NodeConfig{
		Name: n.node, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, LocalhostNodePorts: true,
	})
	if len(warnings) > 0 {
		t.Fatalf("warnings: %q", warnings)
	}
	return table
}

// dump is the text of an iptables-save as the lines that have to do with KUBE-
// chains, the table before each: "nat -A KUBE-MARK-MASQ ...", "nat :KUBE-SERVICES".
func dump(text string) (lines []string) {
	table := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, ":KUBE-"):
			lines = append(lines, table+" "+strings.Fields(line)[0])
		case strings.HasPrefix(line, "-A KUBE-"), strings.Contains(line, "-j KUBE-"):
			lines = append(lines, table+" "+line)
		}
	}
	return lines
}

func (n *published) dump(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", n.rules+".rules"))
	if err != nil {
		t.Fatal(err)
	}
	return dump(string(text))
}

// asThen turns lines of today into those of the dump's time. Every difference has to
// make one, or it is none.
func (n *published) asThen(t *testing.T, today []string) []string {
	t.Helper()
	then := slices.Clone(today)
	for _, d := range n.differences {
		before := slices.Clone(then)
		at := len(then)
		for _, line := range d.added {
			i := slices.Index(then, line)
			if i < 0 {
				t.Errorf("%s: this is not written today: %s", d.why, line)
				continue
			}
			then = slices.Delete(then, i, i+1)
			at = min(at, i)
		}
		// What was there instead stood in the place of what is there today.
		then = slices.Insert(then, min(at, len(then)), d.gone...)
		if d.reworded != nil {
			for i := range then {
				then[i] = d.reworded(then[i])
			}
		}
		if slices.Equal(before, then) {
			t.Errorf("%q makes no difference", d.why)
		}
	}
	return then
}

// inOrder groups rules by table and chain, in their order.
func inOrder(lines []string) map[string][]string {
	chains := make(map[string][]string)
	for _, line := range lines {
		table, rest, _ := strings.Cut(line, " ")
		if rule, ok := strings.CutPrefix(rest, "-A "); ok {
			chain, _, _ := strings.Cut(rule, " ")
			chains[table+" "+chain] = append(chains[table+" "+chain], line)
		}
	}
	return chains
}

// TestPublishedNodesWordForWord: what is rendered for the objects behind published
// dumps is what the dumps have.
func TestPublishedNodesWordForWord(t *testing.T) {
	for _, n := range nodes {
		t.Run(n.rules, func(t *testing.T) { n.compare(t, n.table(t)) })
	}
}

// TestPublishedNodesThereAndBack: so is what is rendered for the objects that are read out
// of the dumps, which are whole here, with the rules of others.
func TestPublishedNodesThereAndBack(t *testing.T) {
	for _, n := range nodes {
		t.Run(n.rules, func(t *testing.T) {
			file, err := os.Open(filepath.Join("../paper/iptables/testdata", n.rules+".rules"))
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			rules, err := iptables.Parse(file, iptables.Options{})
			if err != nil {
				t.Fatal(err)
			}
			node := audit.Read(rules)
			path := filepath.Join(t.TempDir(), "objects.yaml")
			var b bytes.Buffer
			if err := errors.Join(audit.NewObjects("", node).WriteYAML(&b), os.WriteFile(path, b.Bytes(), 0o600)); err != nil {
				t.Fatal(err)
			}
			objects, err := manifest.Load([]string{path})
			if err != nil {
				t.Fatalf("%v\nin\n%s", err, b.String())
			}
			table, warnings := servicetable.Table(&objects.Objects, audit.Config("", node))
			if len(warnings) > 0 {
				t.Fatalf("warnings: %q", warnings)
			}
			n.compare(t, table)
		})
	}
}

// compare renders the table, and compares the rules with those of the dump.
func (n *published) compare(t *testing.T, table *decision.Table) {
	t.Helper()
	var b bytes.Buffer
	if err := kubesave.Render(&b, kubechains.Rules(table, decision.IPv4, kubechains.Kernel{})); err != nil {
		t.Fatal(err)
	}
	want, got := n.dump(t), n.asThen(t, dump(b.String()))
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("not rendered: %s", line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("not in the dump: %s", line)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d lines, the dump has %d: some come twice", len(got), len(want))
	}
	rendered := inOrder(got)
	for chain, rules := range inOrder(want) {
		switch chain {
		case "nat KUBE-SERVICES", "nat KUBE-NODEPORTS", "filter KUBE-SERVICES", "filter KUBE-NODEPORTS":
			// kube-proxy ranges over a map. Only the jump to the node ports has its place.
			if last := rules[len(rules)-1]; rendered[chain][len(rules)-1] != last && strings.Contains(last, "must be the last rule") {
				t.Errorf("%s ends with %s", chain, rendered[chain][len(rules)-1])
			}
		case "filter KUBE-FIREWALL":
			// Of the rules of 1.22 the kubelet wrote the first; the order has no effect.
		default:
			if !slices.Equal(rendered[chain], rules) {
				t.Errorf("%s in the order\n %s\nwant\n %s", chain, strings.Join(rendered[chain], "\n "), strings.Join(rules, "\n "))
			}
		}
	}
}

// TestWalksAreThoseOfPublishedNodes: every rule a packet meets is one of the dump's,
// and packets to all services meet all rules of the services' chains.
func TestWalksAreThoseOfPublishedNodes(t *testing.T) {
	for _, n := range nodes {
		t.Run(n.rules, func(t *testing.T) {
			table, want := n.table(t), n.dump(t)
			met := make(map[string]bool)
			for _, p := range packets(table) {
				for seed := range uint64(20) {
					d := decision.Decide(table, &p, rand.New(rand.NewPCG(seed, 0)), nil, nil)
					for _, s := range kubechains.Walk(table, &p, &d) {
						if s.Rule == "" {
							continue // nothing matched: no rule to show
						}
						line := string(s.Table) + " -A " + s.Chain + " " + s.Rule
						for _, difference := range n.differences {
							if difference.reworded != nil {
								line = difference.reworded(line)
							}
						}
						if !slices.Contains(want, line) {
							t.Fatalf("%s %s > %s meets a rule that the dump does not have: %s", p.Protocol, p.Source, p.Destination, line)
						}
						met[line] = true
					}
				}
			}
			for _, line := range want {
				if regexp.MustCompile(`^nat -A KUBE-(SVC|SEP|EXT|SERVICES|NODEPORTS)`).MatchString(line) && !met[line] {
					t.Errorf("no packet meets %s", line)
				}
			}
		})
	}
}

// packets are some to every service of the table, from every kind of place.
func packets(table *decision.Table) (packets []decision.Packet) {
	node := table.Node().IPs[0]
	outside := netip.MustParseAddr("192.0.2.10")
	// To no service, but to the node.
	packets = append(packets, decision.Packet{Protocol: decision.TCP, Source: netip.AddrPortFrom(outside, 40000), Destination: netip.AddrPortFrom(node, 22)})
	for _, s := range table.Services() {
		destinations := []netip.AddrPort{netip.AddrPortFrom(s.ClusterIP, s.Port)}
		if s.NodePort != 0 {
			destinations = append(destinations, netip.AddrPortFrom(node, s.NodePort))
		}
		sources := []netip.Addr{netip.MustParseAddr("10.244.7.7"), outside, node}
		for _, e := range s.Endpoints {
			sources = append(sources, e.AddrPort.Addr())
		}
		for _, dst := range destinations {
			for _, src := range sources {
				packets = append(packets, decision.Packet{
					Protocol: s.Protocol, Source: netip.AddrPortFrom(src, 40000), Destination: dst, Local: src == node,
				})
			}
		}
	}
	return packets
}
