package lab

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/utils/net"

	"github.com/nfqproxy/nfqproxy/control"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// DeriveOptions say what Kubernetes objects alone do not.
type DeriveOptions struct {
	// Name is the lab's.
	Name string
	// ClusterCIDRs are where pods are, at most one prefix of each family. Of a family
	// without one it is the least prefix that has all pods, as far as that tells pods
	// from others.
	ClusterCIDRs []netip.Prefix
	// Namespaces are those of which all Pods and all Services' endpoints are in the lab,
	// Services those of which the endpoints are; without either it has everything.
	Namespaces []string
	Services   []decision.ServiceName
}

// Derive makes a lab of Kubernetes objects alone: the nodes, pods and machines that they
// tell of, a pod on each node to ask from, and a client outside. What the objects leave
// open is guessed, with addresses that none of them has; each guess is one line. Of the
// Spec, Objects is left to the caller. Derive is pure.
func Derive(objects *manifest.Objects, o DeriveOptions) (*Spec, []string, error) {
	services, _ := control.Build(objects, control.NodeConfig{})
	d := &derivation{
		options: o, services: services, spec: &Spec{Name: o.Name, ClusterCIDRs: slices.Clone(o.ClusterCIDRs)},
		byName: make(map[string]*derivedNode), byPod: make(map[string]*derivedPod), at: make(map[netip.Addr]host), names: map[string]bool{fabricName: true},
	}
	for _, step := range []func() error{
		func() error { return d.takeNodes(objects.Nodes) },
		func() error { return d.takePods(objects.Pods) },
		d.takeEndpoints, d.placePods, d.assignCIDRs, d.checkClusterCIDRs, d.leaveOut, d.assignNetworks, d.addHosts, d.finish,
	} {
		if err := step(); err != nil {
			return nil, nil, err
		}
	}
	var guesses []string
	for _, g := range d.guesses {
		if g.node == nil || slices.Contains(d.nodes, g.node) { // it may have been left out
			guesses = append(guesses, g.text)
		}
	}
	return d.spec, guesses, nil
}

// derivation is the state of Derive.
type derivation struct {
	options  DeriveOptions
	services []*decision.ServicePort
	spec     *Spec
	guesses  []guess

	nodes    []*derivedNode
	pods     []*derivedPod
	machines []*derivedMachine
	byName   map[string]*derivedNode // nodes
	byPod    map[string]*derivedPod  // by full name
	at       map[netip.Addr]host     // nodes, pods and machines
	names    map[string]bool         // of nodes, clients and pods, these without a namespace
	used     []netip.Prefix          // nothing that is made up may overlap with these
	// namesPods: the objects say of endpoints which pods they are, if they are.
	namesPods bool
}

// guess is something that the objects do not say.
type guess struct {
	node *derivedNode // that it is about; nil: not about one
	text string
}

// host is a node, a pod or a machine.
type host interface {
	serve(Port)
	choose() // to be in the lab
}

type derivedNode struct {
	Node
	declared []netip.Prefix // the pod CIDRs of its object
	chosen   bool
}

type derivedPod struct {
	Pod
	madeUp bool // its name is
	chosen bool
}

// derivedMachine is an endpoint that is neither a pod's nor a node's.
type derivedMachine struct {
	Client
	service string // whose endpoint it is
	chosen  bool
}

func (n *derivedNode) serve(p Port)    { n.Ports = withPort(n.Ports, p) }
func (p *derivedPod) serve(port Port)  { p.Ports = withPort(p.Ports, port) }
func (m *derivedMachine) serve(p Port) { m.Ports = withPort(m.Ports, p) }
func (n *derivedNode) choose()         { n.chosen = true }
func (p *derivedPod) choose()          { p.chosen = true }
func (m *derivedMachine) choose()      { m.chosen = true }

func withPort(ports []Port, p Port) []Port {
	if slices.Contains(ports, p) || p.Protocol != decision.TCP && p.Protocol != decision.UDP {
		return ports
	}
	return append(ports, p)
}

func (d *derivation) guess(format string, args ...any) {
	d.guesses = append(d.guesses, guess{nil, fmt.Sprintf(format, args...)})
}

func (d *derivation) guessNode(n *derivedNode, format string, args ...any) {
	d.guesses = append(d.guesses, guess{n, fmt.Sprintf("node %s: ", n.Name) + fmt.Sprintf(format, args...)})
}

// choosy says whether not everything is to be in the lab.
func (o *DeriveOptions) choosy() bool { return len(o.Namespaces)+len(o.Services) > 0 }

// wants says whether all of a namespace is to be in the lab.
func (o *DeriveOptions) wants(namespace string) bool {
	return !o.choosy() || slices.Contains(o.Namespaces, namespace)
}

// parseAddr reads an address of an object, which is right: see package manifest. The zero
// Addr stands for one that cannot be a host's.
func parseAddr(s string) netip.Addr {
	a, _ := netip.AddrFromSlice(utilnet.ParseIPSloppy(s))
	if a = a.Unmap(); !a.IsValid() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() {
		return netip.Addr{}
	}
	return a
}

// node finds a node by its name, or makes it; why says what names it.
func (d *derivation) node(name, why string) (*derivedNode, error) {
	if n, ok := d.byName[name]; ok {
		return n, nil
	}
	if !isHostName(name) || d.names[name] {
		return nil, fmt.Errorf("%s: %q cannot be the name of a node of a lab", why, name)
	}
	n := &derivedNode{Node: Node{Name: name}}
	d.names[name], d.byName[name] = true, n
	d.nodes = append(d.nodes, n)
	return n, nil
}

// addAddress gives a node an address, unless it has one of that family.
func (d *derivation) addAddress(n *derivedNode, a netip.Addr) {
	if !a.IsValid() || d.at[a] != nil {
		return
	}
	if _, ok := address(n.Addresses, decision.FamilyOf(a)); !ok {
		n.Addresses = append(n.Addresses, a)
	}
	d.at[a] = n // also where it is a further one, and just serves as the first
}

func (d *derivation) takeNodes(objects []*corev1.Node) error {
	for _, o := range objects {
		n, err := d.node(o.Name, "Node "+o.Name)
		if err != nil {
			return err
		}
		for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
			for _, a := range o.Status.Addresses {
				ip := parseAddr(a.Address)
				if other, ok := d.at[ip].(*derivedNode); ok && other != n && a.Type == kind {
					return fmt.Errorf("Node %s: its address %s is that of Node %s, too", o.Name, ip, other.Name)
				}
				if a.Type == kind {
					d.addAddress(n, ip)
				}
			}
		}
		cidrs := o.Spec.PodCIDRs
		if len(cidrs) == 0 && o.Spec.PodCIDR != "" {
			cidrs = []string{o.Spec.PodCIDR}
		}
		for _, s := range cidrs {
			if _, c, err := utilnet.ParseCIDRSloppy(s); err == nil {
				a, _ := netip.AddrFromSlice(c.IP)
				bits, _ := c.Mask.Size()
				n.declared = append(n.declared, netip.PrefixFrom(a.Unmap(), bits))
			}
		}
	}
	return nil
}

func (d *derivation) takePods(objects []*corev1.Pod) error {
	for _, o := range objects {
		ips := addressesOf(o.Status.PodIPs, func(ip corev1.PodIP) string { return ip.IP }, o.Status.PodIP)
		if o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed || len(ips) == 0 {
			continue // its address is no more its own
		}
		what := fmt.Sprintf("Pod %s/%s", o.Namespace, o.Name)
		var n *derivedNode
		if o.Spec.NodeName != "" {
			var err error
			if n, err = d.node(o.Spec.NodeName, what); err != nil {
				return err
			}
			for _, a := range addressesOf(o.Status.HostIPs, func(ip corev1.HostIP) string { return ip.IP }, o.Status.HostIP) {
				d.addAddress(n, a)
			}
		}
		var h host
		if o.Spec.HostNetwork {
			if n == nil {
				continue
			}
			for _, a := range ips {
				d.addAddress(n, a)
			}
			h = n
		} else {
			p := &derivedPod{Pod: Pod{Name: o.Name, Namespace: cmp.Or(o.Namespace, "default"), Node: o.Spec.NodeName}}
			if !isHostName(p.Name) || !isLabel(p.Namespace) {
				return fmt.Errorf("%s: that cannot be the name of a pod of a lab", what)
			}
			for _, a := range ips {
				if err := d.addPodAddress(p, a, what); err != nil {
					return err
				}
			}
			d.addPod(p)
			h = p
		}
		if d.options.wants(cmp.Or(o.Namespace, "default")) {
			h.choose()
		}
		for i := range o.Spec.Containers {
			for _, c := range o.Spec.Containers[i].Ports {
				if protocol, err := decision.ParseProtocol(cmp.Or(string(c.Protocol), "TCP")); err == nil && c.ContainerPort > 0 && c.ContainerPort < 1<<16 {
					h.serve(Port{uint16(c.ContainerPort), protocol})
				}
			}
		}
	}
	return nil
}

// addressesOf are those of a list, or the one that older objects have instead.
func addressesOf[T any](list []T, text func(T) string, single string) []netip.Addr {
	var all []netip.Addr
	for _, item := range list {
		if a := parseAddr(text(item)); a.IsValid() {
			all = append(all, a)
		}
	}
	if a := parseAddr(single); len(all) == 0 && a.IsValid() {
		all = append(all, a)
	}
	return all
}

func (d *derivation) addPod(p *derivedPod) {
	d.names[p.Name], d.byPod[p.FullName()] = true, p
	d.pods = append(d.pods, p)
}

// addPodAddress gives a pod an address; what names the object it is from.
func (d *derivation) addPodAddress(p *derivedPod, a netip.Addr, what string) error {
	switch other := d.at[a].(type) {
	case *derivedNode:
		return fmt.Errorf("%s: its address %s is that of node %s, and it does not say hostNetwork", what, a, other.Name)
	case *derivedPod:
		return fmt.Errorf("%s: its address %s is that of pod %s, too", what, a, other.FullName())
	}
	if _, ok := address(p.Addresses, decision.FamilyOf(a)); ok {
		return fmt.Errorf("%s: %s is a second %s address; a pod has one", what, a, decision.FamilyOf(a))
	}
	if c, ok := cidr(d.options.ClusterCIDRs, decision.FamilyOf(a)); ok && !c.Contains(a) {
		return fmt.Errorf("%s: its address %s is not within --cluster-cidr %s", what, a, c)
	}
	p.Addresses = append(p.Addresses, a)
	d.at[a] = p
	return nil
}

// cidr finds the prefix of a family.
func cidr(prefixes []netip.Prefix, f decision.Family) (netip.Prefix, bool) {
	i := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return decision.FamilyOf(p.Addr()) == f })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return prefixes[i], true
}

// takeEndpoints makes hosts of what is behind the services, where Nodes and Pods have
// not told of them.
func (d *derivation) takeEndpoints() error {
	if len(d.services) == 0 {
		return errors.New("there are no Services among the objects: a lab needs some, with their EndpointSlices; kubectl get svc,endpointslices,nodes,pods -A -o yaml prints all")
	}
	for _, s := range d.services {
		d.namesPods = d.namesPods || slices.ContainsFunc(s.Endpoints, func(e decision.Endpoint) bool { return e.Pod != "" })
	}
	for _, n := range d.options.Namespaces {
		if !slices.ContainsFunc(d.services, func(s *decision.ServicePort) bool { return s.Name.Namespace == n }) {
			return fmt.Errorf("there is no Service in namespace %q", n)
		}
	}
	for _, n := range d.options.Services {
		if !slices.ContainsFunc(d.services, func(s *decision.ServicePort) bool { return s.Name.Service() == n }) {
			return fmt.Errorf("there is no Service %s", n)
		}
	}
	for _, s := range d.services {
		wanted := d.options.wants(s.Name.Namespace) || slices.Contains(d.options.Services, s.Name.Service())
		silent := false
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			h, err := d.endpointHost(s, e)
			if err != nil {
				return fmt.Errorf("endpoint %s of Service %s: %w", e.AddrPort, s.Name.Service(), err)
			}
			if h == nil {
				continue
			}
			h.serve(Port{e.AddrPort.Port(), s.Protocol})
			silent = silent || s.Protocol == decision.SCTP
			if wanted {
				h.choose()
			}
		}
		if silent && wanted {
			d.guess("Service %s: nobody answers on its SCTP endpoints: the lab's servers speak TCP and UDP", s.Name)
		}
	}
	return nil
}

// apiServer is the Service whose endpoints are never pods.
var apiServer = decision.ServiceName{Namespace: "default", Name: "kubernetes"}

// endpointHost finds the host an endpoint is at, or makes it; nil: none has such an
// address.
func (d *derivation) endpointHost(s *decision.ServicePort, e *decision.Endpoint) (host, error) {
	a := e.AddrPort.Addr()
	if !parseAddr(a.String()).IsValid() {
		return nil, nil
	}
	if h := d.at[a]; h != nil {
		return h, nil
	}
	var n *derivedNode
	if e.NodeName != "" {
		var err error
		if n, err = d.node(e.NodeName, "its nodeName"); err != nil {
			return nil, err
		}
	}
	if d.isPod(s, e) {
		return d.podFor(s, e)
	}
	if n != nil {
		if _, ok := address(n.Addresses, decision.FamilyOf(a)); !ok {
			d.guessNode(n, "its address is %s, which an endpoint of Service %s on it has", a, s.Name.Service())
			d.addAddress(n, a)
			return n, nil
		}
	}
	name := d.newName(s.Name.Name)
	m := &derivedMachine{Client: Client{Name: name, Addresses: []netip.Addr{a}, RoutesToPods: true}, service: s.Name.Service().String()}
	d.machines = append(d.machines, m)
	d.at[a] = m
	return m, nil
}

// isPod guesses whether an endpoint that no object tells of is a pod.
func (d *derivation) isPod(s *decision.ServicePort, e *decision.Endpoint) bool {
	a := e.AddrPort.Addr()
	if c, ok := cidr(d.options.ClusterCIDRs, decision.FamilyOf(a)); ok {
		return c.Contains(a)
	}
	return e.Pod != "" || !d.namesPods && s.Name.Service() != apiServer
}

// podFor makes the pod of an endpoint, or gives one in the other family its address.
func (d *derivation) podFor(s *decision.ServicePort, e *decision.Endpoint) (host, error) {
	a := e.AddrPort.Addr()
	p := d.byPod[e.Pod]
	if p != nil {
		if _, ok := address(p.Addresses, decision.FamilyOf(a)); ok {
			p = nil // a Pod of that name has been there before, with another address
		}
	}
	if p == nil {
		namespace, name, ok := strings.Cut(e.Pod, "/")
		if !ok || d.byPod[e.Pod] != nil || !isHostName(name) || !isLabel(namespace) {
			namespace, name = s.Name.Namespace, d.newName(s.Name.Name)
		}
		if !isLabel(namespace) || !isHostName(name) {
			return nil, fmt.Errorf("a pod of a lab cannot be named %s/%s", namespace, name)
		}
		p = &derivedPod{Pod: Pod{Name: name, Namespace: namespace, Node: e.NodeName}, madeUp: e.Pod != namespace+"/"+name}
		d.addPod(p)
	}
	return p, d.addPodAddress(p, a, "pod "+p.FullName())
}

// newName makes a name that nothing has: that of a Service, and a number.
func (d *derivation) newName(base string) string {
	base = base[:min(len(base), 56)] // of 63
	for i := 1; ; i++ {
		if name := fmt.Sprintf("%s-%d", base, i); !d.names[name] {
			d.names[name] = true
			return name
		}
	}
}

// placePods finds a node for each pod that names none: the one whose pods are in the same
// network, or else one that is made up, in the order of the pods' addresses.
func (d *derivation) placePods() error {
	slices.SortFunc(d.nodes, func(a, b *derivedNode) int { return strings.Compare(a.Name, b.Name) })
	here := make(map[netip.Prefix]string) // the node of the pods around
	for _, p := range d.pods {
		for _, a := range p.Addresses {
			if p.Node != "" {
				here[around(a)] = p.Node
			}
		}
	}
	pods := slices.SortedFunc(slices.Values(d.pods), func(a, b *derivedPod) int { return a.Addresses[0].Compare(b.Addresses[0]) })
	for _, p := range pods {
		if p.Node == "" {
			p.Node = d.nodeFor(p, here)
		}
		for _, a := range p.Addresses {
			here[around(a)] = p.Node
		}
	}
	if len(d.nodes) == 0 {
		d.makeNode("as the objects tell of none")
	}
	return nil
}

func (d *derivation) nodeFor(p *derivedPod, here map[netip.Prefix]string) string {
	for _, a := range p.Addresses {
		for _, n := range d.nodes {
			if c, ok := cidr(n.declared, decision.FamilyOf(a)); ok && c.Contains(a) {
				return n.Name
			}
		}
	}
	for _, a := range p.Addresses {
		if node, ok := here[around(a)]; ok {
			return node
		}
	}
	return d.makeNode(fmt.Sprintf("for the pods in %s, which name no node", around(p.Addresses[0]))).Name
}

// makeNode makes a node up.
func (d *derivation) makeNode(why string) *derivedNode {
	n := &derivedNode{Node: Node{Name: d.newName("node")}}
	d.byName[n.Name] = n
	d.nodes = append(d.nodes, n)
	d.guessNode(n, "made up, %s", why)
	return n
}

// leaveOut keeps only what was chosen.
func (d *derivation) leaveOut() error {
	if d.options.choosy() {
		before := len(d.nodes) + len(d.pods) + len(d.machines)
		d.pods = slices.DeleteFunc(d.pods, func(p *derivedPod) bool { return !p.chosen })
		d.machines = slices.DeleteFunc(d.machines, func(m *derivedMachine) bool { return !m.chosen })
		for _, p := range d.pods {
			d.byName[p.Node].choose()
		}
		if !slices.ContainsFunc(d.nodes, func(n *derivedNode) bool { return n.chosen }) {
			d.nodes[0].choose()
		}
		d.nodes = slices.DeleteFunc(d.nodes, func(n *derivedNode) bool { return !n.chosen })
		if n := before - len(d.nodes) - len(d.pods) - len(d.machines); n > 0 {
			d.guess("%d nodes, pods and machines are left out: Services that were not chosen are there, but nobody is at their endpoints", n)
		}
	}
	made := 0
	for _, p := range d.pods {
		if p.madeUp {
			made++
		}
	}
	if made > 0 {
		d.guess("%d of the pods: the name is that of the Service and a number, as the objects do not name them", made)
	}
	const choose = "choose what matters with --namespace or --service"
	// Besides these there are a pod on each node and a client.
	if n := len(d.nodes); n > maxNodes {
		return fmt.Errorf("the objects have %d nodes, and a lab at most %d: %s", n, maxNodes, choose)
	}
	if n, most := len(d.pods)+len(d.machines), maxHosts-len(d.nodes)-1; n > most {
		return fmt.Errorf("the objects have %d pods and other endpoints, and a lab of %d nodes has room for %d: %s", n, len(d.nodes), most, choose)
	}
	return nil
}

// finish puts everything into the spec.
func (d *derivation) finish() error {
	check := func(what string, ports []Port) error {
		if len(ports) > maxPorts {
			return fmt.Errorf("%s serves %d ports, and a host of a lab at most %d", what, len(ports), maxPorts)
		}
		return nil
	}
	var errs []error
	for _, n := range d.nodes {
		errs = append(errs, check("node "+n.Name, n.Ports))
		d.spec.Nodes = append(d.spec.Nodes, n.Node)
	}
	for _, p := range d.pods {
		errs = append(errs, check("pod "+p.FullName(), p.Ports))
		d.spec.Pods = append(d.spec.Pods, p.Pod)
	}
	for _, m := range d.machines {
		errs = append(errs, check("the endpoint of Service "+m.service, m.Ports))
		d.spec.Clients = append(d.spec.Clients, m.Client)
	}
	return errors.Join(errs...)
}
