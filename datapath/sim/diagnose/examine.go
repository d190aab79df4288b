package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Examine looks at all Services, and returns what is wrong with them, the worst first.
func (c *Cluster) Examine() []Finding {
	e := &examination{Cluster: c, seen: make(map[Finding]bool)}
	for _, n := range sortedNames(c.services) {
		e.service(c.services[n])
	}
	e.addresses()
	for _, s := range c.objects.Skipped {
		if s.Kind == "Endpoints" {
			e.add(Finding{
				Code: DeprecatedEndpoints, Text: fmt.Sprintf("there are %d objects of kind Endpoints, which is deprecated since Kubernetes 1.33", s.Count),
				Do: "use EndpointSlices",
			})
		}
	}
	slices.SortStableFunc(e.findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Code.Severity(), b.Code.Severity()), cmp.Compare(a.Code, b.Code))
	})
	return e.findings
}

func sortedNames[T any](of map[name]T) []name {
	names := make([]name, 0, len(of))
	for n := range of {
		names = append(names, n)
	}
	slices.SortFunc(names, name.Compare)
	return names
}

// examination collects findings, each once.
type examination struct {
	*Cluster
	findings []Finding
	seen     map[Finding]bool
}

func (e *examination) add(f Finding) {
	if !e.seen[f] {
		e.seen[f] = true
		e.findings = append(e.findings, f)
	}
}

func (e *examination) service(svc *corev1.Service) {
	headless := svc.Spec.ClusterIP == corev1.ClusterIPNone
	if control.Unserved(svc) != "" && !headless {
		return
	}
	for i := range svc.Spec.Ports {
		w := &inquiry{Cluster: e.Cluster, to: &party{service: svc}, port: &svc.Spec.Ports[i]}
		ports := w.portsInTable(e.table(w.nodes.some()))
		if headless {
			if ready, cause := e.backends(svc, w.port, ""); !ready {
				e.add(cause)
			}
		}
		for _, s := range ports {
			if ready, cause := e.backends(svc, w.port, s.Family.String()); !ready {
				e.add(cause)
				continue
			}
			e.listeners(w, s)
			e.policies(svc, s)
		}
	}
	e.readiness(svc)
	e.slicesOf(svc)
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer && len(svc.Status.LoadBalancer.Ingress) == 0 {
		e.add(Finding{
			Code: NoAddressYet, Object: objectOf(svc), Field: "status.loadBalancer",
			Text: fmt.Sprintf("%s has no address of a load balancer", objectOf(svc)),
			Do:   "check that a controller for load balancers runs in the cluster; node ports work without one",
		})
	}
	if len(svc.Spec.ExternalIPs) > 0 {
		e.add(Finding{
			Code: DeprecatedExternalIPs, Object: objectOf(svc), Field: "spec.externalIPs",
			Text: fmt.Sprintf("%s has externalIPs, which are deprecated since Kubernetes 1.36", objectOf(svc)),
			Do:   "use type LoadBalancer, or Gateway API",
		})
	}
}

// listeners checks whether Pods listen where the endpoints are.
func (e *examination) listeners(w *inquiry, s *decision.ServicePort) {
	var problems []Finding
	ready := 0
	for i := range s.Endpoints {
		if ep := &s.Endpoints[i]; ep.Ready {
			ready++
			if p := w.endpoint(ep, s.Protocol); p != nil {
				problems = append(problems, *p)
			}
		}
	}
	switch {
	case len(problems) == 0:
	case len(problems) == ready:
		e.add(problems[0])
	default:
		f := problems[0]
		f.Text = fmt.Sprintf("%d of %d endpoints will not answer: %s", len(problems), ready, f.Text)
		e.add(f)
	}
}

// policies checks traffic policies and session affinity.
func (e *examination) policies(svc *corev1.Service, s *decision.ServicePort) {
	if field := localPolicy(svc); field != "" {
		has := make(map[string]bool)
		for i := range s.Endpoints {
			if ep := &s.Endpoints[i]; ep.Ready {
				has[ep.NodeName] = true
			}
		}
		without := slices.DeleteFunc(slices.Clone(e.nodes.names), func(n string) bool { return has[n] })
		if len(without) > 0 && len(without) < len(e.nodes.names) {
			e.add(Finding{
				Code: NodesWithout, Object: objectOf(svc), Field: "spec." + field,
				Text: fmt.Sprintf("%s of %s is Local, and these nodes have no endpoint of it: %s; they drop its packets", field, objectOf(svc), nearest.Few(without)),
				Do:   fmt.Sprintf("set spec.%s to Cluster, or run a Pod of it on each node that gets packets", field),
			})
		}
	}
	if s.AffinitySeconds > 0 && len(s.Endpoints) == 1 {
		e.add(Finding{
			Code: AffinityToOne, Object: objectOf(svc), Field: "spec.sessionAffinity",
			Text: fmt.Sprintf("%s has session affinity and one endpoint", objectOf(svc)), Do: "session affinity has no effect before there are more",
		})
	}
}

// localPolicy is the policy that is Local; "" if none is. A load balancer checks which nodes have endpoints.
func localPolicy(svc *corev1.Service) string {
	switch {
	case deref(svc.Spec.InternalTrafficPolicy) == corev1.ServiceInternalTrafficPolicyLocal:
		return "internalTrafficPolicy"
	case svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && svc.Spec.Type == corev1.ServiceTypeNodePort:
		return "externalTrafficPolicy"
	}
	return ""
}

// readiness is about Services of which some Pods are not ready.
func (e *examination) readiness(svc *corev1.Service) {
	var states []string
	in := e.podsIn[svc.Namespace]
	if in == nil {
		return
	}
	pods := in.selected(svc.Spec.Selector)
	for _, p := range pods {
		if state := stateOf(p); state != "" && state != "terminating" {
			states = append(states, fmt.Sprintf("%s (%s)", p.Name, state))
		}
	}
	if len(states) > 0 && len(states) < len(pods) {
		e.add(Finding{
			Code: SomeNotReady, Object: objectOf(svc), Text: fmt.Sprintf("%d of %d Pods of %s are not ready: %s", len(states), len(pods), objectOf(svc), nearest.Few(states)),
			Do: fmt.Sprintf("kubectl -n %s describe pods", svc.Namespace),
		})
	}
}

// slicesOf checks whether a port has one number in all EndpointSlices, unless its target is a name: Pods may
// have different numbers for that.
func (e *examination) slicesOf(svc *corev1.Service) {
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		if p.TargetPort.StrVal != "" {
			continue
		}
		var numbers []string
		for _, s := range e.slices[name{Namespace: svc.Namespace, Name: svc.Name}] {
			for _, q := range s.Ports {
				if deref(q.Name) == p.Name && protocolOf(corev1.Protocol(deref(q.Protocol))) == protocolOf(p.Protocol) && q.Port != nil && len(s.Endpoints) > 0 {
					numbers = append(numbers, fmt.Sprint(*q.Port))
				}
			}
		}
		if slices.Sort(numbers); len(slices.Compact(numbers)) > 1 {
			e.add(Finding{
				Code: SlicesDiffer, Object: objectOf(svc), Field: "spec.ports",
				Text: fmt.Sprintf("port %s of %s has different numbers in its EndpointSlices: %s", portText(p), objectOf(svc), nearest.Few(numbers)),
				Do:   "remove EndpointSlices that were made by hand, or give them the target port of the Service",
			})
		}
	}
}

// addresses checks the addresses of all Services.
func (e *examination) addresses() {
	t := e.table(e.nodes.some())
	opens := map[decision.Family]bool{decision.IPv4: e.opensNodePorts(decision.IPv4), decision.IPv6: e.opensNodePorts(decision.IPv6)}
	for _, c := range t.Conflicts() {
		e.add(Finding{Code: ClaimedTwice, Text: c.Error(), Do: "give each Service addresses and ports of its own"})
	}
	for _, s := range t.Services() {
		for _, a := range s.ExternalIPs {
			if n := e.nodes.with[a]; n != "" {
				e.add(Finding{
					Code: NodeAddress, Object: "Service " + s.Name.Service().String(), Field: "spec.externalIPs",
					Text: fmt.Sprintf("%s is an address of node %s: the Service takes all connections to port %d of it, those to programs of the node too", a, n, s.Port),
					Do:   "use a node port, or an address that no node has",
				})
			}
		}
		if s.NodePort != 0 && !opens[s.Family] {
			e.add(Finding{
				Code: AllClosed, Object: "Service " + s.Name.Service().String(), Field: "spec.ports.nodePort",
				Text: fmt.Sprintf("node port %d is open at no %s address of any node: --nodeport-addresses excludes them (%s)", s.NodePort, s.Family, prefixes(e.config.NodePortAddresses)),
				Do:   "change --nodeport-addresses of the proxy",
			})
		}
	}
}

func prefixes(list []netip.Prefix) string {
	var texts []string
	for _, p := range list {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ", ")
}
