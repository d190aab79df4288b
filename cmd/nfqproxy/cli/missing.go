package cli

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/observe"
)

// checkNames returns an error for services, nodes, namespaces, pods and machines in the filters that the flow API
// does not know. A failed request is no error here: the caller's own request reports it.
func checkNames(ctx context.Context, observer observe.Observer, q observe.FlowQuery) error {
	sources, endpoints := unaddressed(q.Source), unaddressed(q.Endpoint)
	if q.Service+q.Pod+q.Node+q.Namespace+sources+endpoints == "" {
		return nil
	}
	n, err := namesAt(ctx, observer)
	if err != nil {
		return nil
	}
	if err := missing("service", "service", q.Service, n.services); err != nil {
		return err
	}
	if len(n.nodes) > 0 {
		if err := missing("node", "node", q.Node, n.nodes); err != nil {
			return err
		}
	}
	if len(n.pods) == 0 { // without --pod-names a daemon has no pods
		return nil
	}
	if err := missing("namespace", "namespace with services or pods", q.Namespace, n.namespaces); err != nil {
		return err
	}
	if err := missing("pod", "pod", q.Pod, n.pods); err != nil {
		return err
	}
	if err := missing("source", "pod, node or client", sources, n.machines()); err != nil {
		return err
	}
	return missing("endpoint", "pod, node or client", endpoints, n.machines())
}

// unaddressed are the values of a list that are no addresses.
func unaddressed(list string) string {
	values := strings.Split(list, ",")
	return strings.Join(slices.DeleteFunc(values, func(s string) bool {
		s = strings.TrimSpace(s)
		_, err := netip.ParseAddr(s)
		_, portErr := netip.ParseAddrPort(s)
		_, prefixErr := netip.ParsePrefix(s)
		return err == nil || portErr == nil || prefixErr == nil
	}), ",")
}

// missing finds the first value of a list, NAME, NAMESPACE/NAME or either with a port, that is
// none of the names.
func missing(flag, kind, values string, names []string) error {
	for value := range strings.SplitSeq(values, ",") {
		name, _, _ := strings.Cut(strings.TrimSpace(value), ":")
		if name == "" || slices.ContainsFunc(names, func(n string) bool { return n == name || strings.HasSuffix(n, "/"+name) }) {
			continue
		}
		if len(names) == 0 {
			return fmt.Errorf("--%s %s: no %s exists", flag, name, kind)
		}
		return fmt.Errorf("--%s %s: no such %s%s; known: %s", flag, name, kind, nearest.Hint(name, names), nearest.Few(names))
	}
	return nil
}
