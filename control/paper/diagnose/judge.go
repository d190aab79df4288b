package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// judge finds the cause in a decision.
func (w *inquiry) judge(p *decision.Packet, d *decision.Decision) {
	if d.ServicePort != nil {
		w.take(d)
		w.contested(p, d)
	}
	switch d.Reason {
	case decision.NotAService:
		w.notAService(p)
	case decision.NoEndpoints, decision.NotFiltered:
		if ready, cause := w.backends(w.to.service, w.port, d.ServicePort.Family.String()); !ready {
			if w.cause(cause); cause.Code == NotShown {
				w.answer.Record = nil // it is a decision about a Service without endpoints
			}
			return
		}
		if d.Reason == decision.NoEndpoints && !w.isLocal(d) {
			w.cause(Finding{
				Code: NoEndpoints, Object: objectOf(w.to.service), Text: fmt.Sprintf("no endpoint of %s can be used, and the objects do not show why", objectOf(w.to.service)),
				Do: "check the addresses and conditions in its EndpointSlices",
			})
			return
		}
		w.lacksLocal(d)
	case decision.NoLocalEndpoints:
		w.lacksLocal(d)
	case decision.SourceNotAllowed:
		if w.from.anyone {
			w.answer.Unless = "the client has an address in " + prefixes(d.ServicePort.SourceRanges) + ", which you can give instead of " + Outside
		}
		w.cause(Finding{
			Code: SourceNotAllowed, Object: objectOf(w.to.service), Field: "spec.loadBalancerSourceRanges",
			Text: fmt.Sprintf("%s is dropped: %s allows only %s", p.Source.Addr(), objectOf(w.to.service), prefixes(d.ServicePort.SourceRanges)),
			Do:   "add the source to spec.loadBalancerSourceRanges, or use the cluster IP from inside the cluster",
		})
	case decision.ForeignLocalnet:
		w.cause(Finding{
			Code: LoopbackForeign, Text: fmt.Sprintf("%s is dropped: it is a loopback address, and the source is not the node itself", p.Destination),
			Do: "use another address of the node",
		})
	default:
		w.endpoints(p, d)
		if w.answer.Cause != nil {
			return
		}
		if made := w.objects.Made; d.Policy == decision.Local && made != nil && made.Guessed[w.owners[d.Endpoint().Addr()]] && w.answer.Unless == "" {
			w.answer.Unless = fmt.Sprintf("no Pod of %s runs on %s, which is not known: the files do not contain its Pods", objectOf(w.to.service), w.answer.Node)
		}
		if f, bad := w.selected(w.to.service, w.port); bad && len(w.to.service.Spec.Selector) > 0 {
			w.note(f) // the controller has not seen it yet
		} else if f := w.readiness(w.to.service); f != nil && w.to.service.Spec.PublishNotReadyAddresses {
			w.note(*f)
		}
		w.sameBridge(p, d)
	}
}

// contested notes a Service with the address and port of the packet that does not get it.
func (w *inquiry) contested(p *decision.Packet, d *decision.Decision) {
	if w.claimed != nil {
		return
	}
	for _, c := range w.tableOf(w.answer.Node).Conflicts() {
		other := w.services[c.Loser.Name.Service()]
		if c.Winner.Name != d.ServicePort.Name || other == nil || !strings.Contains(c.What, fmt.Sprintf(" %s/", p.Destination)) && !strings.Contains(c.What, fmt.Sprintf(" %d/", p.Destination.Port())) {
			continue
		}
		w.note(Finding{
			Code: ClaimedTwice, Object: objectOf(other),
			Text: fmt.Sprintf("%s has the address and port too: with kube-proxy, either of the two Services may get the packets", objectOf(other)), Do: "give each Service its own addresses",
		})
		return
	}
}

// take makes the Service that a decision is for that of the inquiry. If the question is about another one,
// that is the cause.
func (w *inquiry) take(d *decision.Decision) {
	found := w.services[d.ServicePort.Name.Service()]
	if asked := w.to.service; asked != nil && asked != found {
		w.claimed = &Finding{
			Code: ClaimedTwice, Object: objectOf(asked),
			Text: fmt.Sprintf("%s has the address and port too, and gets the packets (with kube-proxy, either of the two may)", objectOf(found)), Do: "give each Service its own addresses",
		}
	}
	if w.to.service == found {
		return
	}
	w.to.service = found
	for i := range found.Spec.Ports {
		if q := &found.Spec.Ports[i]; q.Name == d.ServicePort.Name.Port && protocolOf(q.Protocol) == d.ServicePort.Protocol {
			w.port = q
		}
	}
	w.answer.Destination.Name = fmt.Sprintf("service %s, port %s", d.ServicePort.Name.Service(), portText(w.port))
}

// pod is about a connection to a Pod itself.
func (w *inquiry) pod(p *corev1.Pod, at netip.AddrPort, protocol decision.Protocol) {
	e := Endpoint{Address: at.String(), Pod: nameOf(p).String(), Node: p.Spec.NodeName, Flows: w.flows(at.String(), protocol)}
	e.Problem = w.problem(p, at, protocol, func() *Finding { return w.listener(p, at.Port(), protocol, nil) })
	w.answer.Endpoints = []Endpoint{e}
	if e.Problem != nil {
		w.cause(*e.Problem)
	} else if f := w.unclear(p, at, protocol); f != nil {
		w.answer.Unless = "a network policy forbids it, for which the objects lack the labels of namespaces"
		w.note(*f)
	}
}

// problem is why an address will not answer; nil: there is no reason to expect that. pod is the Pod that has
// the address; nil: not known. What recent flows did counts for more than what objects declare.
func (w *inquiry) problem(pod *corev1.Pod, at netip.AddrPort, protocol decision.Protocol, declared func() *Finding) *Finding {
	seen, known := w.observed(at.String(), protocol)
	if known && (seen == nil || seen.Code == Refuses) {
		return seen
	}
	if forbidden := w.policy(pod, at, protocol); forbidden != nil {
		return forbidden
	}
	if known {
		if pod != nil && seen.Code == Silent {
			if f := w.NotReady(pod.Spec.NodeName); f != nil {
				return f
			}
		}
		return seen
	}
	return declared()
}

// policy is policyAt, and says it if the policies allow the port of the Service instead of that of the Pod.
func (w *inquiry) policy(pod *corev1.Pod, at netip.AddrPort, protocol decision.Protocol) *Finding {
	f := w.policyAt(pod, at, protocol)
	if f != nil && w.port != nil && uint16(w.port.Port) != at.Port() && w.policyAt(pod, netip.AddrPortFrom(at.Addr(), uint16(w.port.Port)), protocol) == nil {
		f.Text += fmt.Sprintf("; it allows port %d, which is that of the Service: policies see the port of the Pod", w.port.Port)
		f.Do = fmt.Sprintf("allow port %d in the policy", at.Port())
	}
	if f != nil && w.from != nil && w.port != nil {
		to := w.hops[len(w.hops)-1].packet.Destination.Addr()
		real, _ := w.connections(pod, at, protocol)
		if out, _ := w.connections(nil, netip.AddrPortFrom(to, at.Port()), protocol); w.forbids(egress, real) != nil && w.forbids(egress, out) == nil {
			f.Text += fmt.Sprintf("; it allows %s, which is that of the Service: policies see the address of the Pod", to)
			f.Do = "allow the Pods in the policy, by their labels (podSelector)"
		}
	}
	return f
}

// policyAt is why network policies would drop the connection to an endpoint; nil: the objects show no reason.
// Without a source it is about all sources.
func (w *inquiry) policyAt(pod *corev1.Pod, at netip.AddrPort, protocol decision.Protocol) *Finding {
	switch {
	case w.from != nil:
		out, in := w.connections(pod, at, protocol)
		if f := w.forbids(egress, out); f != nil || in == nil {
			return f
		}
		return w.forbids(ingress, in)
	case pod != nil:
		return w.closed(pod, at.Port(), protocol)
	}
	return nil
}

// connections are those to an endpoint as the policies of the source, and of the endpoint, see them. in is nil if none of the latter
// counts.
func (w *inquiry) connections(pod *corev1.Pod, at netip.AddrPort, protocol decision.Protocol) (out, in *connection) {
	sent, last := w.hops[0].packet, w.hops[len(w.hops)-1].packet
	in = &connection{source: last.Source.Addr(), from: w.from.pod, destination: at, to: pod, protocol: protocol}
	if in.from != nil && in.from.Spec.HostNetwork {
		in.from = nil
	}
	egress := *in
	if len(w.hops) > 1 { // it leaves the source's node untranslated
		egress.destination, egress.to = sent.Destination, nil
	}
	// Nodes reach their own Pods whatever the policies, and what masqueraded packets meet depends on the plugin.
	if w.from.node != "" || sent.Source != last.Source || w.masquerades() {
		return &egress, nil
	}
	return &egress, in
}

// masquerades reports whether endpoints see another source. What one sends to itself is masqueraded for that alone.
func (w *inquiry) masquerades() bool {
	return w.answer.Record.Masquerade && w.answer.Record.MasqueradeReason != decision.MarkHairpin.String()
}

// unclear is the note about policies that select namespaces by labels which the objects do not have; nil: there are none, or they do
// not matter.
func (w *inquiry) unclear(pod *corev1.Pod, at netip.AddrPort, protocol decision.Protocol) *Finding {
	out, in := w.connections(pod, at, protocol)
	about := func(conn *connection, selected *corev1.Pod, d direction, other *corev1.Pod) *Finding {
		if selected == nil || other == nil || conn.to == conn.from {
			return nil
		}
		policies := w.policiesFor(selected, d)
		if w.allow(policies, d, conn) != unknown {
			return nil
		}
		return &Finding{
			Code: NotShown, Object: "NetworkPolicy " + policies[0].Namespace + "/" + policies[0].Name, Field: "spec",
			Text: fmt.Sprintf("whether the policies of Pod %s allow the connection is not known: they select namespaces by labels, and Namespace %s is not among the objects", nameOf(selected), other.Namespace),
			Do:   "add the output of kubectl get namespaces -o yaml",
		}
	}
	if f := about(out, out.from, egress, out.to); f != nil || in == nil {
		return f
	}
	return about(in, in.to, ingress, in.from)
}

// endpoints judges the endpoints that the decision could select.
func (w *inquiry) endpoints(p *decision.Packet, d *decision.Decision) {
	var problems []Finding
	usable := d.ServicePort.UsableEndpoints(d.Policy)
	w.answer.sticky = d.ServicePort.AffinitySeconds > 0
	for _, ep := range usable {
		e := Endpoint{Address: ep.AddrPort.String(), Pod: ep.Pod, Node: ep.NodeName, Flows: w.flows(ep.AddrPort.String(), d.ServicePort.Protocol)}
		if e.Problem = w.endpoint(&ep, d.ServicePort.Protocol); e.Problem == nil {
			e.Problem = w.bypass(p, d, &ep)
		}
		if e.Problem != nil {
			problems = append(problems, *e.Problem)
		} else if f := w.masked(&ep, d); f != nil && !w.answer.Has(*f) {
			w.note(*f)
			w.answer.Unless = "the network plugin applies policies to masqueraded packets"
			if w.from.node != "" {
				w.answer.Unless = "the network plugin applies policies to packets of other nodes"
			}
		} else if f := w.unclear(w.owners[ep.AddrPort.Addr()], ep.AddrPort, d.ServicePort.Protocol); f != nil {
			w.answer.Unless = "a network policy forbids it, for which the objects lack the labels of namespaces"
			if !w.answer.Has(*f) {
				w.note(*f)
			}
		}
		w.answer.Endpoints = append(w.answer.Endpoints, e)
	}
	if !slices.ContainsFunc(usable, func(ep decision.Endpoint) bool { return ep.Ready }) {
		where := "there is"
		if d.Policy == decision.Local && w.answer.Node != "" {
			where = "node " + w.answer.Node + " has"
		}
		w.note(Finding{
			Code: SomeNotReady, Object: objectOf(w.to.service),
			Text: fmt.Sprintf("%s no endpoint that is ready: flows go to %s, and fail when %s ended", where, quantity.Count(len(usable), "terminating one"), verb(len(usable), "it has", "they have")),
			Do:   "check why no new Pods are ready in their place",
		})
	}
	switch {
	case len(problems) == 0:
	case len(problems) == len(usable):
		if pod := w.owners[usable[0].AddrPort.Addr()]; problems[0].Code == PolicyForbids && w.from != nil && w.from.anyone && pod != nil {
			var allowed []string
			for _, policy := range w.policiesFor(pod, ingress) {
				allowed = append(allowed, blocks(policy)...)
			}
			if len(allowed) > 0 {
				w.answer.Unless = "the client has one of the addresses that the policy allows (" + strings.Join(allowed, ", ") + "), which you can give instead of " + Outside
			}
		}
		w.cause(problems[0])
	default:
		w.note(ofSome(problems, len(usable)))
	}
}

// ofSome is the first of the problems of some of the endpoints.
func ofSome(problems []Finding, endpoints int) Finding {
	f, will := problems[0], "will not answer"
	if f.Code == OtherPort || f.Code == NoListener {
		f.Do = "if the Pod is one of another program, narrow the selector of the Service; else have it listen on the port"
	}
	if f.Code == OtherPort { // a declaration of ports is information only
		will = "will probably not answer"
	}
	f.Text = fmt.Sprintf("%d of %d endpoints %s: %s", len(problems), endpoints, will, f.Text)
	return f
}

// endpoint is why an endpoint will not answer; nil: there is no reason to expect that.
func (w *inquiry) endpoint(ep *decision.Endpoint, protocol decision.Protocol) *Finding {
	if svc := w.clusterIPs[ep.AddrPort.Addr()]; svc != nil && w.owners[ep.AddrPort.Addr()] == nil {
		return &Finding{
			Code: EndpointIsClusterIP, Object: objectOf(w.to.service),
			Text: fmt.Sprintf("the endpoint %s is the cluster IP of %s: packets are translated once, and no host has that address", ep.AddrPort, objectOf(svc)),
			Do:   "write the addresses behind that Service into the EndpointSlice, or select its Pods",
		}
	}
	pod := w.owners[ep.AddrPort.Addr()]
	namespace, named, _ := strings.Cut(ep.Pod, "/")
	if p := w.pods[name{Namespace: namespace, Name: named}]; p != nil {
		if pod = p; w.moved(p, ep.AddrPort.Addr()) {
			return &Finding{
				Code: PodGone, Object: objectOf(w.to.service),
				Text: fmt.Sprintf("the endpoint %s is Pod %s, whose address is %s: the EndpointSlice is outdated", ep.AddrPort, ep.Pod, p.Status.PodIP),
				Do:   "check that the endpoint slice controller is running, or remove the EndpointSlice if it was created by hand",
			}
		}
	}
	f := w.problem(pod, ep.AddrPort, protocol, func() *Finding {
		switch {
		case pod != nil:
			return w.listener(pod, ep.AddrPort.Port(), protocol, w.port)
		case w.podsIn[namespace] != nil && !w.podsLeftOut(w.to.service):
			return &Finding{
				Code: PodGone, Object: objectOf(w.to.service),
				Text: fmt.Sprintf("the endpoint %s is Pod %s, which is not among the objects", ep.AddrPort, ep.Pod),
				Do:   "check that the Pod exists, that the endpoint slice controller is running, or remove the EndpointSlice if it was created by hand",
			}
		}
		return nil
	})
	if f != nil && f.Object == "" {
		f.Object = w.objectAt(ep, pod)
	}
	return f
}

// moved reports whether a Pod has addresses, and not the one that the EndpointSlice controller has written for it. Others may
// write addresses of further networks.
func (w *inquiry) moved(p *corev1.Pod, a netip.Addr) bool {
	family, listed := false, false
	for _, ip := range p.Status.PodIPs {
		if of, err := kubeaddr.Parse(ip.IP); err == nil {
			family, listed = family || of.Is4() == a.Is4(), listed || of == a
		}
	}
	return family && !listed && slices.ContainsFunc(w.slices[nameOf(w.to.service)], func(s *discoveryv1.EndpointSlice) bool {
		return s.Labels[discoveryv1.LabelManagedBy] == managedByController && slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool {
			return slices.Contains(e.Addresses, a.String())
		})
	})
}

// managedByController is the value of the label that the EndpointSlice controller gives its objects.
const managedByController = "endpointslice-controller.k8s.io"

// masked is the note about an endpoint on another node whose policies do not allow the address of the node that masquerades, or is
// the source; nil: there is none. What policies mean for such packets depends on the network plugin.
func (w *inquiry) masked(ep *decision.Endpoint, d *decision.Decision) *Finding {
	pod := w.owners[ep.AddrPort.Addr()]
	source, ok := decision.AddressOf(w.nodes.addresses[w.answer.Node], d.ServicePort.Family)
	if !ok || pod == nil || !w.masquerades() && w.from.node == "" || pod.Spec.NodeName == w.answer.Node {
		return nil
	}
	f := w.forbids(ingress, &connection{source: source, destination: ep.AddrPort, to: pod, protocol: d.ServicePort.Protocol})
	if f != nil {
		f.Code, f.Text = Depends, fmt.Sprintf("the endpoint sees %s as the source, an address of %s: %s", source, w.answer.Node, f.Text)
		f.Do = "allow the addresses of the nodes in the policy, as an ipBlock"
		if w.from.node == "" {
			f.Do += ", or use externalTrafficPolicy Local, with which the endpoint sees the client's address"
		}
	}
	return f
}

// objectAt is the object to look at if an endpoint does not answer. Endpoints need no Pod: they may be programs of a node,
// as API servers are, and EndpointSlices made by hand lead anywhere.
func (w *inquiry) objectAt(ep *decision.Endpoint, pod *corev1.Pod) string {
	node := w.nodes.Node(ep.AddrPort.Addr())
	switch {
	case ep.Pod != "":
		return "Pod " + ep.Pod
	case pod != nil:
		return "Pod " + nameOf(pod).String()
	case node != "":
		return "Node " + node
	}
	return objectOf(w.to.service)
}
