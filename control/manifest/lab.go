package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/controllers"
	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/balance/script"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// LabKind is the kind of the first document of a lab file.
const LabKind = "Lab"

var labType, formerLabType = typeName{APIVersion, LabKind}, typeName{formerAPIVersion, LabKind}

// Lab is the first document of a lab file. What it means is in package deploy/lab.
type Lab struct {
	LabMetadata  `json:"metadata"`
	ClusterCIDRs []netip.Prefix `json:"clusterCIDRs"` // of the pods
	// ServiceCIDRs are where Services without a ClusterIP get one; the default is 10.96.0.0/16, and a
	// lab with IPv6 nodes also has fd00:10:96::/112.
	ServiceCIDRs []netip.Prefix  `json:"serviceCIDRs"`
	Networks     []LabNetwork    `json:"networks"`
	Nodes        []LabNode       `json:"nodes"`
	Pods         []labapi.Pod    `json:"pods"` // with those of the deployments
	Deployments  []LabDeployment `json:"deployments"`
	Clients      []LabClient     `json:"clients"`
	Proxy        LabProxy        `json:"proxy"`
	// Objects are files and directories with Kubernetes objects besides the lab
	// file, as it names them: relative to its directory.
	Objects []string `json:"objects"`
}

// LabMetadata has the name of a lab.
type LabMetadata struct {
	Name string `json:"name"`
}

// LabNetwork is a subnet of nodes and clients. One router joins all of them: it has a
// port on each.
type LabNetwork struct {
	CIDR    netip.Prefix `json:"cidr"`
	Gateway netip.Addr   `json:"gateway"` // the router's address
}

// The kinds of built-in servers.
const (
	AnswerServer = labapi.AnswerServer
	DNSServer    = labapi.DNSServer
)

// LabNode is a machine of the cluster; it runs a daemon. It has at most one address
// of each family, each in one of the networks.
type LabNode struct {
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels"`
	Addresses []netip.Addr      `json:"addresses"`
	// PodCIDRs are the prefixes of its pods: at most one prefix per family, whose first
	// address is the pods' gateway, and any number of single addresses, whose gateway is
	// the node's own address.
	PodCIDRs []netip.Prefix `json:"podCIDRs"`
	Ports    []labapi.Port  `json:"ports"` // served on the node's own addresses
	// Proxy is the node's service proxy: "nfqproxy", the default, KubeProxy, KubeProxyIPTables or NoProxy.
	Proxy string `json:"proxy"`
	// KubeProxyMode is the mode of KubeProxy: "iptables", the default, or "nftables".
	KubeProxyMode string `json:"kubeProxyMode"`
}

// The service proxies of nodes besides nfqproxy: the program kube-proxy, the rules of its iptables mode without the
// program, and none at all.
const (
	KubeProxy         = "kube-proxy"
	KubeProxyIPTables = "kube-proxy-iptables"
	NoProxy           = "none"
)

// KubeProxyModes are the modes of KubeProxy in a lab.
var KubeProxyModes = []string{"iptables", "nftables"}

// HasProgram reports whether the node's proxy is a program.
func (n *LabNode) HasProgram() bool { return n.HasDaemon() || n.Proxy == KubeProxy }

// HasDaemon reports whether the node's proxy is nfqproxy.
func (n *LabNode) HasDaemon() bool { return n.Proxy == "" || n.Proxy == "nfqproxy" }

// LabClient is a machine outside the cluster. It has no routes to pods and service addresses,
// unless RoutesToPods is set: then it reaches pods through their nodes.
type LabClient struct {
	Name         string        `json:"name"`
	Addresses    []netip.Addr  `json:"addresses"`
	Ports        []labapi.Port `json:"ports"`
	RoutesToPods bool          `json:"routesToPods"`
}

// LabProxy are options of the nodes' daemons.
type LabProxy struct {
	// Seed is nil for a random one. Numbers beyond 2^53 are not exact in every YAML and JSON parser.
	Seed          *uint64 `json:"seed" range:"0-9007199254740992"`
	Queues        uint16  `json:"queues" range:"1-256"` // 0: the daemon's default
	MasqueradeAll bool    `json:"masqueradeAll"`
	// NoHairpinMasquerade breaks the flows of pods to themselves, to show why they are
	// masqueraded.
	NoHairpinMasquerade Negated        `json:"masqueradeHairpin"`
	NodePortAddresses   []netip.Prefix `json:"nodePortAddresses"`
	// Balance is the algorithm of Services without the annotation nfqproxy.io/balance; empty: random.
	Balance Algorithm `json:"balance"`
	// Shadow are algorithms that decide beside, without effect.
	Shadow []Algorithm `json:"shadow"`
	// Scripts are files with policies in Starlark, which Balance and the annotation may name; the file names them
	// relative to its directory.
	Scripts []string `json:"scripts"`
	// SecondChance sends connections that are refused or not answered to another endpoint.
	SecondChance bool `json:"secondChance"`
}

// Algorithm is a balancing algorithm, as [balance.Registry.Canonical] returns it; empty: random. A script is one of
// LabProxy.Scripts.
type Algorithm string

// String is how operators write it.
func (a Algorithm) String() string { return balance.Name(string(a)) }

// Negated is a bool that has its opposite in the file.
type Negated bool

var negated, labServer = reflect.TypeFor[Negated](), reflect.TypeFor[labapi.Server]()

// format is how a type is read from text.
type format struct {
	want string
	read func(string) (any, error)
}

// formats are the types in a lab with a text form.
var formats = map[reflect.Type]format{
	reflect.TypeFor[Algorithm]():         {"a balancing algorithm", readAlgorithm},
	reflect.TypeFor[netip.Addr]():        {"an IP address", func(s string) (any, error) { return kubeaddr.Parse(s) }},
	reflect.TypeFor[netip.Prefix]():      {"a CIDR", readCIDR},
	reflect.TypeFor[decision.Protocol](): {"a protocol", readProtocol},
	labServer:                            {"a kind of server", readServer},
}

func readAlgorithm(s string) (any, error) {
	r := balance.NewRegistry()
	r.Add(script.Entry(func(string) (balance.Algorithm, error) { return balance.Algorithm{}, nil })) // completeLab knows the scripts
	canonical, err := r.Canonical(s)
	return Algorithm(canonical), err
}

func readCIDR(s string) (any, error) {
	p, err := kubeaddr.ParsePrefix(s)
	if err != nil {
		return nil, fmt.Errorf("%w (address/bits)", err)
	}
	address, _, _ := strings.Cut(s, "/")
	if a, err := kubeaddr.Parse(address); err != nil || a != p.Addr() {
		return nil, fmt.Errorf("%s has bits of a host; the CIDR is %s", s, p)
	}
	return p, nil
}

func readProtocol(s string) (any, error) {
	switch s {
	case "TCP":
		return decision.TCP, nil
	case "UDP":
		return decision.UDP, nil
	}
	return nil, fmt.Errorf("%s: the built-in server supports TCP and UDP", s)
}

func readServer(s string) (any, error) {
	switch s {
	case "answer":
		return AnswerServer, nil
	case string(DNSServer):
		return DNSServer, nil
	}
	return nil, fmt.Errorf("%q: want answer or dns", s)
}

// ParseLab reads the first document of a lab file, and checks all that does not depend on
// more than one field. The error is an [Errors], without numbers of documents; name is the
// file's name in it.
func ParseLab(name string, data []byte) (*Lab, error) {
	var first document
	for first = range parse(name, data, math.MaxInt) {
		break
	}
	l, at := newLoader(), place{file: name, item: -1}
	m, _ := first.value.(map[string]any)
	version, _ := m["apiVersion"].(string)
	switch {
	case first.err != nil:
		l.fail(at, "", first.err)
	case !IsAPIVersion(version) || m["kind"] != LabKind:
		l.fail(at, "", fmt.Errorf("the first document must have \"apiVersion: %s\" and \"kind: %s\"", APIVersion, LabKind))
	default:
		l.lab(at, m, first.duplicates)
	}
	return l.objects.Lab, l.errs.orNil()
}

// lab takes the nodes and pods of a lab for Nodes and Pods, and notes the files that it
// names.
func (l *loader) lab(at place, m map[string]any, duplicates []string) {
	before := len(l.errs)
	for _, path := range duplicates {
		l.fail(at, path, errTwice)
	}
	if l.labAt != nil {
		l.fail(at, "", fmt.Errorf("a second Lab: the first is in %s", *l.labAt))
		return
	}
	l.labAt = &at
	fields := maps.Clone(m)
	delete(fields, "apiVersion")
	delete(fields, "kind")
	lab := new(Lab)
	l.decoder.listFields, l.decoder.respelled = true, nil
	l.failAll(at, l.decoder.decode(fields, lab))
	l.decoder.listFields = false
	if len(l.errs) == before {
		l.completeLab(at, lab)
	}
	if len(l.errs) > before {
		return
	}
	l.objects.Lab = lab
	if w := l.decoder.respelled.Warning("Lab"); w != "" {
		l.objects.Warnings = append(l.objects.Warnings, w)
	}
	for i, s := range lab.Proxy.Scripts {
		lab.Proxy.Scripts[i] = at.beside(s)
	}
	for _, o := range lab.Objects {
		l.further = append(l.further, at.beside(o))
	}
}

// beside is a path that is relative to the directory of the file.
func (at place) beside(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(at.file), path)
}

// checkScripts reports scripts that cannot be told apart by their names, and an algorithm that is none of them.
func (l *loader) checkScripts(at place, p *LabProxy) {
	known := make(map[string]bool)
	for i, path := range p.Scripts {
		name := filepath.Base(path)
		if known[name] {
			l.fail(at, fmt.Sprintf("proxy.scripts[%d]", i), fmt.Errorf("a second file %s: want different file names", name))
		}
		known[name] = true
	}
	check := func(field string, a Algorithm) {
		if _, path := script.Path(string(a)); path != "" && !known[path] {
			l.fail(at, field, fmt.Errorf("script %s is not in proxy.scripts", path))
		}
	}
	check("proxy.balance", p.Balance)
	for i, a := range p.Shadow {
		check(fmt.Sprintf("proxy.shadow[%d]", i), a)
	}
}

// completeLab fills in the defaults, and reports hosts without a name and ports without a number.
func (l *loader) completeLab(at place, lab *Lab) {
	missing := errors.New("missing")
	probe := func(path string, p *corev1.Probe, ports []labapi.Port) {
		var v validation
		v.probe(path+".readinessProbe", p, ports)
		l.failAll(at, v.errs)
	}
	complete := func(path, name string, ports []labapi.Port) {
		if name == "" {
			l.fail(at, path+".name", missing)
		}
		for i := range ports {
			if ports[i].Port == 0 {
				l.fail(at, fmt.Sprintf("%s.ports[%d].port", path, i), missing)
			}
			ports[i].Protocol = cmp.Or(ports[i].Protocol, decision.TCP)
		}
	}
	for i := range lab.Nodes {
		complete(fmt.Sprintf("nodes[%d]", i), lab.Nodes[i].Name, lab.Nodes[i].Ports)
	}
	for i := range lab.Pods {
		p := &lab.Pods[i]
		p.Namespace = cmp.Or(p.Namespace, "default")
		complete(fmt.Sprintf("pods[%d]", i), p.Name, p.Ports)
		probe(fmt.Sprintf("pods[%d]", i), p.ReadinessProbe, p.Ports)
	}
	for i := range lab.Clients {
		complete(fmt.Sprintf("clients[%d]", i), lab.Clients[i].Name, lab.Clients[i].Ports)
	}
	l.checkScripts(at, &lab.Proxy)
	given := NewGiven(lab)
	for i := range lab.Deployments {
		d := &lab.Deployments[i]
		d.Namespace = cmp.Or(d.Namespace, "default")
		complete(fmt.Sprintf("deployments[%d]", i), d.Name, d.Ports)
		probe(fmt.Sprintf("deployments[%d]", i), d.ReadinessProbe, d.Ports)
		if d.Labels == nil {
			d.Labels = map[string]string{"app": d.Name}
		}
		if d.Replicas == nil {
			d.Replicas = new(uint16(1))
		}
		pods, err := lab.PodsOf(d, Placement{Pods: lab.Pods, Given: given})
		if err != nil {
			l.fail(at, fmt.Sprintf("deployments[%d]", i), err)
		}
		lab.Pods = append(lab.Pods, pods...)
	}
}

// ServicePrefixes are the ServiceCIDRs or, without them, those of kubeadm and kind for the families of the nodes.
func (l *Lab) ServicePrefixes() (all []netip.Prefix) {
	if len(l.ServiceCIDRs) > 0 {
		return l.ServiceCIDRs
	}
	for _, c := range []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")} {
		if slices.ContainsFunc(l.Nodes, func(n LabNode) bool {
			return slices.ContainsFunc(n.Addresses, func(a netip.Addr) bool { return a.Is4() == c.Addr().Is4() })
		}) {
			all = append(all, c)
		}
	}
	return all
}

// addLab adds the nodes and pods of the lab to the objects. An object of the same kind and
// name goes before, but for addresses that it lacks: a lab that was made of objects makes
// up what these lack.
func (l *loader) addLab() {
	if l.objects.Lab == nil {
		return
	}
	nodes := make(map[string]*corev1.Node)
	for _, n := range l.objects.Nodes {
		nodes[n.Name] = n
	}
	for _, h := range l.objects.Lab.Nodes {
		n, ok := nodes[h.Name]
		if !ok {
			n = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.Name, Labels: h.Labels}}
			l.objects.Nodes = append(l.objects.Nodes, n)
		}
		if n.Spec.PodCIDR == "" && len(n.Spec.PodCIDRs) == 0 {
			for _, c := range h.PodCIDRs {
				n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, c.String())
			}
		}
		for _, a := range h.Addresses {
			if !hasNodeAddress(n, a) {
				n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
			}
		}
	}
	pods := make(map[string]*corev1.Pod) // by full name
	for _, p := range l.objects.Pods {
		pods[p.Namespace+"/"+p.Name] = p
	}
	for i := range l.objects.Lab.Pods {
		h := &l.objects.Lab.Pods[i]
		p, ok := pods[h.FullName()]
		if !ok {
			p = PodObject(h)
			l.objects.Pods = append(l.objects.Pods, p)
		}
		if p.Status.PodIP == "" && len(p.Status.PodIPs) == 0 && len(h.Addresses) > 0 {
			p.Status.PodIP = h.Addresses[0].String()
			for _, a := range h.Addresses {
				p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a.String()})
			}
		}
	}
}

// control does what a control plane does, if there is a lab: other objects are from one.
func (l *loader) control() {
	lab, o := l.objects.Lab, l.objects
	if lab == nil || l.written {
		return
	}
	if err := controllers.Allocate(o.Services, lab.ServicePrefixes()); err != nil {
		l.fail(*l.labAt, "", err)
		return
	}
	slices, err := controllers.NewEndpointSlices().Sync(o.Services, o.Pods, o.Nodes, o.EndpointSlices, time.Time{})
	if err != nil {
		l.fail(*l.labAt, "", err)
	}
	o.EndpointSlices = append(o.EndpointSlices, slices...)
}

// hasNodeAddress reports whether a node has an address of the family of one.
func hasNodeAddress(n *corev1.Node, a netip.Addr) bool {
	return slices.ContainsFunc(n.Status.Addresses, func(b corev1.NodeAddress) bool {
		if b.Type != corev1.NodeInternalIP && b.Type != corev1.NodeExternalIP {
			return false
		}
		other, err := kubeaddr.Parse(b.Address)
		return err == nil && familyOf(other) == familyOf(a)
	})
}
