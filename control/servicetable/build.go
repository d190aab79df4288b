// Package servicetable makes the service table: from Kubernetes objects and what is
// known of the node to an immutable [decision.Table]. The [Controller] builds a new one
// whenever an input changes; its work is in proportion to the change.
//
// It is a ground package.
package servicetable

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Build makes the service ports of all Services, in the order of namespace and
// name. Warnings, one line each, are about objects that are valid but probably not as
// intended. Build is pure: the same input gives the same output, and it does not
// change or keep the objects.
func Build(objects *kube.Objects, node NodeConfig) ([]*decision.ServicePort, []string) {
	services, warnings, _ := build(objects, node)
	return services, warnings
}

// build is Build, and returns the node's own object, too; nil: there is none.
func build(objects *kube.Objects, node NodeConfig) (services []*decision.ServicePort, warnings []string, object *corev1.Node) {
	b := newBuilder(node)
	b.apply(fullUpdate(objects))
	changes, about := b.build()
	warnings = b.nodeWarnings()
	for _, w := range about {
		warnings = append(warnings, w.Text)
	}
	return new(decision.Table).Next(time.Time{}, decision.Node{}, changes...).Services(), warnings, b.node()
}

// Table builds the table of a simulated node: its addresses are its configured ones
// and those of its Node object. It also returns the warnings of [Build],
// and of conflicts.
func Table(objects *kube.Objects, config NodeConfig) (*decision.Table, []string) {
	services, warnings, object := build(objects, config)
	addresses := slices.Clone(config.ips(object))
	if object != nil {
		for _, a := range object.Status.Addresses {
			if a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP {
				addresses = appendAddress(addresses, a.Address)
			}
		}
	}
	table := decision.NewTable(1, time.Time{}, config.node(object, addresses), services)
	for _, c := range table.Conflicts() {
		warnings = append(warnings, c.Error())
	}
	return table, warnings
}

// fullUpdate is the update to the objects.
func fullUpdate(o *kube.Objects) Update {
	u := Update{All: true, Warnings: o.Warnings}
	for _, s := range o.Services {
		u.Add(NewService(s), false)
	}
	for _, s := range o.EndpointSlices {
		u.Add(NewEndpointSlice(s), false)
	}
	for _, n := range o.Nodes {
		u.Add(n, false)
	}
	for _, p := range o.Pods {
		u.Add(p, false)
	}
	return u
}
