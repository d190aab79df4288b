package flow

import (
	"cmp"
	"net/netip"
)

// Owner is the owner of an address: a pod (namespace/name) with its node, a node, or a machine
// outside the cluster. Unknown names are empty.
type Owner struct{ Pod, Node, Host string }

// Names returns the owner of an address. It is safe for concurrent use; nil knows no names.
type Names func(netip.Addr) Owner

// Owner returns the owner of an address.
func (n Names) Owner(a netip.Addr) Owner {
	if n == nil {
		return Owner{}
	}
	return n(a)
}

// AddNames adds the names of the record's source and endpoint that are missing. It reports whether there were any.
func (r *Record) AddNames(n Names) (added bool) {
	names := func() [5]string { return [...]string{r.SourcePod, r.SourceNode, r.SourceHost, r.Pod, r.EndpointNode} }
	before := names()
	if source, err := netip.ParseAddrPort(r.Source); err == nil {
		o := n.Owner(source.Addr())
		r.SourcePod, r.SourceNode, r.SourceHost = cmp.Or(r.SourcePod, o.Pod), cmp.Or(r.SourceNode, o.Node), cmp.Or(r.SourceHost, o.Host)
	}
	if endpoint, err := netip.ParseAddrPort(r.Endpoint); err == nil {
		o := n.Owner(endpoint.Addr())
		r.Pod, r.EndpointNode = cmp.Or(r.Pod, o.Pod), cmp.Or(r.EndpointNode, o.Node)
	}
	return names() != before
}
