// Package labfile reads, validates and writes lab files: a Lab, with its nodes, pods and clients, and the Kubernetes objects beside it.
// [Parse] reads the Lab only. [Load] and its like read all, as package manifest does for objects, and [Of] is the Lab of what they
// return. All of them read a Lab in the same way, as an extension of package manifest.
package labfile

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/yamlfile"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/balance/script"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Kind is the kind of the first document of a lab file.
const Kind = "Lab"

// ClusterDNS is the Service whose endpoints serve the names of the cluster, at one of its ports.
var ClusterDNS = decision.ServiceName{Namespace: "kube-system", Name: "kube-dns"}

// Lab is the first document of a lab file. Package deploy/lab runs it.
type Lab struct {
	Metadata     `json:"metadata"`
	ClusterCIDRs []netip.Prefix `json:"clusterCIDRs"` // of the pods
	// ServiceCIDRs are where Services without a ClusterIP get one; the default is 10.96.0.0/16, and a
	// lab with IPv6 nodes also has fd00:10:96::/112.
	ServiceCIDRs []netip.Prefix  `json:"serviceCIDRs"`
	Networks     []Network       `json:"networks"`
	Nodes        []Node          `json:"nodes"`
	Pods         []labapi.Pod    `json:"pods"` // with those of the deployments
	Deployments  []Deployment    `json:"deployments"`
	Clients      []labapi.Client `json:"clients"`
	Proxy        Proxy           `json:"proxy"`
	// Objects are files and directories with Kubernetes objects besides the lab
	// file, as it names them: relative to its directory.
	Objects []string `json:"objects"`
}

// Metadata has the name of a lab.
type Metadata struct {
	Name string `json:"name"`
}

// Network is a subnet of nodes and clients. One router joins all of them: it has a
// port on each.
type Network struct {
	CIDR    netip.Prefix `json:"cidr"`
	Gateway netip.Addr   `json:"gateway"` // the router's address
}

// Node is a machine of the cluster; it runs a daemon. It has at most one address
// of each family, each in one of the networks.
type Node struct {
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels"`
	Addresses []netip.Addr      `json:"addresses"`
	// PodCIDRs are the prefixes of its pods: at most one prefix per family, whose first
	// address is the pods' gateway, and any number of single addresses, whose gateway is
	// the node's own address.
	PodCIDRs []netip.Prefix `json:"podCIDRs"`
	Ports    []labapi.Port  `json:"ports"` // served on the node's own addresses
	// Proxy is the node's service proxy: "nfqproxy", the default, or another one of Proxies.
	Proxy string `json:"proxy"`
	// KubeProxyMode is the mode of KubeProxy: "iptables", the default, or "nftables".
	KubeProxyMode string `json:"kubeProxyMode"`
	// Observe: nfqproxyd runs beside the node's proxy, which is another one, and only observes.
	Observe bool `json:"observe"`
	// Firewall are the rules of the node's other programs: commands of nft, loaded once.
	Firewall string `json:"firewall"`
}

// The service proxies of nodes besides nfqproxy: the program kube-proxy, the rules of its iptables or nftables mode without
// the program, and none at all.
const (
	KubeProxy         = "kube-proxy"
	KubeProxyIPTables = "kube-proxy-iptables"
	KubeProxyNFTables = "kube-proxy-nftables"
	NoProxy           = "none"
)

// Proxies are the service proxies that a node can have.
var Proxies = []string{"nfqproxy", KubeProxy, KubeProxyIPTables, KubeProxyNFTables, NoProxy}

// KubeProxyModes are the modes of KubeProxy in a lab.
var KubeProxyModes = []string{"iptables", "nftables"}

// HasProgram reports whether the node's proxy is a program.
func (n *Node) HasProgram() bool { return n.HasDaemon() || n.Proxy == KubeProxy }

// HasFlowAPI reports whether nfqproxyd runs on the node: as its proxy, or to observe another one.
func (n *Node) HasFlowAPI() bool { return n.HasDaemon() || n.Observe }

// HasDaemon reports whether the node's proxy is nfqproxy.
func (n *Node) HasDaemon() bool { return n.Proxy == "" || n.Proxy == "nfqproxy" }

// Proxy are options of the nodes' daemons.
type Proxy struct {
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
// Proxy.Scripts, without its directory.
type Algorithm string

// String is how operators write it.
func (a Algorithm) String() string { return balance.Name(string(a)) }

// Negated is a bool that has its opposite in the file.
type Negated bool

// formats are the types of a lab with a form of their own. Old spellings of addresses go to respelled.
func formats(respelled *kubeaddr.Respelled) map[reflect.Type]yamlfile.Format {
	noting := func(want string, read func(string) (any, error)) yamlfile.Format {
		f := yamlfile.TextFormat(want, read)
		return yamlfile.Format{Want: want, Read: func(field string, value any) (any, bool, error) {
			v, ok, err := f.Read(field, value)
			if text, isText := value.(string); isText && err == nil {
				respelled.See(text, "%s", field)
			}
			return v, ok, err
		}}
	}
	return map[reflect.Type]yamlfile.Format{
		reflect.TypeFor[Algorithm]():         yamlfile.TextFormat("a balancing algorithm", readAlgorithm),
		reflect.TypeFor[netip.Addr]():        noting("an IP address", func(s string) (any, error) { return kubeaddr.Parse(s) }),
		reflect.TypeFor[netip.Prefix]():      noting("a CIDR", readCIDR),
		reflect.TypeFor[decision.Protocol](): yamlfile.TextFormat("a protocol", readProtocol),
		reflect.TypeFor[labapi.Server]():     yamlfile.TextFormat("a kind of server", readServer),
		reflect.TypeFor[Negated](): {Want: "true or false", Read: func(_ string, value any) (any, bool, error) {
			b, ok := value.(bool)
			return Negated(!b), ok, nil
		}},
	}
}

func readAlgorithm(s string) (any, error) {
	r := balance.NewRegistry()
	r.Add(script.Entry(func(string) (balance.Algorithm, error) { return balance.Algorithm{}, nil })) // [Lab.complete] knows the scripts
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
		return nil, fmt.Errorf("%s has host bits set: want %s", s, p)
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
		return labapi.AnswerServer, nil
	case string(labapi.DNSServer):
		return labapi.DNSServer, nil
	}
	return nil, fmt.Errorf("%q: want answer or dns", s)
}

// reader reads a Lab.
type reader struct {
	lab       *Lab
	respelled kubeaddr.Respelled
	problems
}

// problems collects what is wrong.
type problems struct{ errs []yamlfile.FieldError }

func (v *problems) fail(field, format string, args ...any) {
	v.errs = append(v.errs, yamlfile.FieldError{Field: field, Err: fmt.Errorf(format, args...)})
}

// read reads the fields of a Lab. Paths of scripts are relative to the directory of the file.
func (r *reader) read(file string, m map[string]any) {
	fields := maps.Clone(m)
	delete(fields, "apiVersion")
	delete(fields, "kind")
	decoder := yamlfile.Decoder{Formats: formats(&r.respelled), ListFields: true}
	r.errs = append(r.errs, decoder.Decode(fields, r.lab)...)
	if len(r.errs) == 0 {
		r.complete()
	}
	for i, s := range r.lab.Proxy.Scripts {
		if !filepath.IsAbs(s) {
			r.lab.Proxy.Scripts[i] = filepath.Join(filepath.Dir(file), s)
		}
	}
}

// addScripts adds the scripts that proxy.balance and proxy.shadow name to proxy.scripts, unless they are there.
func (p *Proxy) addScripts() {
	add := func(a *Algorithm) {
		name, path := script.Path(string(*a))
		known := slices.ContainsFunc(p.Scripts, func(s string) bool { return s == path || filepath.Base(s) == path })
		if path != "" && !known {
			p.Scripts = append(p.Scripts, path)
		}
		*a = Algorithm(name)
	}
	add(&p.Balance)
	for i := range p.Shadow {
		add(&p.Shadow[i])
	}
}

// checkScripts reports scripts that cannot be told apart by their names.
func (r *reader) checkScripts(p *Proxy) {
	known := make(map[string]bool)
	for i, path := range p.Scripts {
		name := filepath.Base(path)
		if known[name] {
			r.fail(fmt.Sprintf("proxy.scripts[%d]", i), "a second file %s: want different file names", name)
		}
		known[name] = true
	}
}

// complete fills in the defaults, and reports hosts without a name and ports without a number.
func (r *reader) complete() {
	lab := r.lab
	complete := func(path, name string, ports []labapi.Port) {
		if name == "" {
			r.fail(path+".name", "missing")
		}
		for i := range ports {
			if ports[i].Port == 0 {
				r.fail(fmt.Sprintf("%s.ports[%d].port", path, i), "missing")
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
		r.probe(fmt.Sprintf("pods[%d].readinessProbe", i), p.ReadinessProbe, p.Ports)
	}
	for i := range lab.Clients {
		complete(fmt.Sprintf("clients[%d]", i), lab.Clients[i].Name, lab.Clients[i].Ports)
	}
	lab.Proxy.addScripts()
	r.checkScripts(&lab.Proxy)
	given := NewGiven(lab)
	for i := range lab.Deployments {
		d := &lab.Deployments[i]
		d.Namespace = cmp.Or(d.Namespace, "default")
		complete(fmt.Sprintf("deployments[%d]", i), d.Name, d.Ports)
		r.probe(fmt.Sprintf("deployments[%d].readinessProbe", i), d.ReadinessProbe, d.Ports)
		if d.Labels == nil {
			d.Labels = map[string]string{"app": d.Name}
		}
		if d.Replicas == nil {
			d.Replicas = new(uint16(1))
		}
		pods, err := lab.PodsOf(d, Placement{Pods: lab.Pods, Given: given})
		if err != nil {
			r.fail(fmt.Sprintf("deployments[%d]", i), "%w", err)
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
		if slices.ContainsFunc(l.Nodes, func(n Node) bool {
			return slices.ContainsFunc(n.Addresses, func(a netip.Addr) bool { return a.Is4() == c.Addr().Is4() })
		}) {
			all = append(all, c)
		}
	}
	return all
}
