package diagnose

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// asPrinted completes services of objects by those of a node with the same address: those from what kubectl prints for people, which
// shows no names of ports, and not all of policies, source ranges and hints; and those in files without the EndpointSlices of their
// namespace.
func asPrinted(want, is []*audit.Service, objects *kube.Objects) {
	services, sliced := make(map[name]*corev1.Service), make(map[string]bool)
	for _, s := range objects.EndpointSlices {
		sliced[s.Namespace] = true
	}
	for _, s := range objects.Services {
		if s.ResourceVersion == manifest.Printed || !sliced[s.Namespace] {
			services[nameOf(s)] = s
		}
	}
	for i, w := range want {
		svc := services[w.Name.Service()]
		if svc == nil {
			continue
		}
		at := slices.IndexFunc(is, func(r *audit.Service) bool {
			return r.ClusterIP == w.ClusterIP && r.Port == w.Port && r.Protocol == w.Protocol && r.ClusterIP.IsValid()
		})
		if at < 0 {
			continue
		}
		r := *is[at]
		r.NodePort = w.NodePort
		if sliced[svc.Namespace] && svc.Annotations[manifest.NotShown] == "" && !r.Dropped && r.InternalPolicy != decision.Local && r.ExternalPolicy != decision.Local {
			r.Refused, r.Endpoints = w.Refused, asListed(w.Endpoints, r.Endpoints)
		}
		want[i] = &r
	}
}

// asListed are the endpoints of a node that are listed and, if others are not, or there are none, all listed ones: hints may keep some off
// the node.
func asListed(listed, has []audit.Endpoint) []audit.Endpoint {
	place := func(all []audit.Endpoint, e *audit.Endpoint) int {
		return slices.IndexFunc(all, func(o audit.Endpoint) bool { return o.AddrPort == e.AddrPort })
	}
	both := slices.DeleteFunc(slices.Clone(has), func(e audit.Endpoint) bool { return place(listed, &e) < 0 })
	if len(both) == len(has) && len(has) > 0 {
		return both
	}
	for i := range listed {
		if place(both, &listed[i]) < 0 {
			both = append(both, listed[i])
		}
	}
	return both
}
