package history

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Matches is [observe.Filter.Match] for a record, with the names that it has; Nodes count, too.
func Matches(f *observe.Filter, r *flow.Record) bool {
	return f.MatchNode(r.Node) && f.MatchTime(*r.Time) &&
		named(f.Protocols, r.Protocol) && named(f.Verdicts, r.Verdict) && named(f.Reasons, r.Reason) &&
		some(f.States, func(s flow.State) bool { return s == r.State() }) && matchesAddresses(f, r) && matchesNames(f, r)
}

// some reports whether one of the list matches; an empty list always does.
func some[T any](list []T, match func(T) bool) bool {
	return len(list) == 0 || slices.ContainsFunc(list, match)
}

// named reports whether the value with the name is in the list; an empty list has all.
func named[T interface{ String() string }](list []T, name string) bool {
	return some(list, func(v T) bool { return v.String() == name })
}

func matchesAddresses(f *observe.Filter, r *flow.Record) bool {
	if len(f.Sources)+len(f.Destinations)+len(f.Ports)+len(f.Endpoints) == 0 {
		return true
	}
	of := func(list []observe.AddressPattern, address string, o flow.Owner) bool {
		a, err := netip.ParseAddrPort(address)
		return some(list, func(x observe.AddressPattern) bool { return err == nil && x.Match(a, o) })
	}
	_, port := split(r.Destination, pool{})
	return of(f.Sources, r.Source, flow.Owner{Pod: r.SourcePod, Node: r.SourceNode, Host: r.SourceHost}) &&
		of(f.Destinations, r.Destination, flow.Owner{}) && some(f.Ports, func(p uint16) bool { return p == port }) &&
		of(f.Endpoints, r.Endpoint, flow.Owner{Pod: r.Pod, Node: r.EndpointNode})
}

func matchesNames(f *observe.Filter, r *flow.Record) bool {
	namespace, rest, isService := strings.Cut(r.Service, "/")
	name, port, _ := strings.Cut(rest, ":")
	service := decision.ServicePortName{Namespace: namespace, Name: name, Port: port}
	return some(f.Services, func(x observe.ServicePattern) bool { return isService && x.Match(service) }) &&
		some(f.Pods, func(x observe.PodPattern) bool { return x.Match(r.SourcePod) || x.Match(r.Pod) }) &&
		some(f.Namespaces, func(n string) bool {
			return isService && namespace == n || strings.HasPrefix(r.SourcePod, n+"/") || strings.HasPrefix(r.Pod, n+"/")
		})
}
