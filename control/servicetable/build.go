// Package servicetable makes the service table: from Kubernetes objects and what is
// known of the node to an immutable [decision.Table]. The [Controller] builds a new one
// whenever an input changes; its work is in proportion to the change.
//
// It is a ground package.
package servicetable

import (
	"time"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Build makes the service ports of all Services, in the order of namespace and
// name. Warnings, one line each, are about objects that are valid but probably not as
// intended. Build is pure: the same input gives the same output, and it does not
// change or keep the objects.
func Build(objects *kube.Objects, node NodeConfig) ([]*decision.ServicePort, []string) {
	b := newBuilder(node)
	b.apply(fullUpdate(objects))
	changes, about := b.build()
	warnings := b.nodeWarnings()
	for _, w := range about {
		warnings = append(warnings, w.Text)
	}
	return new(decision.Table).Next(time.Time{}, decision.Node{}, changes...).Services(), warnings
}
