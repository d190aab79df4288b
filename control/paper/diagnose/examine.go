package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/paper/kubeproxyconfig"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Examine looks at all Services, and returns what is wrong with them, the worst first, and last what is intended.
func (c *Cluster) Examine() []Finding {
	e := &examination{Cluster: c, seen: make(map[Finding]bool), clients: make(map[string]*party)}
	for _, n := range sortedNames(c.services) {
		e.service(c.services[n])
	}
	e.addresses()
	e.mirrored()
	e.mode()
	e.sharedAddresses()
	e.podsOutside()
	e.sharedNodes()
	e.unnamedPods()
	for _, n := range e.objects.Nodes {
		e.addAny(e.NotReady(n.Name))
	}
	for i := range e.findings {
		e.Ignore(&e.findings[i])
	}
	Sort(e.findings)
	return e.findings
}

func sortedNames[T any](of map[name]T) []name {
	return slices.SortedFunc(maps.Keys(of), name.Compare)
}

// examination collects findings, each once.
type examination struct {
	*Cluster
	findings []Finding
	seen     map[Finding]bool  // without examples
	clients  map[string]*party // by namespace and family
}

func (e *examination) add(f Finding) {
	if !e.seen[f] {
		e.seen[f] = true
		e.findings = append(e.findings, f)
	}
}

// addAny adds those of the findings that are not nil.
func (e *examination) addAny(findings ...*Finding) {
	for _, f := range findings {
		if f != nil {
			e.add(*f)
		}
	}
}

func (e *examination) service(svc *corev1.Service) {
	headless := svc.Spec.ClusterIP == corev1.ClusterIPNone
	e.addAny(e.badExternalName(svc), headlessAddress(svc))
	for i := range svc.Spec.Ports {
		e.addAny(externalPort(svc, &svc.Spec.Ports[i]))
	}
	if servicetable.Unserved(svc) != "" && !headless {
		return
	}
	for i := range svc.Spec.Ports {
		w := &inquiry{Cluster: e.Cluster, to: &party{service: svc}, port: &svc.Spec.Ports[i]}
		ports := w.portsInTable(e.table(w.nodes.some()))
		if headless {
			if ready, cause := e.backends(svc, w.port, ""); !ready {
				e.add(cause)
			} else {
				e.addAny(e.untranslated(svc, w.port))
			}
		}
		for _, s := range ports {
			if ready, cause := e.backends(svc, w.port, s.Family.String()); !ready {
				e.addWith(w, s, cause)
				continue
			}
			e.listeners(w, s)
			e.policies(svc, s)
			e.addAny(e.lackPort(svc, w.port))
		}
	}
	e.nodePortRange(svc)
	e.addAny(cmp.Or(e.readiness(svc), e.leftOut(svc)))
	e.slicesOf(svc)
	e.hints(svc)
	e.inCIDRs(svc)
	e.furtherAddresses(svc)
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer && len(svc.Status.LoadBalancer.Ingress) == 0 && !e.isUnsubmitted(svc) {
		e.add(noAddressYet(svc))
	}
	switch {
	case len(svc.Spec.ExternalIPs) == 0:
	case e.config.IgnoreExternalIPs:
		e.add(externalIPsIgnored(svc))
	default:
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
		e.addWith(w, s, problems[0])
	default:
		e.add(ofSome(problems, ready))
	}
}

// policies checks traffic policies and session affinity.
func (e *examination) policies(svc *corev1.Service, s *decision.ServicePort) {
	for _, field := range localPolicies(svc) {
		few, hidden := e.fewReplicas(svc, s, field), e.placesNotShown(svc, field)
		e.addAny(cmp.Or(few, hidden))
		if onNoNode(s) && hidden == nil {
			e.add(Finding{
				Code: NoLocalEndpoints, Object: objectOf(svc), Field: "spec." + field,
				Text: fmt.Sprintf("%s of %s is Local, and its EndpointSlices do not say on which node an endpoint is: all nodes drop its packets", field, objectOf(svc)),
				Do:   "set nodeName of each endpoint in the EndpointSlices, or spec." + field + " to Cluster",
			})
		} else if few == nil && hidden == nil {
			e.nodesWithout(svc, field)
		}
	}
	if s.NodePort != 0 && balanced(svc) {
		if few := e.fewReplicas(svc, s, "externalTrafficPolicy"); few != nil {
			few.Code = NodesWithout
			few.Text += fmt.Sprintf(" to node port %d. A load balancer that checks the health of nodes sends it none", s.NodePort)
			e.add(*few)
		}
	}
	if s.AffinitySeconds > 0 && len(s.Endpoints) == 1 {
		e.add(Finding{
			Code: AffinityToOne, Object: objectOf(svc), Field: "spec.sessionAffinity",
			Text: fmt.Sprintf("%s has session affinity and one endpoint", objectOf(svc)), Do: "session affinity has no effect until there are more",
		})
	}
}

// balanced reports whether a load balancer sends packets to nodes with endpoints only.
func balanced(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// localPolicies are the policies that are Local. It leaves out that of a load balancer, which checks which nodes have endpoints.
func localPolicies(svc *corev1.Service) (fields []string) {
	if deref(svc.Spec.InternalTrafficPolicy) == corev1.ServiceInternalTrafficPolicyLocal {
		fields = append(fields, "internalTrafficPolicy")
	}
	if svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && (svc.Spec.Type == corev1.ServiceTypeNodePort || len(svc.Spec.ExternalIPs) > 0) {
		fields = append(fields, "externalTrafficPolicy")
	}
	return fields
}

// checkNodeName is what to do about endpoints whose nodes are not among the Nodes.
const checkNodeName = "check that the nodeName of the endpoints is the name of a Node, or add the missing Nodes to the files"

// nodesWithout finds nodes that have no endpoint for a policy Local: none that is ready, and none that serves while it terminates.
func (e *examination) nodesWithout(svc *corev1.Service, field string) {
	has := make(map[string]bool)
	for _, ep := range e.endpointsOf(svc) {
		if isUsable(ep) {
			has[deref(ep.NodeName)] = true
		}
	}
	delete(has, "")
	without := slices.DeleteFunc(slices.Clone(e.nodes.names), func(n string) bool { return has[n] })
	if len(without) == 0 || len(has) == 0 {
		return
	}
	f := Finding{
		Code: NodesWithout, Object: objectOf(svc), Field: "spec." + field,
		Text: fmt.Sprintf("%s of %s is Local, and these nodes have no endpoint for it: %s; they drop its packets", field, objectOf(svc), nearest.Few(without)),
		Do:   fmt.Sprintf("set spec.%s to Cluster, or run one of its Pods on each node that gets packets", field),
	}
	if len(without) == len(e.nodes.names) {
		f.Text += fmt.Sprintf("; its endpoints are on %s, of which there is no Node here", nearest.Few(slices.Sorted(maps.Keys(has))))
		f.Do = checkNodeName
	}
	e.add(f)
}

// readiness is the finding of a Service of which some Pods are not ready, or of which such Pods get flows; nil: there are none.
func (c *Cluster) readiness(svc *corev1.Service) *Finding {
	var states []string
	in := c.podsIn[svc.Namespace]
	if in == nil || svc.Spec.PublishNotReadyAddresses && svc.Spec.ClusterIP == corev1.ClusterIPNone { // peers that find each other
		return nil
	}
	pods := in.selected(svc.Spec.Selector)
	for _, p := range pods {
		if state := c.stateOf(p); state != "" && state != "terminating" {
			states = append(states, fmt.Sprintf("%s (%s)", p.Name, state))
		}
	}
	publish := ""
	switch {
	case len(states) == 0, len(states) == len(pods) && !svc.Spec.PublishNotReadyAddresses:
		return nil
	case svc.Spec.PublishNotReadyAddresses:
		publish = ", and get flows like the others (spec.publishNotReadyAddresses)"
	}
	return &Finding{
		Code: SomeNotReady, Object: objectOf(svc), Text: fmt.Sprintf("%d of %d Pods of %s are not ready%s: %s", len(states), len(pods), objectOf(svc), publish, nearest.Few(states)),
		Do: fmt.Sprintf("kubectl -n %s describe pods", svc.Namespace),
	}
}

// lackPort is the finding of a Service some of whose ready Pods have no port with the name of the target port, so that their endpoints
// lack it; nil: all have one, or it is not known.
func (e *examination) lackPort(svc *corev1.Service, port *corev1.ServicePort) *Finding {
	if port.TargetPort.Type != intstr.String {
		return nil
	}
	var without []string
	pods := slices.DeleteFunc(slices.Clone(e.podsIn[svc.Namespace].selected(svc.Spec.Selector)), func(p *corev1.Pod) bool { return !isReady(p) })
	if arePrinted(pods) {
		return nil
	}
	for _, p := range pods {
		if _, has := portNames([]*corev1.Pod{p}, port); !has {
			without = append(without, p.Name)
		}
	}
	if len(without) == 0 || len(without) == len(pods) {
		return nil
	}
	return &Finding{
		Code: SomeNotReady, Object: objectOf(svc), Field: "spec.ports.targetPort",
		Text: fmt.Sprintf("%d of %d ready Pods of %s %s no port named %q, and get no flows of port %s: %s",
			len(without), len(pods), objectOf(svc), verb(len(without), "has", "have"), port.TargetPort.StrVal, portText(port), nearest.Few(without)),
		Do: "name the port in the containers of these Pods, or narrow the selector of the Service if they are of another program",
	}
}

// leftOut is the finding of Pods that are ready and in none of the EndpointSlices that the controller has made of others; nil: there
// are none.
func (e *examination) leftOut(svc *corev1.Service) *Finding {
	listed := make(map[string]bool)
	for _, s := range e.slices[nameOf(svc)] {
		if s.Labels[discoveryv1.LabelManagedBy] != managedByController {
			return nil
		}
		for i := range s.Endpoints {
			if ref := s.Endpoints[i].TargetRef; ref != nil {
				listed[ref.Name] = true
			}
		}
	}
	var names []string
	for _, p := range e.podsIn[svc.Namespace].selected(svc.Spec.Selector) {
		if !listed[p.Name] && p.DeletionTimestamp == nil && isReady(p) && e.templateOf(p) == nil {
			names = append(names, p.Name)
		}
	}
	if len(names) == 0 || len(listed) == 0 {
		return nil
	}
	return &Finding{
		Code: SomeNotReady, Object: objectOf(svc), Text: fmt.Sprintf("Pods of %s are ready, and in none of its EndpointSlices, so they get no flows: %s", objectOf(svc), nearest.Few(names)),
		Do: checkController,
	}
}

// slicesOf checks whether a port has one number in all EndpointSlices, unless its target is a name: Pods may
// have different numbers for that. Without a selector, the numbers are as somebody wants them.
func (e *examination) slicesOf(svc *corev1.Service) {
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		if p.TargetPort.StrVal != "" || len(svc.Spec.Selector) == 0 {
			continue
		}
		var numbers []string
		for _, s := range e.slices[nameOf(svc)] {
			for _, q := range s.Ports {
				if deref(q.Name) == p.Name && protocolOf(corev1.Protocol(deref(q.Protocol))) == protocolOf(p.Protocol) && q.Port != nil && len(s.Endpoints) > 0 {
					numbers = append(numbers, fmt.Sprint(*q.Port))
				}
			}
		}
		slices.Sort(numbers)
		if numbers = slices.Compact(numbers); len(numbers) > 1 {
			e.add(Finding{
				Code: SlicesDiffer, Object: objectOf(svc), Field: "spec.ports",
				Text: fmt.Sprintf("port %s of %s has different numbers in its EndpointSlices: %s", portText(p), objectOf(svc), nearest.Few(numbers)),
				Do:   "remove EndpointSlices that were created by hand, or give them the target port of the Service",
			})
		}
	}
}

// hints checks whether topology hints have an effect on all nodes: those to nodes if every ready endpoint has one, and one
// of them is for the node, else those to zones in the same way (kube-proxy: topology.go). The controller of
// EndpointSlices makes both kinds for PreferSameNode.
func (e *examination) hints(svc *corev1.Service) {
	zones, nodes := make(map[string]bool), make(map[string]bool)
	ready, toZones, toNodes, hinted := 0, 0, 0, 0
	for _, ep := range e.endpointsOf(svc) {
		if !isSet(ep.Conditions.Ready) {
			continue
		}
		ready++
		h := deref(ep.Hints)
		hinted += min(1, len(h.ForZones)+len(h.ForNodes))
		toZones, toNodes = toZones+min(1, len(h.ForZones)), toNodes+min(1, len(h.ForNodes))
		for _, z := range h.ForZones {
			zones[z.Name] = true
		}
		for _, n := range h.ForNodes {
			nodes[n.Name] = true
		}
	}
	f := Finding{
		Code: HintsIgnored, Object: objectOf(svc), Field: "spec.trafficDistribution",
		Do: "check that the Pods run on nodes with the label " + corev1.LabelTopologyZone + ", and that no EndpointSlice was created by hand",
	}
	allZones, allNodes := toZones == ready, toNodes == ready
	var without []string
	for _, n := range e.nodes.names {
		if zone := e.nodes.zones[n]; !(allNodes && nodes[n]) && !(allZones && zone != "" && zones[zone]) {
			without = append(without, n)
		}
	}
	switch preferred := svc.Spec.TrafficDistribution; {
	case ready == 0, hinted == 0 && (preferred == nil || len(e.nodes.names) < 2):
		return
	case hinted == 0:
		f.Text = fmt.Sprintf("trafficDistribution %s of %s has no effect: no ready endpoint has a topology hint", *preferred, objectOf(svc))
	case !allZones && !allNodes && hinted < ready:
		f.Text = fmt.Sprintf("the topology hints of %s have no effect: %d of %d ready endpoints have none", objectOf(svc), ready-hinted, ready)
	case !allZones && !allNodes:
		f.Text = fmt.Sprintf("the topology hints of %s have no effect: of %d ready endpoints %d are for nodes and %d for zones", objectOf(svc), ready, toNodes, toZones)
	case len(without) > 0 && allNodes:
		f.Text = fmt.Sprintf("the topology hints of %s have no effect on %s: no endpoint is for the node or its zone", objectOf(svc), nearest.Few(without))
		f.Do = "run a Pod on each node, as a DaemonSet does, or give each node the label " + corev1.LabelTopologyZone
	case len(without) > 0:
		f.Text = fmt.Sprintf("the topology hints of %s have no effect on %s: no endpoint is for the zone", objectOf(svc), nearest.Few(without))
		f.Do = "run a Pod in each zone, and give each node the label " + corev1.LabelTopologyZone
	default:
		return
	}
	e.add(f)
}

// isReady reports whether the condition Ready of a Pod is True.
func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// unnamedPods finds StatefulSets whose Pods get no names in DNS, for want of a Service.
func (e *examination) unnamedPods() {
	for _, t := range e.objects.Templates {
		if t.ServiceName == "" || e.services[name{Namespace: t.Namespace, Name: t.ServiceName}] != nil ||
			!slices.ContainsFunc(e.objects.Services, func(s *corev1.Service) bool { return s.Namespace == t.Namespace }) {
			continue
		}
		e.add(Finding{
			Code: Headless, Object: t.String(), Field: "spec.serviceName",
			Text: fmt.Sprintf("the Pods of %s have no names in DNS: no Service of its namespace has the name %s, which is its serviceName", t, t.ServiceName),
			Do:   fmt.Sprintf("create the headless Service %s (clusterIP: None), whose selector matches the Pods", t.ServiceName),
		})
	}
}

// mode checks the mode of kube-proxy.
func (e *examination) mode() {
	if e.proxy != nil && e.proxy.Mode == kubeproxyconfig.ModeIPVS {
		e.add(Finding{
			Code: DeprecatedIPVS, Object: "ConfigMap kube-system/" + e.objects.Context.KubeProxy.Name, Field: "data.config.conf",
			Text: "kube-proxy runs in mode ipvs, which is deprecated since Kubernetes 1.35", Do: "use mode nftables, or iptables on kernels before 5.13",
		})
	}
}
