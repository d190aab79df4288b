package explain

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
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

// NamesOf returns the names of the table's services, of the pods behind them and of the pods.
func NamesOf(t *decision.Table, pods []*corev1.Pod) *Names {
	n := &Names{nodes: make(map[string][]netip.Addr), services: make(map[string][]*decision.ServicePort), objects: make(map[string][]netip.Addr), unserved: make(map[string]string)}
	for _, s := range t.Services() {
		name := s.Name.Namespace + "/" + s.Name.Name
		n.services[name] = append(n.services[name], s)
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
					n.every[e.Pod] = appendNew(n.every[e.Pod], e.AddrPort.Addr())
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

// AddPod adds a pod by its namespace/name.
func (n *Names) AddPod(name string, addresses []netip.Addr) {
	n.objects[name], n.every = addresses, nil
}

// AddNode adds a node by its name.
func (n *Names) AddNode(name string, addresses []netip.Addr) { n.nodes[name] = addresses }

// AddUnserved adds a Service without an address, by its namespace/name, with the reason.
func (n *Names) AddUnserved(name, why string) { n.unserved[name] = why }

// anyPort stands for a source port that was left out.
const anyPort = 40000

// Packet makes a packet of the question. The error is a [*FieldError].
func (n *Names) Packet(q flow.Question) (decision.Packet, error) {
	p := decision.Packet{Local: q.Local, InInterface: q.InInterface}
	if q.Protocol == "" {
		return p, &FieldError{"protocol", errors.New("protocol is missing: tcp, udp or sctp")}
	}
	var err error
	if p.Protocol, err = decision.ParseProtocol(q.Protocol); err != nil {
		return p, &FieldError{"protocol", err}
	}
	if q.Local && q.InInterface != "" {
		return p, &FieldError{"inInterface", fmt.Errorf("a packet that originates on the node has no input interface, but %s is given", q.InInterface)}
	}
	destination, err := n.resolve(q.Destination, p.Protocol)
	if err == nil && destination.port == 0 {
		err = errors.New("a port is missing: write ADDRESS:PORT, [IPV6]:PORT or pod/NAMESPACE/NAME:PORT")
	}
	if err != nil {
		return p, at("destination", q.Destination, err)
	}
	source, err := n.resolve(q.Source, p.Protocol)
	if err != nil {
		return p, at("source", q.Source, err)
	}
	if source.port == 0 {
		source.port = anyPort
	}
	var ok bool
	if p.Source, p.Destination, ok = pair(source, destination); !ok {
		return p, &FieldError{"destination", fmt.Errorf("source %q is %s and destination %q is %s: a packet has one address family",
			q.Source, decision.FamilyOf(source.addrs[0]), q.Destination, decision.FamilyOf(destination.addrs[0]))}
	}
	return p, nil
}

// FieldError is an error in one field of a question.
type FieldError struct {
	Field string // as in JSON
	Err   error
}

// Error is Err's text, which names the field.
func (e *FieldError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *FieldError) Unwrap() error { return e.Err }

func at(field, value string, err error) error {
	if value == "" {
		return &FieldError{field, fmt.Errorf("%s is missing", field)}
	}
	return &FieldError{field, fmt.Errorf("%s %q: %w", field, value, err)}
}

// place is the addresses of a name, or an address, with the port.
type place struct {
	addrs []netip.Addr // at least one; of a name, one of each family
	port  uint16       // 0: not given
}

// pair returns the addresses of one family; of two pairs, the first one.
func pair(from, to place) (source, destination netip.AddrPort, ok bool) {
	for _, d := range to.addrs {
		for _, s := range from.addrs {
			if decision.FamilyOf(s) == decision.FamilyOf(d) {
				return netip.AddrPortFrom(s, from.port), netip.AddrPortFrom(d, to.port), true
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
	var p place
	a, err := netip.ParseAddr(kubeaddr.Unbracket(s))
	if err != nil {
		i := strings.LastIndexByte(s, ':')
		if i < 0 {
			return p, errors.New("not an address such as 10.96.0.10:53 or [fd00::10]:53")
		}
		if a, err = netip.ParseAddr(kubeaddr.Unbracket(s[:i])); err != nil {
			return p, fmt.Errorf("%q is not an address; write it as in 10.96.0.10:53 or [fd00::10]:53", s[:i])
		}
		if p.port, err = portNumber(s[i+1:]); err != nil {
			return p, err
		}
	}
	if a.Zone() != "" {
		return p, errors.New("services never have addresses with a zone (%)")
	}
	p.addrs = []netip.Addr{a.Unmap()}
	return p, nil
}

func portNumber(s string) (uint16, error) {
	port, err := strconv.ParseUint(s, 10, 16)
	if err != nil || port == 0 {
		return 0, fmt.Errorf("port %q: want a number from 1 to 65535", s)
	}
	return uint16(port), nil
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
		if p.port, err = portNumber(port); err != nil {
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
		has = appendNew(has, text)
		if sp.Protocol == proto && (port == "" || port == sp.Name.Port || port == strconv.Itoa(int(sp.Port))) {
			fit = appendNew(fit, text)
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
		return p, fmt.Errorf("it has no %s port; there are %s", proto, Some(has))
	case len(fit) == 0:
		return p, fmt.Errorf("it has no %s port %s; there are %s", proto, port, Some(has))
	case len(fit) > 1:
		return p, fmt.Errorf("it has several ports: write service/%s:PORT; there are %s", name, Some(fit))
	}
	return p, nil
}

func appendNew[T comparable](list []T, v T) []T {
	if slices.Contains(list, v) {
		return list
	}
	return append(list, v)
}

// known lists what there is instead.
func known(what string, names []string) string {
	if len(names) == 0 {
		return fmt.Sprintf("; there are no %s", what)
	}
	return "; there are " + Some(names)
}

// Some joins the first few.
func Some(list []string) string {
	const few = 8
	if len(list) > few {
		list = append(list[:few:few], fmt.Sprintf("and %d more", len(list)-few))
	}
	return strings.Join(list, ", ")
}
