package observe

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Match reports whether a flow of the node passes the filter: at an event or, without one, in its present state;
// without a state, in any. It ignores Nodes (see [Filter.MatchNode]) and ServicesOnly: the caller counts the flows that
// it leaves out.
func (f *Filter) Match(fl *flow.Flow, s flow.State, e flow.Event, names flow.Names) bool {
	return f.matchPacket(&fl.Packet, names) && f.matchDecision(fl, names) && f.matchPods(fl, names) &&
		one(f.States, s) && (e == 0 || one(f.Events, e)) && f.MatchTime(fl.Time)
}

// MatchTime reports whether flows decided at a time can pass.
func (f *Filter) MatchTime(at time.Time) bool {
	return !at.Before(f.Since) && (f.Until.IsZero() || at.Before(f.Until))
}

// MatchNode reports whether any flow of the node can pass.
func (f *Filter) MatchNode(name string) bool { return one(f.Nodes, name) }

// Match reports whether a service port passes the filter. It ignores Active, Limit and After.
func (f *ServiceFilter) Match(name decision.ServicePortName) bool {
	return some(f.Services, func(x ServicePattern) bool { return x.Match(name) }) && one(f.Namespaces, name.Namespace)
}

// some reports whether one of the list matches; an empty list always does.
func some[T any](list []T, match func(T) bool) bool {
	return len(list) == 0 || slices.ContainsFunc(list, match)
}

// one reports whether the value is in the list; an empty list has all.
func one[T comparable](list []T, value T) bool { return len(list) == 0 || slices.Contains(list, value) }

func (f *Filter) matchPacket(p *decision.Packet, names flow.Names) bool {
	return one(f.Protocols, p.Protocol) && one(f.Ports, p.Destination.Port()) &&
		some(f.Sources, func(x AddressPattern) bool { return x.Match(p.Source, names.Owner(p.Source.Addr())) }) &&
		some(f.Destinations, func(x AddressPattern) bool { return x.Match(p.Destination, flow.Owner{}) })
}

// Match reports whether the address of an owner passes.
func (x AddressPattern) Match(a netip.AddrPort, o flow.Owner) bool {
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

// endpointPod is the pod of the selected endpoint; empty: not known, or the flow went to another.
func endpointPod(fl *flow.Flow) string {
	d := &fl.Decision
	if !d.HasEndpoint() || fl.Endpoint() != d.Endpoint() {
		return ""
	}
	return d.ServicePort.Endpoints[d.Index].Pod
}

func (f *Filter) matchDecision(fl *flow.Flow, names flow.Names) bool {
	d := &fl.Decision
	if !one(f.Verdicts, d.Verdict) || !one(f.Reasons, d.Reason) {
		return false
	}
	if len(f.Endpoints) > 0 {
		to := fl.Endpoint()
		o := names.Owner(to.Addr())
		o.Pod = cmp.Or(endpointPod(fl), o.Pod)
		if !to.IsValid() || !some(f.Endpoints, func(x AddressPattern) bool { return x.Match(to, o) }) {
			return false
		}
	}
	return len(f.Services) == 0 || d.ServicePort != nil && some(f.Services, func(x ServicePattern) bool { return x.Match(d.ServicePort.Name) })
}

// Match reports whether the service port passes.
func (x ServicePattern) Match(name decision.ServicePortName) bool {
	return (x.Namespace == "" || x.Namespace == name.Namespace) && (x.Name == "" || x.Name == name.Name) && (x.Port == "" || x.Port == name.Port)
}

// matchPods matches the names of the pods, and namespaces.
func (f *Filter) matchPods(fl *flow.Flow, names flow.Names) bool {
	if len(f.Pods) == 0 && len(f.Namespaces) == 0 {
		return true
	}
	pods := [2]string{names.Owner(fl.Packet.Source.Addr()).Pod, endpointPod(fl)}
	d := &fl.Decision
	of := func(namespace string) bool {
		return d.ServicePort != nil && d.ServicePort.Name.Namespace == namespace ||
			strings.HasPrefix(pods[0], namespace+"/") || strings.HasPrefix(pods[1], namespace+"/")
	}
	return some(f.Namespaces, of) && some(f.Pods, func(x PodPattern) bool { return x.Match(pods[0]) || x.Match(pods[1]) })
}

// Match reports whether the pod, NAMESPACE/NAME, passes.
func (x PodPattern) Match(pod string) bool {
	namespace, name, ok := strings.Cut(pod, "/")
	return ok && name == x.Name && (x.Namespace == "" || x.Namespace == namespace)
}
