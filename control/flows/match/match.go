// Package match matches the flows of a node against the filter of a request.
package match

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/flows/journal"
	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Node is the node whose flows are matched.
type Node struct {
	Name  string
	Names journal.Names // names of sources; nil: not known
}

// Flows returns a function that reports whether a flow at an event (empty: in its present state)
// passes the filter. It ignores ServicesOnly: the caller counts the flows that this leaves out. It
// is safe for concurrent use.
func (n Node) Flows(f *observe.Filter) func(*flow.Flow, flow.State, flow.Event) bool {
	return func(fl *flow.Flow, s flow.State, e flow.Event) bool {
		return n.Passes(f) && n.matchPacket(f, &fl.Packet) && n.matchDecision(f, fl) && n.matchPods(f, fl) &&
			any(f.States, func(x flow.State) bool { return x == s }) &&
			(e == "" || any(f.Events, func(x flow.Event) bool { return x == e })) &&
			!fl.Time.Before(f.Since)
	}
}

// any reports whether one of the list matches; an empty list always does.
func any[T comparable](list []T, holds func(T) bool) bool {
	return len(list) == 0 || slices.ContainsFunc(list, holds)
}

// Passes reports whether any flow of the node can pass.
func (n Node) Passes(f *observe.Filter) bool {
	return len(f.Nodes) == 0 || slices.Contains(f.Nodes, n.Name)
}

// Service reports whether a service port passes.
func Service(f *observe.ServiceFilter, name decision.ServicePortName) bool {
	return any(f.Services, func(x observe.ServicePattern) bool { return matchService(x, name) }) &&
		any(f.Namespaces, func(x string) bool { return x == name.Namespace })
}

func (n Node) matchPacket(f *observe.Filter, p *decision.Packet) bool {
	return any(f.Protocols, func(x decision.Protocol) bool { return x == p.Protocol }) &&
		any(f.Ports, func(x uint16) bool { return x == p.Destination.Port() }) &&
		any(f.Sources, func(x observe.AddressPattern) bool { return matchAddress(x, p.Source, n.owner(p.Source.Addr())) }) &&
		any(f.Destinations, func(x observe.AddressPattern) bool { return matchAddress(x, p.Destination, journal.Owner{}) })
}

func matchAddress(x observe.AddressPattern, a netip.AddrPort, o journal.Owner) bool {
	switch {
	case x.Port != 0 && x.Port != a.Port():
		return false
	case x.Name == "":
		return x.Prefix.Contains(a.Addr().Unmap())
	case o.Pod != "": // the pod has the address, not its node
		return o.Pod == x.Name || strings.HasSuffix(o.Pod, "/"+x.Name)
	}
	return o.Host == x.Name || o.Node == x.Name
}

// owner returns the owner of the address; empty: not known.
func (n Node) owner(a netip.Addr) journal.Owner {
	if n.Names == nil {
		return journal.Owner{}
	}
	return n.Names.Owner(a)
}

// endpointPod is the pod of the selected endpoint; empty: not known, or the flow went to another.
func endpointPod(fl *flow.Flow) string {
	d := &fl.Decision
	if d.Verdict != decision.DNAT || fl.Endpoint() != d.Endpoint() {
		return ""
	}
	return d.ServicePort.Endpoints[d.Index].Pod
}

func (n Node) matchDecision(f *observe.Filter, fl *flow.Flow) bool {
	d := &fl.Decision
	if !any(f.Verdicts, func(x decision.Verdict) bool { return x == d.Verdict }) ||
		!any(f.Reasons, func(x string) bool { return x == d.Reason.String() }) {
		return false
	}
	if len(f.Endpoints) > 0 {
		to := fl.Endpoint()
		o := n.owner(to.Addr())
		o.Pod = cmp.Or(endpointPod(fl), o.Pod)
		if !to.IsValid() || !any(f.Endpoints, func(x observe.AddressPattern) bool { return matchAddress(x, to, o) }) {
			return false
		}
	}
	return len(f.Services) == 0 || d.ServicePort != nil && any(f.Services, func(x observe.ServicePattern) bool { return matchService(x, d.ServicePort.Name) })
}

func matchService(x observe.ServicePattern, name decision.ServicePortName) bool {
	return (x.Namespace == "" || x.Namespace == name.Namespace) && (x.Name == "" || x.Name == name.Name) && (x.Port == "" || x.Port == name.Port)
}

// matchPods matches the names of the pods, and namespaces.
func (n Node) matchPods(f *observe.Filter, fl *flow.Flow) bool {
	if len(f.Pods) == 0 && len(f.Namespaces) == 0 {
		return true
	}
	pods := [2]string{n.owner(fl.Packet.Source.Addr()).Pod, endpointPod(fl)}
	d := &fl.Decision
	of := func(namespace string) bool {
		return d.ServicePort != nil && d.ServicePort.Name.Namespace == namespace ||
			strings.HasPrefix(pods[0], namespace+"/") || strings.HasPrefix(pods[1], namespace+"/")
	}
	return any(f.Namespaces, of) && any(f.Pods, func(x observe.PodPattern) bool { return matchPod(x, pods[0]) || matchPod(x, pods[1]) })
}

func matchPod(x observe.PodPattern, pod string) bool {
	namespace, name, ok := strings.Cut(pod, "/")
	return ok && name == x.Name && (x.Namespace == "" || x.Namespace == namespace)
}
