package diagnose

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/sim/kubechains"
)

// Question is about a connection, as users write it.
type Question struct {
	// From is a Pod (NAMESPACE/NAME, or NAME), a Node, an address or "outside".
	From string `json:"from"`
	// To is a Service (NAME.NAMESPACE, NAMESPACE/NAME, or NAME), a Pod (pod/NAMESPACE/NAME), a Node or an
	// address, with :PORT; a Service with one port needs none.
	To string `json:"to"`
	// Protocol is tcp, udp or sctp; empty: that of the Service's port, and tcp without one.
	Protocol string `json:"protocol,omitempty"`
	// Node is the name of the node that decides; empty: by the source.
	Node string `json:"node,omitempty"`
}

// Answer is what happens to the connection, and why.
type Answer struct {
	// Works: it reaches an endpoint that should answer, as far as the objects show.
	Works bool `json:"works"`
	// Cause is why it does not; nil iff Works.
	Cause *Finding `json:"cause,omitempty"`
	// Notes are about what does not work besides.
	Notes []Finding `json:"notes,omitempty"`

	Source      End `json:"source"`
	Destination End `json:"destination"`
	// Node is the name of the node that decides, and NodeIs why it is that one. Empty: not known.
	Node   string `json:"node"`
	NodeIs string `json:"nodeIs"`
	// Record is the decision; nil if no packet gets that far.
	Record *flow.Record `json:"record,omitempty"`
	// Endpoints are those that the decision could select, in order.
	Endpoints []Endpoint `json:"endpoints,omitempty"`
}

// End is an end of the connection.
type End struct {
	Name    string `json:"name"`              // as "pod shop/client"
	Address string `json:"address,omitempty"` // the source has no port
}

// Endpoint is one that the decision could select.
type Endpoint struct {
	Address string `json:"address"`
	Pod     string `json:"pod,omitempty"`
	Node    string `json:"node,omitempty"`
	// Problem is why it will not answer; nil: there is no reason to expect that.
	Problem *Finding `json:"problem,omitempty"`
}

// QuestionError is what is wrong with a question: what it names does not exist, or is ambiguous.
type QuestionError struct {
	Field string // of [Question], as in JSON
	what  string
	Err   error
}

// Error names the part of the question.
func (e *QuestionError) Error() string { return e.what + ": " + e.Err.Error() }

// Unwrap returns the error without the part.
func (e *QuestionError) Unwrap() error { return e.Err }

// Why answers a question. An error is a [*QuestionError].
func (c *Cluster) Why(q Question) (*Answer, error) {
	from, err := c.source(q.From)
	if err != nil {
		return nil, &QuestionError{"from", "source", err}
	}
	namespace := ""
	if from.pod != nil {
		namespace = from.pod.Namespace
	}
	to, err := c.destination(q.To, namespace)
	if err != nil {
		return nil, &QuestionError{"to", "destination", err}
	}
	w := &inquiry{Cluster: c, from: from, to: to, answer: &Answer{Source: End{Name: from.text}, Destination: End{Name: to.text}}}
	if q.Protocol != "" {
		p, err := decision.ParseProtocol(q.Protocol)
		if err != nil {
			return nil, &QuestionError{"protocol", "protocol", err}
		}
		w.protocol = &p
	}
	if q.Node != "" && !slices.Contains(c.nodes.names, q.Node) {
		return nil, &QuestionError{"node", "node", fmt.Errorf("there is no Node %s; known: %s", q.Node, nearest.Few(c.nodes.names))}
	}
	w.given = q.Node
	if to.service != nil {
		err = w.service()
	} else {
		err = w.address()
	}
	if err != nil {
		return nil, &QuestionError{"to", "destination", err}
	}
	w.answer.Works = w.answer.Cause == nil
	return w.answer, nil
}

// inquiry is the work on one question.
type inquiry struct {
	*Cluster
	from, to *party
	protocol *decision.Protocol // nil: not given
	given    string             // the node; "": not given
	answer   *Answer
	// port is the port of the Service that the question is about; nil: of none.
	port *corev1.ServicePort
}

func (w *inquiry) cause(f Finding) { w.answer.Cause = &f }

// service answers a question about a Service.
func (w *inquiry) service() error {
	svc := w.to.service
	if why := control.Unserved(svc); why != "" && svc.Spec.ClusterIP != corev1.ClusterIPNone {
		w.cause(Finding{Code: NotServed, Object: objectOf(svc), Text: fmt.Sprintf("no service proxy serves %s: %s", objectOf(svc), why), Do: "use a Service with a cluster IP"})
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
		Text: fmt.Sprintf("%s has no port %s%s; it has %s", objectOf(svc), text, w.protocolText(), portsOf(svc)),
		Do:   "use one of these ports, or add the port to the Service",
	}
	for _, p := range svc.Spec.Ports {
		switch text {
		case p.TargetPort.String():
			f.Do = fmt.Sprintf("use port %d: %s is its target port, at which the Pods listen", p.Port, text)
		case strconv.Itoa(int(p.NodePort)):
			f.Do = fmt.Sprintf("use port %d: %s is its node port, which is open at the addresses of nodes", p.Port, text)
		}
	}
	return f
}

// protocolText is the protocol behind a port, if the question has one.
func (w *inquiry) protocolText() string {
	if w.protocol == nil {
		return ""
	}
	return "/" + w.protocol.String()
}

// headless answers a question about a Service without a cluster IP.
func (w *inquiry) headless() {
	svc, p := w.to.service, w.port
	f := Finding{Code: Headless, Object: objectOf(svc), Field: "spec.clusterIP"}
	target := p.TargetPort.String()
	if target != "0" && target != "" && target != strconv.Itoa(int(p.Port)) {
		f.Text = fmt.Sprintf("%s is headless: DNS resolves it to the addresses of its Pods, and nothing translates port %d to %s", objectOf(svc), p.Port, target)
		f.Do = fmt.Sprintf("connect to port %s, at which the Pods listen, or give the Service a cluster IP", target)
		w.cause(f)
		return
	}
	if ready, cause := w.backends(svc, p, ""); !ready {
		w.cause(cause)
		return
	}
	f.Text = objectOf(svc) + " is headless: DNS resolves it to the addresses of its Pods, without a service proxy"
	f.Do = fmt.Sprintf("name one of its Pods: pod/%s/NAME:%d", svc.Namespace, p.Port)
	w.answer.Notes = append(w.answer.Notes, f)
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
		if _, same := decision.AddressOf(w.from.addrs, s.Family); !same {
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
		for _, n := range append([]string{w.given}, w.nodes.names...) {
			if a, ok := decision.AddressOf(w.nodes.addresses[n], s.Family); ok {
				return netip.AddrPortFrom(a, s.NodePort), true, nil
			}
		}
	}
	if w.from.outside {
		w.cause(Finding{
			Code: OutsideOnly, Object: objectOf(svc), Field: "spec.type",
			Text: fmt.Sprintf("%s has no address outside of the cluster: its type is %s", objectOf(svc), typeOf(svc)),
			Do:   "use type NodePort or LoadBalancer, or connect from a Pod",
		})
		return at, false, nil
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

// portsInTable are the service ports of the Service's port, one of each family.
func (w *inquiry) portsInTable(t *decision.Table) (ports []*decision.ServicePort) {
	svc := w.to.service
	for _, s := range t.Service(name{Namespace: svc.Namespace, Name: svc.Name}) {
		if s.Name.Port == w.port.Name && s.Protocol == protocolOf(w.port.Protocol) && int32(s.Port) == w.port.Port {
			ports = append(ports, s)
		}
	}
	return ports
}

// address answers a question about an address.
func (w *inquiry) address() error {
	if w.to.port == "" {
		return errors.New("the port is missing: write it behind a colon")
	}
	port, err := strconv.ParseUint(w.to.port, 10, 16)
	if err != nil || port == 0 {
		return fmt.Errorf("port %q: want a number from 1 to 65535", w.to.port)
	}
	for _, a := range w.to.addrs {
		if _, ok := decision.AddressOf(w.from.addrs, decision.FamilyOf(a)); ok {
			w.decide(netip.AddrPortFrom(a, uint16(port)))
			return nil
		}
	}
	return fmt.Errorf("%s and %s have no address of the same family", w.from.text, w.to.text)
}

// decide has the node decide the packet to the destination.
func (w *inquiry) decide(to netip.AddrPort) {
	family := decision.FamilyOf(to.Addr())
	source, _ := decision.AddressOf(w.from.addrs, family)
	w.answer.Source.Address, w.answer.Destination.Address = source.String(), to.String()
	if w.from.outside && w.owners[to.Addr()] != nil && !w.routesToPods() {
		w.cause(Finding{
			Code: OutsideOnly, Object: "Pod " + nameOf(w.owners[to.Addr()]).String(),
			Text: fmt.Sprintf("%s is the address of a Pod, and the source is outside of the cluster: most networks have no route to it from there", to.Addr()),
			Do:   "connect to a Service of type NodePort or LoadBalancer",
		})
		return
	}
	node, is := w.findNode(to)
	w.answer.Node, w.answer.NodeIs = node, is
	d, p := w.decideOn(node, source, to)
	w.answer.Record = record(w.table(node), p, d)
	w.judge(p, d)
}

// record is the record of a decision, with the walk through kube-proxy's chains.
func record(t *decision.Table, p *decision.Packet, d *decision.Decision) *flow.Record {
	r := flow.New(t, p, d)
	r.Steps = kubechains.Walk(t, p, d)
	return r
}

func (w *inquiry) decideOn(node string, source netip.Addr, to netip.AddrPort) (*decision.Decision, *decision.Packet) {
	p := &decision.Packet{Protocol: w.protocolOf(to), Source: netip.AddrPortFrom(source, sourcePort), Destination: to}
	t := w.table(node)
	detector := &t.Node().Detector
	switch {
	case w.from.node != "" && w.from.node == node:
		p.Local = true
	case w.from.on == node && node != "" && detector.Bridge != "":
		p.InInterface = detector.Bridge
	case w.from.on == node && node != "":
		p.InInterface = detector.InterfacePrefix
	}
	d := decision.Decide(t, p, rand.New(rand.NewPCG(1, 0)), affinity.New(), nil)
	return &d, p
}

// sourcePort stands for the client's port, which decides nothing.
const sourcePort = 40000

// protocolOf is the protocol of the packet: the given one, that of the Service's port, or else one for which
// a service port has the destination.
func (w *inquiry) protocolOf(to netip.AddrPort) decision.Protocol {
	switch {
	case w.protocol != nil:
		return *w.protocol
	case w.port != nil:
		return protocolOf(w.port.Protocol)
	}
	for _, s := range w.table(w.nodes.some()).Services() {
		if s.Port == to.Port() && (s.ClusterIP == to.Addr() || slices.Contains(s.ExternalIPs, to.Addr()) || slices.Contains(s.LoadBalancerIPs, to.Addr())) ||
			s.NodePort == to.Port() && w.nodes.with[to.Addr()] != "" {
			return s.Protocol
		}
	}
	return decision.TCP
}

func (w *inquiry) routesToPods() bool {
	if w.objects.Lab == nil {
		return false
	}
	for _, h := range w.objects.Lab.Clients {
		if slices.Equal(h.Addresses, w.from.addrs) {
			return h.RoutesToPods
		}
	}
	return false
}

// findNode is the node that decides, and why it is that one.
func (w *inquiry) findNode(to netip.AddrPort) (node, is string) {
	switch {
	case w.given != "":
		return w.given, "as given"
	case w.from.node != "":
		return w.from.node, "it is the source"
	case w.from.on != "":
		return w.from.on, "the source runs there"
	case w.from.outside && w.nodes.with[to.Addr()] != "":
		return w.nodes.with[to.Addr()], "it has the address"
	}
	names := w.nodes.names
	switch {
	case len(names) == 1:
		return names[0], "it is the only one"
	case len(names) == 0 || !w.from.outside:
		return "", "the objects do not show it"
	}
	// From outside of the cluster packets may arrive at any node: prefer one that serves.
	source, _ := decision.AddressOf(w.from.addrs, decision.FamilyOf(to.Addr()))
	var serving, dropping []string
	for _, n := range names {
		if d, _ := w.decideOn(n, source, to); d.Verdict == decision.Drop && d.Reason == decision.NoLocalEndpoints {
			dropping = append(dropping, n)
		} else {
			serving = append(serving, n)
		}
	}
	if len(serving) == 0 {
		return names[0], "a guess: packets from outside may arrive at any node"
	}
	if len(dropping) > 0 {
		w.answer.Notes = append(w.answer.Notes, Finding{
			Code: NoLocalEndpoints, Text: fmt.Sprintf("packets that arrive at %s are dropped: externalTrafficPolicy is Local, and no endpoint runs there", strings.Join(dropping, ", ")),
			Do: "have the load balancer check the health check node port, so that it sends to " + strings.Join(serving, ", ") + " only",
		})
	}
	return serving[0], "a guess: packets from outside may arrive at any node"
}

func objectOf(svc *corev1.Service) string { return "Service " + svc.Namespace + "/" + svc.Name }

func typeOf(svc *corev1.Service) corev1.ServiceType {
	if svc.Spec.Type == "" {
		return corev1.ServiceTypeClusterIP
	}
	return svc.Spec.Type
}

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
