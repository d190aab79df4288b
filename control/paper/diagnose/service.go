package diagnose

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// labelProxyName gives a Service to another service proxy than kube-proxy.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// service answers a question about a Service.
func (w *inquiry) service() error {
	svc := w.to.service
	if f := w.badExternalName(svc); f != nil {
		w.cause(*f)
		return nil
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return w.externalName()
	}
	if why := servicetable.Unserved(svc); why != "" && svc.Spec.ClusterIP != corev1.ClusterIPNone {
		f := Finding{Code: NotServed, Object: objectOf(svc), Text: fmt.Sprintf("no service proxy serves %s: %s", objectOf(svc), why), Do: "use a Service with a cluster IP"}
		if other, ok := svc.Labels[labelProxyName]; ok {
			f.Text, f.Field = fmt.Sprintf("kube-proxy does not serve %s: %s", objectOf(svc), why), "metadata.labels"
			f.Do = fmt.Sprintf("check that the service proxy %q runs on the nodes, or remove the label", other)
			w.answer.Unless = fmt.Sprintf("the service proxy %q serves it, which objects do not show", other)
		}
		w.cause(f)
		return nil
	}
	if done, err := w.findPort(); done || err != nil {
		return err
	}
	if svc.Spec.ClusterIP == corev1.ClusterIPNone {
		w.headless()
		return nil
	}
	at, ok, err := w.way()
	if err != nil || !ok {
		return err
	}
	w.decide(at)
	return nil
}

// externalName answers a question about a Service that DNS resolves to another name. Its ports count for nothing: a client
// connects to the port that it names, also if the Service has no ports. If the other name is that of a Service, what that one does is
// the answer.
func (w *inquiry) externalName() error {
	svc, external := w.to.service, w.to.service.Spec.ExternalName
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		if w.to.port != p.Name && w.to.port != strconv.Itoa(int(p.Port)) {
			continue
		}
		w.to.port = strconv.Itoa(int(p.Port))
		if f := externalPort(svc, p); f != nil {
			w.note(*f)
		}
		break
	}
	if to := w.inCluster(external); to != nil {
		w.note(Finding{
			Code: OtherProgram, Object: objectOf(svc), Field: "spec.externalName",
			Text: fmt.Sprintf("%s is of type ExternalName: DNS resolves it to %s, and the client connects to the same port of that", objectOf(svc), objectOf(to)),
			Do:   "nothing, unless the port differs",
		})
		w.to.service, w.to.text = to, "service "+to.Namespace+"/"+to.Name
		return w.service()
	}
	if w.to.port != "" {
		external = net.JoinHostPort(external, w.to.port)
	}
	f := Finding{
		Code: OtherProgram, Object: objectOf(svc), Field: "spec.externalName",
		Text: fmt.Sprintf("%s is of type ExternalName: DNS resolves it to another name, and the client itself connects to %s, without a service proxy", objectOf(svc), external),
		Do:   "check that the name resolves, and that it answers from the source; objects do not show it",
	}
	if parts := strings.Split(external, "."); len(parts) > 3 && parts[2] == "svc" && w.services[name{Namespace: parts[1], Name: parts[0]}] == nil {
		f.Text += fmt.Sprintf("; it is the name of a Service %s/%s, which is not among the objects", parts[1], parts[0])
	}
	w.note(f)
	w.answer.Unless = external + " does not answer the source, which objects do not show"
	return nil
}

// inCluster is the Service of another type that has a name in the DNS of the cluster; nil: none has.
func (c *Cluster) inCluster(dns string) *corev1.Service {
	parts := strings.Split(strings.TrimSuffix(strings.ToLower(dns), "."), ".")
	if len(parts) < 4 || parts[2] != "svc" {
		return nil
	}
	to := c.services[name{Namespace: parts[1], Name: parts[0]}]
	if to == nil || to.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	return to
}

// externalPort is the finding of a Service of type ExternalName whose port is to be translated; nil: it is not. Whether the
// other name answers at the port is not known.
func externalPort(svc *corev1.Service, p *corev1.ServicePort) *Finding {
	target := p.TargetPort.IntVal
	if svc.Spec.Type != corev1.ServiceTypeExternalName || p.TargetPort.Type == intstr.String || target == 0 || target == p.Port {
		return nil
	}
	return &Finding{
		Code: OtherProgram, Object: objectOf(svc), Field: "spec.ports",
		Text: fmt.Sprintf("targetPort %d of %s has no effect: DNS resolves type ExternalName to another name, and nothing translates port %d to %d", target, objectOf(svc), p.Port, target),
		Do:   fmt.Sprintf("if the other name answers at port %d only, connect to that port, or use a Service without selector and an EndpointSlice", target),
	}
}

// findPort finds the port of the Service that the question is about. done: there is none, which is the
// answer.
func (w *inquiry) findPort() (done bool, err error) {
	svc, text := w.to.service, w.to.port
	var fit []*corev1.ServicePort
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		if w.protocol != nil && protocolOf(p.Protocol) != *w.protocol {
			continue
		}
		if text == "" || text == p.Name || text == strconv.Itoa(int(p.Port)) || w.from.outside && p.NodePort != 0 && text == strconv.Itoa(int(p.NodePort)) {
			fit = append(fit, p)
		}
	}
	switch {
	case len(fit) == 0:
		w.cause(w.noSuchPort())
		return true, nil
	case text == "" && len(fit) > 1:
		return false, fmt.Errorf("%s has several ports: write %s:PORT; there are %s", objectOf(svc), svc.Name, portsOf(svc))
	}
	w.port = fit[0]
	for _, p := range fit {
		if protocolOf(p.Protocol) == decision.TCP {
			w.port = p
			break
		}
	}
	w.answer.Destination.Name = fmt.Sprintf("%s, port %s", w.to.text, portText(w.port))
	return false, nil
}

func (w *inquiry) noSuchPort() Finding {
	svc, text := w.to.service, w.to.port
	f := Finding{
		Code: NoSuchPort, Object: objectOf(svc), Field: "spec.ports",
		Text: fmt.Sprintf("%s has no %s; it has %s", objectOf(svc), w.askedPort(), portsOf(svc)),
		Do:   "use one of these ports, or add the port to the Service",
	}
	for _, p := range svc.Spec.Ports {
		switch text {
		case p.TargetPort.String():
			f.Do = fmt.Sprintf("use port %d: %s is its target port, which the Pods listen on", p.Port, text)
		case strconv.Itoa(int(p.NodePort)):
			f.Do = fmt.Sprintf("use port %d: %s is its node port, which is open on the addresses of nodes", p.Port, text)
		}
	}
	return f
}

// askedPort is the port that the question names, by number, name or protocol only.
func (w *inquiry) askedPort() string {
	switch {
	case w.protocol == nil:
		return "port " + w.to.port
	case w.to.port == "":
		return w.protocol.String() + " port"
	}
	return "port " + w.to.port + "/" + w.protocol.String()
}

// headless answers a question about a Service without a cluster IP.
func (w *inquiry) headless() {
	svc, p := w.to.service, w.port
	f := Finding{Code: Headless, Object: objectOf(svc), Field: "spec.clusterIP"}
	if cause := w.untranslated(svc, p); cause != nil {
		w.cause(*cause)
		return
	}
	if ready, cause := w.backends(svc, p, ""); !ready {
		w.cause(cause)
		return
	}
	f.Text = objectOf(svc) + " is headless: DNS resolves it to the addresses of its Pods, without a service proxy"
	f.Do = fmt.Sprintf("name one of its Pods: pod/%s/NAME:%d", svc.Namespace, p.Port)
	w.note(f)
	w.namedPods(svc, p)
}

// namedPods follows a connection to each Pod that DNS has for the name of a headless Service.
func (w *inquiry) namedPods(svc *corev1.Service, p *corev1.ServicePort) {
	answer, failing := w.answer, 0
	var cause *Finding
	for _, e := range w.endpointsOf(svc) {
		a, err := kubeaddr.Parse(e.Addresses[0])
		if err != nil || !isSet(e.Conditions.Ready) || w.owners[a] == nil || !hasFamily(w.from.addrs, decision.FamilyOf(a)) {
			continue
		}
		of := *w
		of.answer = &Answer{Source: answer.Source, Destination: answer.Destination}
		of.decide(netip.AddrPortFrom(a, uint16(p.Port)))
		answer.Endpoints = append(answer.Endpoints, of.answer.Endpoints...)
		answer.Source.Address, answer.Unless = of.answer.Source.Address, cmp.Or(answer.Unless, of.answer.Unless)
		if of.answer.Cause != nil {
			failing, cause = failing+1, cmp.Or(cause, of.answer.Cause)
		}
		for _, n := range of.answer.Notes {
			if !answer.Has(n) {
				answer.Notes = append(answer.Notes, n)
			}
		}
	}
	if answer.chosen = true; cause != nil && failing >= len(answer.Endpoints) {
		answer.Cause = cause
	} else if cause != nil {
		answer.Notes = append(answer.Notes, *cause)
	}
}

// untranslated is the finding of a headless Service whose port is not that of its Pods; nil: it is, as far as is known.
func (c *Cluster) untranslated(svc *corev1.Service, p *corev1.ServicePort) *Finding {
	target := p.TargetPort.IntVal
	if p.TargetPort.Type == intstr.String {
		target = c.numberOf(svc, p)
	}
	if target == 0 || target == p.Port {
		return nil
	}
	return &Finding{
		Code: Headless, Object: objectOf(svc), Field: "spec.clusterIP",
		Text: fmt.Sprintf("%s is headless: DNS resolves it to the addresses of its Pods, and nothing translates port %d to %d", objectOf(svc), p.Port, target),
		Do:   fmt.Sprintf("connect to port %d, which the Pods listen on, or give the Service a cluster IP", target),
	}
}

// numberOf is the number that a Pod of the Service has for the name of a target port; 0: none has one.
func (c *Cluster) numberOf(svc *corev1.Service, p *corev1.ServicePort) int32 {
	in := c.podsIn[svc.Namespace]
	if in == nil {
		return 0
	}
	for _, pod := range in.selected(svc.Spec.Selector) {
		for _, q := range containerPorts(pod) {
			if q.Name == p.TargetPort.StrVal && protocolOf(q.Protocol) == protocolOf(p.Protocol) {
				return q.ContainerPort
			}
		}
	}
	return 0
}

// way finds the address of the Service that the source would use. ok is false if there is none, which is the
// answer.
func (w *inquiry) way() (at netip.AddrPort, ok bool, err error) {
	svc := w.to.service
	ports := w.portsInTable(w.table(w.nodes.some()))
	if len(ports) == 0 {
		return at, false, fmt.Errorf("%s has no service port %s in the service table", objectOf(svc), portText(w.port))
	}
	for _, s := range ports {
		source, same := decision.AddressOf(w.from.addrs, s.Family)
		if !same {
			continue
		}
		if !w.from.outside {
			return netip.AddrPortFrom(s.ClusterIP, s.Port), true, nil
		}
		if external := append(slices.Clone(s.LoadBalancerIPs), s.ExternalIPs...); len(external) > 0 && w.to.port != strconv.Itoa(int(s.NodePort)) {
			return netip.AddrPortFrom(external[0], s.Port), true, nil
		}
		if s.NodePort == 0 {
			continue
		}
		if node, at := w.arrival(source, func(n string) (netip.AddrPort, bool) {
			a, ok := decision.AddressOf(w.nodes.addresses[n], s.Family)
			return netip.AddrPortFrom(a, s.NodePort), ok && (w.given == "" || n == w.given)
		}); node != "" {
			if len(balancers(svc)) > 0 {
				w.behindBalancer(svc)
			} else if svc.Spec.Type == corev1.ServiceTypeLoadBalancer && len(svc.Status.LoadBalancer.Ingress) == 0 && !w.isUnsubmitted(svc) {
				w.note(noAddressYet(svc))
			}
			return at, true, nil
		}
	}
	if w.from.outside {
		if w.toPods(svc, w.port, ports[0].Family) {
			return at, false, nil
		}
		if f := w.noWayIn(svc, ports); f != nil {
			w.cause(*f)
			return at, false, nil
		}
	}
	var families []string
	for _, s := range ports {
		families = append(families, s.Family.String())
	}
	w.cause(Finding{
		Code: OtherFamily, Object: objectOf(svc), Field: "spec.ipFamilies",
		Text: fmt.Sprintf("%s is %s only, and the source has no address of that family", objectOf(svc), strings.Join(families, " and ")),
		Do:   "make the Service dual-stack (spec.ipFamilyPolicy: PreferDualStack)",
	})
	return at, false, nil
}

// noWayIn is why a source outside finds no address of the Service of its family; nil: those that it has are of the other family.
func (w *inquiry) noWayIn(svc *corev1.Service, ports []*decision.ServicePort) *Finding {
	other := false
	for _, s := range ports {
		if s.NodePort == 0 && len(s.LoadBalancerIPs)+len(s.ExternalIPs) == 0 {
			continue
		}
		if !hasFamily(w.from.addrs, s.Family) {
			other = true
			continue
		}
		if ready, cause := w.backends(svc, w.port, s.Family.String()); !ready {
			return &cause
		}
		return &Finding{
			Code: NotShown, Object: objectOf(svc), Field: "spec.ports",
			Text: fmt.Sprintf("%s has node port %d, and the objects contain no Node with an %s address", objectOf(svc), s.NodePort, s.Family),
			Do:   fmt.Sprintf("add the output of kubectl get nodes -o yaml, or ask for ADDRESS:%d with the address of a node", s.NodePort),
		}
	}
	switch {
	case other:
		return nil
	case svc.Spec.Type == corev1.ServiceTypeLoadBalancer:
		f := noAddressYet(svc)
		return &f
	}
	return &Finding{
		Code: OutsideOnly, Object: objectOf(svc), Field: "spec.type",
		Text: fmt.Sprintf("%s has no address outside of the cluster: its type is %s", objectOf(svc), cmp.Or(svc.Spec.Type, corev1.ServiceTypeClusterIP)),
		Do:   "use type NodePort or LoadBalancer, or connect from a Pod",
	}
}

// noAddressYet is the finding of a Service whose load balancer has no address.
func noAddressYet(svc *corev1.Service) Finding {
	f := Finding{
		Code: NoAddressYet, Object: objectOf(svc), Field: "status.loadBalancer", Text: objectOf(svc) + " has no load balancer address",
		Do: "check that a load balancer controller runs in the cluster; node ports work without one",
	}
	if svc.Spec.LoadBalancerIP != "" {
		f.Text += fmt.Sprintf(" (it asks for %s)", svc.Spec.LoadBalancerIP)
	}
	if !slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort != 0 }) {
		f.Text, f.Do = f.Text+", and no node ports", "check that a load balancer controller runs in the cluster"
	}
	return f
}

// portsInTable are the service ports of the Service's port, one of each family.
func (w *inquiry) portsInTable(t *decision.Table) (ports []*decision.ServicePort) {
	svc := w.to.service
	for _, s := range t.Service(nameOf(svc)) {
		if s.Name.Port == w.port.Name && s.Protocol == protocolOf(w.port.Protocol) && int32(s.Port) == w.port.Port {
			ports = append(ports, s)
		}
	}
	return ports
}

func objectOf(svc *corev1.Service) string { return "Service " + svc.Namespace + "/" + svc.Name }

// protocolOf reads a protocol of Kubernetes; empty is TCP.
func protocolOf(p corev1.Protocol) decision.Protocol {
	q, err := decision.ParseProtocol(string(p))
	if err != nil {
		return decision.TCP
	}
	return q
}

// portText is "80/TCP", with the name in front if it has one.
func portText(p *corev1.ServicePort) string {
	text := fmt.Sprintf("%d/%s", p.Port, protocolOf(p.Protocol))
	if p.Name != "" {
		text += " (" + p.Name + ")"
	}
	return text
}

func portsOf(svc *corev1.Service) string {
	var texts []string
	for i := range svc.Spec.Ports {
		texts = append(texts, portText(&svc.Spec.Ports[i]))
	}
	if len(texts) == 0 {
		return "none"
	}
	return strings.Join(texts, ", ")
}
