// Package resolve finds the addresses that names of pods, services and nodes stand for in questions about packets.
//
// It is a ground package.
package resolve

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/distinct"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Names finds the addresses of pods and services.
type Names struct {
	// Namespace is the namespace of names without one; empty: a name must have its own.
	Namespace string
	nodes     map[string][]netip.Addr            // by name
	services  map[string][]*decision.ServicePort // by namespace/name, as are the others
	objects   map[string][]netip.Addr            // pods with an object
	every     map[string][]netip.Addr            // pods; see Names.pods
	// unserved are Services without an address, and why.
	unserved map[string]string
}

// NewNames returns no names.
func NewNames() *Names {
	return &Names{nodes: make(map[string][]netip.Addr), services: make(map[string][]*decision.ServicePort), objects: make(map[string][]netip.Addr), unserved: make(map[string]string)}
}

// NamesOf returns the names of the table's services, of the pods behind them and of the pods.
func NamesOf(t *decision.Table, pods []*corev1.Pod) *Names {
	n := NewNames()
	for _, s := range t.Services() {
		n.AddService(s)
	}
	for _, p := range pods {
		n.AddPod(p.Namespace+"/"+p.Name, servicetable.PodAddresses(p))
	}
	return n
}

// pods are the addresses of all pods: of those with an object, and of those that only endpoints name. Most questions have no
// name of a pod, and there may be a hundred thousand endpoints: they are looked at once one is asked for.
func (n *Names) pods() map[string][]netip.Addr {
	if n.every != nil {
		return n.every
	}
	n.every = make(map[string][]netip.Addr)
	for _, ports := range n.services {
		for _, s := range ports {
			for i := range s.Endpoints {
				if e := &s.Endpoints[i]; e.Pod != "" {
					n.every[e.Pod] = distinct.Append(n.every[e.Pod], e.AddrPort.Addr())
				}
			}
		}
	}
	for _, addresses := range n.every {
		slices.SortFunc(addresses, netip.Addr.Compare) // IPv4 first
	}
	maps.Copy(n.every, n.objects)
	return n.every
}

// AddService adds a service port.
func (n *Names) AddService(s *decision.ServicePort) {
	name := s.Name.Namespace + "/" + s.Name.Name
	n.services[name] = append(n.services[name], s)
}

// AddPod adds a pod by its namespace/name.
func (n *Names) AddPod(name string, addresses []netip.Addr) {
	n.objects[name], n.every = addresses, nil
}

// AddNode adds a node by its name.
func (n *Names) AddNode(name string, addresses []netip.Addr) { n.nodes[name] = addresses }

// AddUnserved adds a Service without an address, by its namespace/name, with the reason.
func (n *Names) AddUnserved(name, why string) { n.unserved[name] = why }

// Packet makes the packet of a question. The error is an [*observe.Error].
func (n *Names) Packet(q flow.Question) (decision.Packet, error) {
	q, err := n.Resolve(q)
	if err != nil {
		return decision.Packet{}, err
	}
	return observe.Packet(q)
}

// Named reports whether a source or destination of a question is a name, rather than an address.
func Named(end string) bool { return strings.Contains(end, "/") }

// Services are the services, NAMESPACE/NAME, that a question may name.
func Services(q flow.Question) []string {
	var names []string
	for _, end := range []string{q.Source, q.Destination} {
		end, _, _ = strings.Cut(end, ":")
		if parts := strings.Split(end, "/"); len(parts) > 1 {
			names = distinct.Append(names, strings.Join(parts[len(parts)-2:], "/"))
		}
	}
	return names
}

// Resolve returns the question with addresses in place of names. The error is an [*observe.Error]; those of a question
// without names are left to [observe.Packet].
func (n *Names) Resolve(q flow.Question) (flow.Question, error) {
	protocol, err := observe.ProtocolOf(q)
	if err != nil {
		return q, err
	}
	destination, err := n.resolve(q.Destination, protocol)
	if err == nil && destination.port == 0 {
		err = observe.ErrNoPort
	}
	if err != nil {
		return q, observe.BadEnd("destination", q.Destination, err)
	}
	source, err := n.resolve(q.Source, protocol)
	if err != nil {
		return q, observe.BadEnd("source", q.Source, err)
	}
	from, to, ok := pair(source.addrs, destination.addrs)
	if !ok {
		return q, observe.TwoFamilies(q, source.addrs[0], destination.addrs[0])
	}
	q.Source, q.Destination = from.String(), netip.AddrPortFrom(to, destination.port).String()
	if source.port != 0 {
		q.Source = netip.AddrPortFrom(from, source.port).String()
	}
	return q, nil
}

// place is the addresses of a name, or an address, with the port.
type place struct {
	addrs []netip.Addr // at least one; of a name, one of each family
	port  uint16       // 0: not given
}

// pair returns the addresses of one family; of two pairs, the first one.
func pair(from, to []netip.Addr) (source, destination netip.Addr, ok bool) {
	for _, d := range to {
		for _, s := range from {
			if decision.FamilyOf(s) == decision.FamilyOf(d) {
				return s, d, true
			}
		}
	}
	return source, destination, false
}

// resolve reads an address or a name, with or without a port.
func (n *Names) resolve(s string, proto decision.Protocol) (place, error) {
	kind, name, named := strings.Cut(s, "/")
	short := n.Namespace != "" && !strings.Contains(name, "/")
	switch {
	case short && !named && !isAddress(s):
		return n.podOrHint(n.Namespace + "/" + s)
	case short && (kind == "service" || kind == "svc"), short && kind == "pod":
		if whole, _, _ := strings.Cut(s, ":"); n.pods()[whole] == nil { // of a namespace "pod"
			name = n.Namespace + "/" + name
		}
	}
	switch {
	case !named:
		return address(s)
	case kind == "node" && !strings.Contains(name, "/"):
		return n.node(name)
	case kind == "pod" && strings.Contains(name, "/"):
		return n.pod(name)
	case (kind == "service" || kind == "svc") && strings.Contains(name, "/"):
		return n.service(name, proto)
	case !strings.Contains(name, "/"):
		return n.podOrHint(s)
	}
	return place{}, errors.New("want an address, pod/NAMESPACE/NAME, service/NAMESPACE/NAME or node/NAME")
}

// isAddress reports whether a text is meant as an address rather than as the name of a Pod.
func isAddress(s string) bool {
	host, _, _ := strings.Cut(s, ":")
	return host == "" || strings.Count(s, ":") > 1 || strings.ContainsAny(s, "[]") || strings.Trim(host, "0123456789.") == ""
}

func address(s string) (place, error) {
	a, err := observe.ParseAddress(s)
	return place{[]netip.Addr{a.Addr()}, a.Port()}, err
}

// podOrHint reads NAMESPACE/NAME[:PORT], as flows are shown. Only pods may omit their kind: a pod
// and a service can have the same name.
func (n *Names) podOrHint(s string) (place, error) {
	name, _, _ := strings.Cut(s, ":")
	if _, ok := n.pods()[name]; ok {
		return n.pod(s)
	}
	if _, ok := n.services[name]; ok || n.unserved[name] != "" {
		return place{}, fmt.Errorf("there is no Pod of this name, but a Service: write service/%s", s)
	}
	return place{}, fmt.Errorf("want an address, pod/NAMESPACE/NAME, service/NAMESPACE/NAME or node/NAME%s", known("pods", slices.Sorted(maps.Keys(n.pods()))))
}

// pod reads NAMESPACE/NAME[:PORT].
func (n *Names) pod(s string) (place, error) {
	return find(s, n.pods(), "Pod (NAMESPACE/NAME)", "pods", "this Pod has no address yet: its status.podIPs are empty")
}

// node reads NAME[:PORT].
func (n *Names) node(s string) (place, error) {
	return find(s, n.nodes, "Node", "nodes", "this Node has no address: its status.addresses are empty")
}

// find reads NAME[:PORT] of one of the objects, which are called what or, in the plural, whats.
func find(s string, objects map[string][]netip.Addr, what, whats, noAddress string) (p place, err error) {
	name, port, hasPort := strings.Cut(s, ":")
	if hasPort {
		if p.port, err = observe.ParsePort(port); err != nil {
			return p, err
		}
	}
	var ok bool
	switch p.addrs, ok = objects[name]; {
	case !ok:
		all := slices.Sorted(maps.Keys(objects))
		return p, fmt.Errorf("there is no such %s among the objects%s%s", what, nearest.Hint(name, all), known(whats, all))
	case len(p.addrs) == 0:
		return p, errors.New(noAddress)
	}
	return p, nil
}

// service reads NAMESPACE/NAME[:PORT], the port being a number or a name. A service
// with one port of the protocol needs none.
func (n *Names) service(s string, proto decision.Protocol) (place, error) {
	name, port, _ := strings.Cut(s, ":")
	var p place
	var has, fit []string
	for _, sp := range n.services[name] {
		text := strings.TrimPrefix(fmt.Sprintf("%s/%d/%s", sp.Name.Port, sp.Port, sp.Protocol), "/")
		has = distinct.Append(has, text)
		if sp.Protocol == proto && (port == "" || port == sp.Name.Port || port == strconv.Itoa(int(sp.Port))) {
			fit = distinct.Append(fit, text)
			p.addrs, p.port = append(p.addrs, sp.ClusterIP), sp.Port
		}
	}
	switch why := n.unserved[name]; {
	case len(has) == 0 && why != "":
		return p, errors.New(why)
	case len(has) == 0:
		all := slices.Sorted(maps.Keys(n.services))
		return p, fmt.Errorf("there is no such Service (NAMESPACE/NAME) with a cluster IP (a headless one has none) among the objects%s%s", nearest.Hint(name, all), known("services", all))
	case len(fit) == 0 && port == "":
		return p, fmt.Errorf("it has no %s port; there are %s", proto, nearest.Some(has))
	case len(fit) == 0:
		return p, fmt.Errorf("it has no %s port %s; there are %s", proto, port, nearest.Some(has))
	case len(fit) > 1:
		return p, fmt.Errorf("it has several ports: write service/%s:PORT; there are %s", name, nearest.Some(fit))
	}
	return p, nil
}

// known lists what there is instead.
func known(what string, names []string) string {
	if len(names) == 0 {
		return fmt.Sprintf("; there are no %s", what)
	}
	return "; there are " + nearest.Some(names)
}
