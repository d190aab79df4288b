package audit_test

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
)

// nftTables is what nft list ruleset prints of kube-proxy's tables for the cluster.
func (c *cluster) nftTables(t testing.TB) string {
	t.Helper()
	table, _ := servicetable.Table(c.objects, c.config)
	return nftText(t, table, nftproxy.Options{ServiceCIDRs: c.serviceCIDRs()})
}

func nftText(t testing.TB, table *decision.Table, o nftproxy.Options) string {
	t.Helper()
	var b bytes.Buffer
	if _, err := nftproxy.Tables(table, o, families...).WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func readRuleset(t testing.TB, text string) *nftables.Ruleset {
	t.Helper()
	r, err := nftables.Read("listing", strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v\nin\n%s", err, text)
	}
	return r
}

// TestObjectsGiveTheSameNFTables: the objects made of what was read, through YAML, give the tables that they were read from.
func TestObjectsGiveTheSameNFTables(t *testing.T) {
	dir := t.TempDir()
	for seed := range uint64(200) {
		c := newCluster(seed)
		c.separate()
		before := c.nftTables(t)
		nodes := audit.ReadNFTables(readRuleset(t, before))
		objects := audit.NewObjects("node-1", nodes...)
		again := throughYAML(t, dir, objects)
		config := audit.Config("node-1", nodes...)
		table, _ := servicetable.Table(again, config)
		after := nftText(t, table, nftproxy.Options{ServiceCIDRs: c.serviceCIDRs()})
		if diff := gocmp.Diff(strings.Split(inOrder(before), "\n"), strings.Split(inOrder(after), "\n")); diff != "" {
			t.Fatalf("seed %d: (-before +again)\n%s\nnotes %q\n%s", seed, diff, objects.Notes, before)
		}
		if !audit.CompareNFTables(readRuleset(t, before), readRuleset(t, after), false).Same() {
			t.Fatalf("seed %d: not the same", seed)
		}
		if objects.ServiceCIDR == nil || len(objects.ServiceCIDR.Spec.CIDRs) != 2 {
			t.Fatalf("seed %d: ServiceCIDR %+v", seed, objects.ServiceCIDR)
		}
	}
}

// TestServicesExplainNFTables: of two states of a node, the changes of services explain all differences of rules and elements.
func TestServicesExplainNFTables(t *testing.T) {
	kinds := make(map[audit.Change]int)
	for seed := range uint64(200) {
		before, after := newCluster(seed), newCluster(seed)
		after.objects.Services, after.objects.EndpointSlices = nil, nil
		for i := range before.objects.Services {
			after.service(i)
		}
		before.separate()
		after.separate()
		c := audit.CompareNFTables(readRuleset(t, before.nftTables(t)), readRuleset(t, after.nftTables(t)), false)
		if len(c.Tables) > 0 || len(c.Proxy) > 0 {
			t.Fatalf("seed %d: tables %+v, proxy %+v", seed, c.Tables, c.Proxy)
		}
		for i := range c.Services {
			kinds[c.Services[i].Change()]++
		}
	}
	for _, k := range []audit.Change{audit.Added, audit.Removed, audit.Changed} {
		if kinds[k] < 5 {
			t.Errorf("%d services are %s", kinds[k], k)
		}
	}
}

// shownByNFTables is what kube-proxy's tables show of a service port.
func shownByNFTables(table *decision.Table, s *decision.ServicePort) *audit.Service {
	d := shown(s, []*decision.ServicePort{s}, table.Node().IP(s.Family), nil)
	d.HealthCheckNodePort = 0
	d.ExternalIPs, d.LoadBalancerIPs, d.SourceRanges, d.NodeAllowed = slices.Clone(s.ExternalIPs), nil, nil, false
	if len(s.LoadBalancerIPs) > 0 && len(s.SourceRanges) > 0 {
		d.LoadBalancerIPs, d.SourceRanges, d.NodeAllowed = s.LoadBalancerIPs, s.SourceRanges, s.Allows(table.Node().IP(s.Family))
	} else {
		d.ExternalIPs = append(d.ExternalIPs, s.LoadBalancerIPs...)
	}
	if s.HealthCheckNodePort != 0 && !s.HasEndpoints || !s.External() {
		d.ExternalPolicy = decision.Cluster
	}
	// Since 1.36 a set has all endpoints that are on this node.
	here := make(map[netip.AddrPort]bool)
	for _, e := range s.Endpoints {
		here[e.AddrPort] = e.Local
	}
	for i := range d.Endpoints {
		e := &d.Endpoints[i]
		e.Chain, e.Locality = "", audit.OnAnotherNode
		if here[e.AddrPort] {
			e.Locality = audit.OnThisNode
		}
		if s.AffinitySeconds > 0 {
			e.Chain = string(nftproxy.EndpointChain) + nftproxy.EndpointBase(s.Name, s.Protocol, e.AddrPort)
		}
	}
	return d
}

// separate takes from the objects what kube-proxy decides at random in this mode: a destination that several services claim, and the
// hints of an endpoint that is in several slices. It adds what kube-proxy looks for.
func (c *cluster) separate() {
	slicesOf := make(map[string]int)
	for _, s := range c.objects.EndpointSlices {
		slicesOf[s.Labels[discoveryv1.LabelServiceName]+string(s.AddressType)]++
	}
	for _, s := range c.objects.EndpointSlices {
		for i := range s.Endpoints {
			if e := &s.Endpoints[i]; slicesOf[s.Labels[discoveryv1.LabelServiceName]+string(s.AddressType)] > 1 {
				e.Hints = nil
			}
		}
		seen := make(map[string]bool)
		s.Endpoints = slices.DeleteFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool {
			again := seen[e.Addresses[0]]
			seen[e.Addresses[0]] = true
			return again
		})
	}
	for i, s := range c.objects.Services {
		for _, ip := range s.Spec.ClusterIPs {
			s.Spec.IPFamilies = append(s.Spec.IPFamilies, corev1.IPFamily(decision.FamilyOf(netip.MustParseAddr(ip)).String()))
		}
		s.Spec.ExternalIPs = slices.DeleteFunc(s.Spec.ExternalIPs, func(ip string) bool {
			return ip == addr(decision.IPv4, externalNet, sharedAddress) || ip == addr(decision.IPv6, externalNet, sharedAddress)
		})
		for k := range s.Spec.Ports {
			if p := &s.Spec.Ports[k]; p.NodePort == sharedNodePort {
				p.NodePort = int32(29000 + 10*i + k)
			}
		}
	}
	for _, p := range c.serviceCIDRs() {
		c.objects.Context.ServiceCIDRs = append(c.objects.Context.ServiceCIDRs, &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: "cidr-" + decision.FamilyOf(p.Addr()).String()}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{p.String()}},
		})
	}
}

func (c *cluster) serviceCIDRs() []netip.Prefix {
	return []netip.Prefix{prefix(decision.IPv4, serviceNet), prefix(decision.IPv6, serviceNet)}
}

// inOrder puts the affinity sets and the chains of services in the order of their names: blocks of a listing with a slash in their
// first line.
func inOrder(listing string) string {
	var lines strings.Builder
	for table := range strings.SplitSeq(listing, "\n}\n") {
		blocks := strings.Split(table, "\n\n")
		for _, kind := range []string{"\tset ", "\tchain "} {
			var own []string
			var at []int
			for i, b := range blocks {
				if head, _, _ := strings.Cut(b, "\n"); strings.HasPrefix(head, kind) && strings.Contains(head, "/") {
					own, at = append(own, strings.TrimRight(b, "\n")), append(at, i)
				}
			}
			slices.Sort(own)
			for i, b := range own {
				blocks[at[i]] = b
			}
		}
		lines.WriteString(strings.Join(blocks, "\n\n"))
		lines.WriteString("\n}\n")
	}
	return lines.String()
}
