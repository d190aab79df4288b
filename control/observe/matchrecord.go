package observe

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// MatchRecord is [Filter.Match] for a record, with the names that it has; Nodes count, too.
func (f *Filter) MatchRecord(r *flow.Record) bool {
	return f.MatchNode(r.Node) && (r.Time == nil || f.matchTime(*r.Time)) &&
		named(f.Protocols, r.Protocol) && named(f.Verdicts, r.Verdict) && named(f.Reasons, r.Reason) &&
		one(f.States, r.State()) && (r.Event == 0 || one(f.Events, r.Event)) &&
		f.matchAddresses(r) && f.matchNames(r)
}

// named reports whether the value with the name is in the list; an empty list has all.
func named[T interface{ String() string }](list []T, name string) bool {
	return some(list, func(v T) bool { return v.String() == name })
}

func (f *Filter) matchAddresses(r *flow.Record) bool {
	if len(f.Sources)+len(f.Destinations)+len(f.Ports)+len(f.Endpoints) == 0 {
		return true
	}
	source, _ := netip.ParseAddrPort(r.Source)
	destination, _ := netip.ParseAddrPort(r.Destination)
	endpoint, _ := netip.ParseAddrPort(r.Endpoint)
	of := func(list []AddressPattern, a netip.AddrPort, o flow.Owner) bool {
		return some(list, func(x AddressPattern) bool { return a.IsValid() && x.match(a, o) })
	}
	return of(f.Sources, source, flow.Owner{Pod: r.SourcePod, Node: r.SourceNode, Host: r.SourceHost}) &&
		of(f.Destinations, destination, flow.Owner{}) && one(f.Ports, destination.Port()) &&
		of(f.Endpoints, endpoint, flow.Owner{Pod: r.Pod, Node: r.EndpointNode})
}

func (f *Filter) matchNames(r *flow.Record) bool {
	namespace, rest, isService := strings.Cut(r.Service, "/")
	name, port, _ := strings.Cut(rest, ":")
	service := decision.ServicePortName{Namespace: namespace, Name: name, Port: port}
	return some(f.Services, func(x ServicePattern) bool { return isService && x.match(service) }) &&
		some(f.Pods, func(x PodPattern) bool { return x.match(r.SourcePod) || x.match(r.Pod) }) &&
		(len(f.Namespaces) == 0 || slices.ContainsFunc(f.Namespaces, func(n string) bool {
			return isService && namespace == n || strings.HasPrefix(r.SourcePod, n+"/") || strings.HasPrefix(r.Pod, n+"/")
		}))
}
