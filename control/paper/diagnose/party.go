package diagnose

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/paper/survey"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Outside is the name of a source outside of the cluster.
const Outside = "outside"

// outsiders are addresses that stand for one, of each family: nobody is known to have them, and no source range and no policy names
// them, which are about some clients.
func (c *Cluster) outsiders() (all []netip.Addr) {
	var named []string
	served := serviceAddresses(c.objects)
	for _, s := range c.objects.Services {
		named = append(named, s.Spec.LoadBalancerSourceRanges...)
	}
	for _, p := range c.objects.Context.NetworkPolicies {
		named = append(named, blocks(p)...)
	}
	for _, f := range []decision.Family{decision.IPv4, decision.IPv6} {
		candidates := survey.Outsiders(f)
		i := slices.IndexFunc(candidates, func(a netip.Addr) bool {
			return c.addressParty(a).outside && !slices.Contains(served, a.String()) && !slices.ContainsFunc(named, func(cidr string) bool {
				p, err := kubeaddr.ParsePrefix(cidr)
				return err == nil && p.Bits() > 0 && p.Contains(a)
			})
		})
		all = append(all, candidates[max(i, 0)])
	}
	return all
}

// party is one end of the connection that a question is about.
type party struct {
	text    string // "pod shop/client"
	addrs   []netip.Addr
	pod     *corev1.Pod
	node    string // it is the node itself, or a Pod in its network
	on      string // the node that it runs on; "": not known
	service *corev1.Service
	outside bool
	anyone  bool // it stands for any client outside
	// balancer: the destination is the name of the Service's load balancer, which is outside of the cluster.
	balancer bool
	unnamed  *Finding // DNS does not have the name of the Pod; nil: it has, or none was given
	port     string   // a number or a name, as given; empty: none
}

// source reads the first part of a question: a pod, a node, an address or "outside".
// namespace is that of names without one; "" if it is not given.
func (c *Cluster) source(text, namespace string) (*party, error) {
	if text == Outside {
		if clients := c.labClients(); len(clients) > 0 {
			return &party{text: "client " + clients[0].Name, addrs: clients[0].Addresses, outside: true}, nil
		}
		return &party{text: "outside of the cluster", addrs: c.outsiders(), outside: true, anyone: true}, nil
	}
	if a, err := kubeaddr.Parse(kubeaddr.Unbracket(text)); err == nil {
		return c.addressParty(a), nil
	}
	if at, err := netip.ParseAddrPort(text); err == nil { // as in records; the port decides nothing
		return c.addressParty(at.Addr().Unmap()), nil
	}
	for _, h := range c.labClients() {
		if h.Name == text {
			return &party{text: "client " + h.Name, addrs: h.Addresses, outside: true}, nil
		}
	}
	if p, err := c.nodeParty(text); p != nil || err != nil {
		return p, err
	}
	n, err := c.findPod(strings.TrimPrefix(text, "pod/"), namespace)
	if err != nil {
		return nil, err
	}
	p := c.podParty(c.pods[n])
	if len(p.addrs) == 0 {
		if p.pod.Status.Phase == corev1.PodRunning {
			return nil, fmt.Errorf("the address of pod %s is not shown: give the output of kubectl get pods -o wide, or an address as the source", n)
		}
		if state := c.stateOf(c.pods[n]); state != "" {
			return nil, fmt.Errorf("pod %s has no address yet: %s", n, state)
		}
		return nil, fmt.Errorf("pod %s has no address yet: its status.podIPs are empty", n)
	}
	return p, nil
}

// labClients are the clients of the lab; nil: there is none.
func (c *Cluster) labClients() []labapi.Client {
	if c.objects.Lab == nil {
		return nil
	}
	return c.objects.Lab.LabClients()
}

// nodeParty reads a node's name, with or without "node/", or its name in DNS; nil if it is none.
func (c *Cluster) nodeParty(text string) (*party, error) {
	text, given := strings.CutPrefix(text, "node/")
	for _, n := range c.objects.Nodes {
		if n.Name != text && !slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Address == text }) {
			continue
		}
		addrs := c.nodes.addresses[n.Name]
		if len(addrs) == 0 {
			return nil, fmt.Errorf("node %s has no address: its status.addresses are empty", n.Name)
		}
		return &party{text: "node " + n.Name, addrs: addrs, node: n.Name}, nil
	}
	if given && len(c.nodes.names) == 0 {
		return nil, fmt.Errorf("node/%s: the objects contain no Nodes; give an address, a Pod or %q", text, Outside)
	}
	if given {
		return nil, fmt.Errorf("there is no Node %s%s; known: %s", text, nearest.Hint(text, c.nodes.names), nearest.Few(c.nodes.names))
	}
	return nil, nil
}

func (c *Cluster) podParty(p *corev1.Pod) *party {
	q := &party{text: "pod " + nameOf(p).String(), addrs: servicetable.PodAddresses(p), pod: p, on: p.Spec.NodeName}
	if p.Spec.HostNetwork {
		q.node = p.Spec.NodeName
		if len(q.addrs) == 0 {
			q.addrs = c.nodes.addresses[q.node]
		}
	}
	return q
}

// addressParty finds out what has the address.
func (c *Cluster) addressParty(a netip.Addr) *party {
	var p *party
	switch node := c.nodes.Node(a); {
	case c.owners[a] != nil:
		p = c.podParty(c.owners[a])
	case node != "":
		p = &party{text: "node " + node, node: node}
	case c.inside(a):
		p = &party{text: "an address of no known Pod", on: c.nodes.Pod(a)}
	default:
		p = &party{text: "an address of no Pod and no Node", outside: true}
	}
	if svc := c.withClusterIP(a); svc != "" {
		p.text = "the cluster IP of " + svc
	}
	p.addrs = []netip.Addr{a}
	return p
}

// findPod finds NAMESPACE/NAME, or a NAME in the namespace, or one that a single namespace has.
func (c *Cluster) findPod(text, in string) (name, error) {
	if n := (name{Namespace: in, Name: text}); c.pods[n] != nil {
		return n, nil
	}
	var all []string
	var found []name
	for n := range c.pods {
		all = append(all, n.String())
		if n.String() == text || n.Name == text {
			found = append(found, n)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	if len(found) > 1 {
		return name{}, fmt.Errorf("several namespaces have a Pod %s: write NAMESPACE/%s", text, text)
	}
	if len(all) == 0 {
		return name{}, fmt.Errorf("%q: the objects contain no Pods; give an address, a node or %q", text, Outside)
	}
	return name{}, fmt.Errorf("there is no Pod %s%s; known: %s", text, nearest.Hint(text, all), nearest.Few(all))
}

// destination reads the second part of a question: a service, a pod or an address, with a port. from is the
// namespace of names without one; "" if it is not known.
func (c *Cluster) destination(text, from string) (*party, error) {
	if at, err := netip.ParseAddrPort(text); err == nil {
		p := c.addressParty(at.Addr().Unmap())
		p.port = strconv.Itoa(int(at.Port()))
		return p, nil
	}
	if a, err := kubeaddr.Parse(kubeaddr.Unbracket(text)); err == nil {
		return c.addressParty(a), nil
	}
	host, port, hasPort := strings.Cut(text, ":")
	if hasPort && port == "" {
		return nil, fmt.Errorf("%q: the port is missing after the colon", text)
	}
	at := func(p *party) (*party, error) {
		p.port = port
		return p, nil
	}
	if podName, ok := strings.CutPrefix(host, "pod/"); ok {
		n, err := c.findPod(podName, from)
		if err != nil {
			return nil, err
		}
		return at(c.podParty(c.pods[n]))
	}
	if host == "localhost" {
		return at(c.addressParty(netip.AddrFrom4([4]byte{127, 0, 0, 1})))
	}
	if svc := c.balancedAs(host); svc != nil {
		return at(&party{text: "service " + svc.Namespace + "/" + svc.Name, service: svc, balancer: true})
	}
	if p := c.podNamed(strings.Split(strings.TrimSuffix(host, "."), "."), cmp.Or(from, "default")); p != nil {
		return at(p)
	}
	n, err := c.findService(host, from)
	if err == nil {
		return at(&party{text: "service " + n.String(), service: c.services[n]})
	}
	p, nodeErr := c.nodeParty(host)
	switch {
	case nodeErr != nil:
		return nil, nodeErr
	case p != nil:
		return at(p)
	}
	if n, podErr := c.findPod(host, from); podErr == nil {
		return at(c.podParty(c.pods[n]))
	}
	if len(c.objects.Nodes) > 0 && !strings.Contains(host, "/") {
		err = fmt.Errorf("%w; nodes are %s", err, nearest.Few(c.nodes.names))
	} else if !strings.Contains(host, "/") {
		err = fmt.Errorf("%w, and there are no Nodes among the objects", err)
	}
	return nil, err
}

// podNamed is the Pod with a name in DNS, HOSTNAME.SERVICE, HOSTNAME.SERVICE.NAMESPACE or HOSTNAME.SERVICE.NAMESPACE.svc.DOMAIN, as those
// of StatefulSets have; nil: there is none, or it is the name of a Service.
func (c *Cluster) podNamed(labels []string, namespace string) *party {
	if len(labels) < 2 || len(labels) > 3 && labels[3] != "svc" || c.services[name{Namespace: labels[1], Name: labels[0]}] != nil {
		return nil
	}
	if len(labels) > 2 {
		namespace = labels[2]
	}
	pod := c.pods[name{Namespace: namespace, Name: labels[0]}]
	svc := c.services[name{Namespace: namespace, Name: labels[1]}]
	if pod == nil || svc == nil && pod.Spec.Subdomain != labels[1] {
		return nil
	}
	p := c.podParty(pod)
	switch sub := pod.Spec.Subdomain; {
	case svc == nil:
		p.unnamed = &Finding{
			Code: Headless, Object: "Pod " + nameOf(pod).String(), Field: "spec.subdomain",
			Text: fmt.Sprintf("DNS has no name of Pod %s: its subdomain is %s, and no Service of its namespace has that name", nameOf(pod), sub),
			Do:   fmt.Sprintf("create the headless Service %s (clusterIP: None), whose selector matches the Pod", sub),
		}
	case len(c.slices[name{Namespace: namespace, Name: labels[1]}]) > 0 && !slices.ContainsFunc(c.slices[name{Namespace: namespace, Name: labels[1]}], func(s *discoveryv1.EndpointSlice) bool {
		return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool {
			a, err := kubeaddr.Parse(e.Addresses[0])
			return err == nil && slices.Contains(p.addrs, a) && isSet(e.Conditions.Ready)
		})
	}):
		p.unnamed = &Finding{
			Code: PodsNotReady, Object: "Pod " + nameOf(pod).String(),
			Text: fmt.Sprintf("DNS has no name %s.%s at this time: Pod %s is no ready endpoint of %s", labels[0], labels[1], nameOf(pod), objectOf(svc)),
			Do:   fmt.Sprintf("kubectl -n %s describe pod %s; publishNotReadyAddresses gives Pods that are not ready names, too", pod.Namespace, pod.Name),
		}
	case sub != "" && sub != labels[1]:
		p.unnamed = &Finding{
			Code: Headless, Object: "Pod " + nameOf(pod).String(), Field: "spec.subdomain",
			Text: fmt.Sprintf("DNS has no name %s.%s: the subdomain of Pod %s is %s (serviceName of its StatefulSet)", labels[0], labels[1], nameOf(pod), sub),
			Do:   fmt.Sprintf("use the name %s.%s, or set spec.serviceName of the StatefulSet to %s", labels[0], sub, labels[1]),
		}
	}
	return p
}

// CutProtocol takes the protocol off a destination whose port has one, as in kube-dns:53/UDP; 0: it has none. Of a URL it leaves the
// host with its port.
func CutProtocol(s string) (destination string, p decision.Protocol, err error) {
	if scheme, rest, ok := strings.Cut(s, "://"); ok { // of a URL
		s, _, _ = strings.Cut(rest, "/")
		if port := map[string]string{"http": ":80", "https": ":443"}[scheme]; !strings.Contains(s[strings.LastIndexByte(s, ']')+1:], ":") {
			s += port
		}
	}
	i := strings.LastIndexByte(s, '/')
	if colon := strings.LastIndexByte(s, ':'); colon < 0 || i < colon { // that of NAMESPACE/NAME
		return s, 0, nil
	}
	if p, err = decision.ParseProtocol(s[i+1:]); err != nil {
		err = fmt.Errorf("%q: %w", s, err)
	}
	return s[:i], p, err
}

// findService finds a Service by NAMESPACE/NAME, by its DNS name, or by a NAME in the namespace of the
// source, in "default", or in the only namespace that has it.
func (c *Cluster) findService(text, from string) (name, error) {
	text = strings.TrimPrefix(strings.TrimPrefix(text, "service/"), "svc/")
	var found []name
	add := func(n name) {
		if c.services[n] != nil {
			found = append(found, n)
		}
	}
	if ns, in, ok := strings.Cut(text, "/"); ok {
		add(name{Namespace: ns, Name: in})
	} else if labels := strings.Split(strings.TrimSuffix(text, "."), "."); len(labels) > 1 {
		// NAME.NAMESPACE, NAME.NAMESPACE.svc, and with the cluster's domain behind it.
		if len(labels) > 2 && labels[2] != "svc" {
			return name{}, fmt.Errorf("%q: want NAME.NAMESPACE or NAME.NAMESPACE.svc.DOMAIN, as in the DNS names of Services", text)
		}
		add(name{Namespace: labels[1], Name: labels[0]})
	} else {
		for _, ns := range []string{from, "default"} {
			if len(found) == 0 {
				add(name{Namespace: ns, Name: text})
			}
		}
		if len(found) == 0 {
			for n := range c.services {
				if n.Name == text {
					add(n)
				}
			}
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		all := texts(slices.Collect(maps.Keys(c.services)))
		if len(all) == 0 {
			return name{}, errors.New("the objects contain no Services")
		}
		wrong := text
		if labels := strings.Split(text, "."); len(labels) > 1 {
			wrong = labels[1] + "/" + labels[0]
		}
		return name{}, fmt.Errorf("there is no Service %s%s; known: %s", wrong, nearest.Hint(wrong, all), nearest.Few(all))
	}
	var in []string
	for _, n := range found {
		in = append(in, n.Namespace)
	}
	slices.Sort(in)
	return name{}, fmt.Errorf("several namespaces have a Service %s (%s): write NAMESPACE/%s", text, nearest.Few(in), text)
}
