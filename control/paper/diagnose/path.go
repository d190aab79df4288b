package diagnose

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
)

// address answers a question about an address.
func (w *inquiry) address() error {
	if w.to.port == "" {
		return errors.New("the port is missing: write it after a colon")
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
	if w.from.pod == nil && w.from.node == "" || len(w.from.addrs) == 0 || len(w.to.addrs) == 0 {
		return fmt.Errorf("%s and %s have no address of the same family", w.from.text, w.to.text)
	}
	family := decision.FamilyOf(w.to.addrs[0])
	w.cause(Finding{
		Code: OtherFamily, Text: fmt.Sprintf("%s has no %s address, and cannot connect to %s", w.from.text, family, w.to.addrs[0]),
		Do: "use an address of the other family, or give the source addresses of both",
	})
	return nil
}

// hop is a node on the way of the packet, with its decision.
type hop struct {
	Place
	packet   *decision.Packet
	decision *decision.Decision
}

// decide follows the packet to the destination, in each way in which it may go.
func (w *inquiry) decide(to netip.AddrPort) {
	source, _ := decision.AddressOf(w.from.addrs, decision.FamilyOf(to.Addr()))
	if to.Addr().IsLoopback() && w.from.node != "" {
		source = to.Addr() // which the kernel selects
	}
	w.answer.Source.Address, w.answer.Destination.Address = source.String(), to.String()
	if w.unroutable(to) {
		return
	}
	main := w.follow(source, to, reading{})
	for _, r := range main.otherReadings() {
		main.compareReading(w.follow(source, to, r.reading), r.condition)
	}
	w.answer = main.answer
}

// unroutable finds out whether the packet reaches no service proxy, which is the answer.
func (w *inquiry) unroutable(to netip.AddrPort) bool {
	const outside = ", and the source is outside of the cluster: most networks have no route to it from there"
	switch pod, svc := w.owners[to.Addr()], w.withClusterIP(to.Addr()); {
	case to.Addr().IsLoopback() && w.from.node == "":
		w.cause(Finding{
			Code: LoopbackForeign, Text: fmt.Sprintf("%s is a loopback address: the packet does not leave the network namespace of the source, %s, where no service proxy works", to.Addr(), w.from.text),
			Do: "name an address of the node, or the Service",
		})
	case !w.from.outside || w.given != "" || w.routesToPods():
		return false
	case pod != nil:
		w.cause(Finding{
			Code: OutsideOnly, Object: "Pod " + nameOf(pod).String(), Text: fmt.Sprintf("%s is the address of a Pod%s", to.Addr(), outside),
			Do: "connect to a Service of type NodePort or LoadBalancer",
		})
	case svc != "":
		w.cause(Finding{
			Code: OutsideOnly, Object: svc, Field: "spec.type", Text: fmt.Sprintf("%s is the cluster IP of %s%s", to.Addr(), svc, outside),
			Do: "use type NodePort or LoadBalancer, or connect from a Pod; if packets are routed to a node, give its name",
		})
	default:
		return false
	}
	return true
}

// withClusterIP is the Service that has the address as a cluster IP; "" if none has.
func (c *Cluster) withClusterIP(a netip.Addr) string {
	if svc := c.clusterIPs[a]; svc != nil {
		return objectOf(svc)
	}
	return ""
}

// follow is an attempt to follow the packet. It leaves the inquiry as it is.
func (w *inquiry) follow(source netip.Addr, to netip.AddrPort, r reading) *inquiry {
	attempt, answer, destination := *w, *w.answer, *w.to
	attempt.answer, attempt.to, attempt.reading = &answer, &destination, r
	answer.Notes = slices.Clone(answer.Notes)
	attempt.pass(source, to)
	attempt.finish()
	return &attempt
}

// pass follows the packet from node to node. One that decides about a service of the packet is the last, and so is the
// one that has the destination's address.
func (w *inquiry) pass(source netip.Addr, to netip.AddrPort) {
	if w.from.outside && len(w.balancedAt(to.Addr())) > 0 { // it meets no node before the load balancer
		if w.passBalancer(w.packetOn(source, to)); len(w.hops) > 0 {
			return
		}
	}
	node, is := w.origin(source, to)
	w.hop(Place{node, is}, w.packet(node, source, to))
	first, owner := w.hops[0], w.nodes.Node(to.Addr())
	switch {
	case first.decision.ServicePort != nil, owner == node && node != "":
	case owner != "":
		if a, ok := decision.AddressOf(w.nodes.addresses[node], decision.FamilyOf(source)); ok && w.reading.masked {
			source = a
		}
		w.hop(Place{owner, fmt.Sprintf("it has the address %s", to.Addr())}, w.packetOn(source, to))
	default:
		w.passBalancer(first.packet)
	}
}

// hop has a node decide the packet.
func (w *inquiry) hop(at Place, p *decision.Packet) {
	w.hops = append(w.hops, hop{at, p, w.decideOn(at.Node, p)})
}

// finish judges the decision of the last node.
func (w *inquiry) finish() {
	last := &w.hops[len(w.hops)-1]
	w.answer.Node, w.answer.NodeIs = last.Node, last.Is
	w.answer.Record = record(w.tableOf(last.Node), last.packet, last.decision)
	for i := range w.hops[:len(w.hops)-1] {
		if h := &w.hops[i]; h.Node != "" {
			w.answer.Passed = append(w.answer.Passed, h.Place)
			w.answer.Record.Others = append(w.answer.Record.Others, record(w.tableOf(h.Node), h.packet, h.decision))
		}
	}
	if w.given != "" && !slices.ContainsFunc(w.hops, func(h hop) bool { return h.Node == w.given }) {
		w.answer.NodeIs += fmt.Sprintf("; %s was given, but does not decide", w.given)
	}
	w.judge(last.packet, last.decision)
	switch f := w.claimed; {
	case f == nil:
	case w.answer.Cause == nil:
		w.cause(*f)
	default:
		w.note(*f)
	}
	w.answer.Works = w.answer.Cause == nil
}

// record is the record of a decision, with the walk through kube-proxy's chains.
func record(t *decision.Table, p *decision.Packet, d *decision.Decision) *flow.Record {
	r := flow.New(t, p, d)
	r.Steps = kubechains.Walk(t, p, d)
	return r
}

// packet is the packet as it arrives at a node, or leaves it, if that is the source's.
func (w *inquiry) packet(node string, source netip.Addr, to netip.AddrPort) *decision.Packet {
	p := w.packetOn(source, to)
	detector := &w.table(node).Node().Detector
	switch {
	case w.from.node != "" && w.from.node == node:
		p.Local = true
	case w.from.on == node && node != "" && detector.Bridge != "":
		p.InInterface = detector.Bridge
	case w.from.on == node && node != "":
		p.InInterface = detector.InterfacePrefix
	}
	return p
}

// packetOn is the packet as it comes from another node.
func (w *inquiry) packetOn(source netip.Addr, to netip.AddrPort) *decision.Packet {
	return &decision.Packet{Protocol: w.protocolOf(to), Source: netip.AddrPortFrom(source, sourcePort), Destination: to}
}

func (w *inquiry) decideOn(node string, p *decision.Packet) *decision.Decision {
	d := decision.Decide(w.tableOf(node), p, rand.New(rand.NewPCG(1, 0)), affinity.New(), nil)
	return &d
}

// sourcePort stands for the client's port, which decides nothing.
const sourcePort = 40000

// protocolOf is the protocol of the packet: the given one, the Service port's, or else one for which
// a service port has the destination, TCP before others.
func (w *inquiry) protocolOf(to netip.AddrPort) decision.Protocol {
	switch {
	case w.protocol != nil:
		return *w.protocol
	case w.port != nil:
		return protocolOf(w.port.Protocol)
	}
	protocol := decision.TCP
	for _, s := range w.table(w.nodes.some()).Services() {
		if s.Port == to.Port() && (s.ClusterIP == to.Addr() || slices.Contains(s.ExternalIPs, to.Addr()) || slices.Contains(s.LoadBalancerIPs, to.Addr())) ||
			s.NodePort == to.Port() && w.nodes.Node(to.Addr()) != "" {
			if protocol = s.Protocol; protocol == decision.TCP {
				break
			}
		}
	}
	return protocol
}

func (w *inquiry) routesToPods() bool {
	for _, h := range w.labClients() {
		if slices.Equal(h.Addresses, w.from.addrs) {
			return h.RoutesToPods
		}
	}
	return false
}

// origin is the node whose service proxy the packet meets first, and why it is that one. An empty name: the objects do
// not show it.
func (w *inquiry) origin(source netip.Addr, to netip.AddrPort) (node, is string) {
	owner := w.nodes.Node(to.Addr())
	switch names := w.nodes.names; {
	case w.decided && w.given != "":
		return w.given, "as given"
	case w.from.node != "" && w.from.pod != nil:
		return w.from.node, "the source runs there, in the network of the node"
	case w.from.node != "":
		return w.from.node, "it is the source"
	case w.from.on != "":
		return w.from.on, "the source runs there"
	case w.from.outside && owner != "":
		return owner, fmt.Sprintf("it has the address %s", to.Addr())
	case w.given != "":
		return w.given, "as given"
	case len(names) == 1 && len(w.objects.Nodes) == 1:
		return names[0], "it is the only one"
	case len(names) == 0 || !w.from.outside:
		return "", "the objects do not show it"
	}
	node, _ = w.arrival(source, func(string) (netip.AddrPort, bool) { return to, true })
	return node, "a guess: packets from outside may arrive at any node"
}

// arrival is the node at which a packet from outside of the cluster arrives, if that may be any: one that serves it, if
// there is one. to is the destination of a packet that arrives at a node; ok is false if none does.
func (w *inquiry) arrival(source netip.Addr, to func(node string) (at netip.AddrPort, ok bool)) (node string, at netip.AddrPort) {
	var serving, dropping []string
	var health int32
	var names, down []string
	for _, n := range w.nodes.names {
		if w.NotReady(n) == nil {
			names = append(names, n)
		} else {
			down = append(down, n)
		}
	}
	for _, n := range append(names, down...) {
		dst, ok := to(n)
		if !ok {
			continue
		}
		d := w.decideOn(n, w.packetOn(source, dst))
		drops := d.Verdict == decision.Drop && d.Reason == decision.NoLocalEndpoints
		if node == "" || !drops && len(serving) == 0 {
			node, at = n, dst
		}
		if !drops && d.Policy != decision.Local {
			return n, dst // so are all others
		}
		if drops {
			dropping = append(dropping, n)
			health = w.services[d.ServicePort.Name.Service()].Spec.HealthCheckNodePort
		} else {
			serving = append(serving, n)
		}
	}
	if len(serving) > 0 && len(dropping) > 0 {
		f := Finding{
			Code: NoLocalEndpoints,
			Text: fmt.Sprintf("%d of %d nodes %s the packets that arrive there (%s): externalTrafficPolicy is Local, and no endpoint runs there", len(dropping), len(serving)+len(dropping), verb(len(dropping), "drops", "drop"), nearest.Few(dropping)),
			Do:   "use the addresses of " + nearest.Few(serving) + " only",
		}
		if w.nodes.Node(at.Addr()) == "" {
			f.Do = "have packets to this address arrive at " + nearest.Few(serving) + " only"
		}
		if health != 0 {
			f.Do = "have the load balancer check the health check node port, so that it sends to " + nearest.Few(serving) + " only"
		}
		w.note(f)
	}
	return node, at
}
