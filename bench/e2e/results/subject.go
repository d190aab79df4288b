package results

import (
	"slices"
	"strings"
)

// Subjects are the groups of tests about what a service proxy does, and about what does not work
// without one. They are the beginnings of names.
var Subjects = []string{
	"Services",
	"Service endpoints latency",
	"Service CIDRs",
	"Networking Granular Checks",
	"Networking should check kube-proxy urls",
	"LoadBalancers",
	"Conntrack",
	"Connectivity Pod Lifecycle",
	"KubeProxy",
	"Traffic Distribution",
	"Topology Hints",
	"HostPort",
	"NoSNAT",
	"Proxy version",
	"EndpointSlice",
	"Endpoints",
	"API Server",
	"[Feature:IPv6DualStack]",
	"DNS should provide DNS for services",
}

// Group is the special interest group whose tests are run.
const Group = "[sig-network] "

// Subject is the longest subject with which the name of a test begins; empty if there is none.
func Subject(test string) (subject string) {
	name, ok := strings.CutPrefix(test, Group)
	if !ok {
		return ""
	}
	for _, s := range Subjects {
		if strings.HasPrefix(name, s) && len(s) > len(subject) {
			subject = s
		}
	}
	return subject
}

// conformance reports whether a test belongs to Kubernetes' conformance tests.
func conformance(test string) bool { return strings.Contains(test, "[Conformance]") }

// of are the results about a subject.
func (l List) of(subject string) List {
	return slices.DeleteFunc(slices.Clone(l), func(r Result) bool { return Subject(r.Name) != subject })
}

// conformance are the results of conformance tests.
func (l List) conformance() List {
	return slices.DeleteFunc(slices.Clone(l), func(r Result) bool { return !conformance(r.Name) })
}
