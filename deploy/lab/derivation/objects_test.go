package derivation

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

var sameAddresses = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

// load reads objects from text.
func load(t testing.TB, text string) *manifest.Objects {
	t.Helper()
	path := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	objects, err := labfile.Load([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// The objects below, on one line each.
func nodeObject(name, ip, podCIDR string) string {
	spec := "{}"
	if podCIDR != "" {
		spec = fmt.Sprintf("{podCIDR: %s, podCIDRs: [%s]}", podCIDR, podCIDR)
	}
	return fmt.Sprintf("---\n{apiVersion: v1, kind: Node, metadata: {name: %s}, spec: %s, status: {addresses: [{type: InternalIP, address: %q}, {type: Hostname, address: %s}]}}\n", name, spec, ip, name)
}

func podObject(namespace, name, node, ip, more string) string {
	return fmt.Sprintf("---\n{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: %s}, spec: {nodeName: %s, containers: [{name: c, ports: [{containerPort: 80}, {containerPort: 90, protocol: UDP}, {containerPort: 99, protocol: SCTP}]}]%s}, status: {phase: Running, podIP: %s, podIPs: [{ip: %s}]}}\n",
		name, namespace, node, more, ip, ip)
}

func serviceObject(namespace, name, ip string, port int) string {
	return fmt.Sprintf("---\n{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: %s}, spec: {clusterIP: %q, clusterIPs: [%q], ports: [{port: %d, protocol: TCP}]}}\n", name, namespace, ip, ip, port)
}

func sliceObject(namespace, service string, port int, endpoints ...string) string {
	family := "IPv4"
	if strings.Contains(endpoints[0], ":") && strings.Contains(endpoints[0], "::") {
		family = "IPv6"
	}
	var list []string
	for _, e := range endpoints { // address, node, pod
		parts := strings.Split(e, " ")
		s := fmt.Sprintf("{addresses: [%q], conditions: {ready: true}", parts[0])
		if len(parts) > 1 && parts[1] != "-" {
			s += ", nodeName: " + parts[1]
		}
		if len(parts) > 2 {
			s += fmt.Sprintf(", targetRef: {kind: Pod, namespace: %s, name: %s}", namespace, parts[2])
		}
		list = append(list, s+"}")
	}
	return fmt.Sprintf("---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %s-%s, namespace: %s, labels: {kubernetes.io/service-name: %s}}, addressType: %s, ports: [{name: \"\", port: %d, protocol: TCP}], endpoints: [%s]}\n",
		service, strings.ToLower(family), namespace, service, family, port, strings.Join(list, ", "))
}

func tcp(ports ...uint16) (all []labapi.Port) {
	for _, p := range ports {
		all = append(all, labapi.Port{Port: p, Protocol: decision.TCP})
	}
	return all
}

func addrs(texts ...string) (all []netip.Addr) {
	for _, s := range texts {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, s := range texts {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

func networks(texts ...string) (all []labfile.Network) { // "cidr gateway"
	for _, s := range texts {
		c, g, _ := strings.Cut(s, " ")
		all = append(all, labfile.Network{CIDR: netip.MustParsePrefix(c), Gateway: netip.MustParseAddr(g)})
	}
	return all
}

// derived makes a lab of objects.
func derived(t testing.TB, objects string) *labfile.Lab {
	t.Helper()
	spec, _, err := Derive(load(t, objects), Options{Name: "derived"})
	if err != nil {
		t.Fatal(err)
	}
	if problems := spec.Validate(); len(problems) > 0 {
		t.Fatalf("not valid: %+v", problems)
	}
	return spec
}

var web = serviceObject("shop", "web", "10.96.0.20", 80)

// place is a server of a lab.
type place struct {
	who      string
	pod      bool
	at       netip.AddrPort
	protocol decision.Protocol
}

func places(s *labfile.Lab) []place {
	var all []place
	add := func(who string, pod bool, addresses []netip.Addr, ports []labapi.Port) {
		for _, a := range addresses {
			for _, p := range ports {
				all = append(all, place{who, pod, netip.AddrPortFrom(a, p.Port), p.Protocol})
			}
		}
	}
	for i := range s.Nodes {
		add(s.Nodes[i].Name, false, s.Nodes[i].Addresses, s.Nodes[i].Ports)
	}
	for i := range s.Pods {
		add(s.Pods[i].FullName(), true, s.Pods[i].Addresses, s.Pods[i].Ports)
	}
	for i := range s.Clients {
		add(s.Clients[i].Name, false, s.Clients[i].Addresses, s.Clients[i].Ports)
	}
	return all
}
