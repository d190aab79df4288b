//go:build linux

package kubechains

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ti-mo/conntrack"

	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// outcome is the result of a packet.
type outcome struct {
	verdict    decision.Verdict
	to         netip.AddrPort // valid iff the verdict is DNAT
	masquerade bool
}

func (o outcome) String() string {
	s := o.verdict.String()
	if o.verdict == decision.DNAT {
		s += " to " + o.to.String()
	}
	if o.masquerade {
		s += ", masqueraded"
	}
	return s
}

// sure is a Rand that always draws the same number.
type sure float64

func (s sure) Float64() float64 { return float64(s) }

// possible are the decisions that Decide could make with one draw or another.
func possible(w *world, p *decision.Packet, memory decision.Affinity) []decision.Decision {
	first := decision.Decide(w.table, p, sure(0), memory, nil)
	decisions := []decision.Decision{first}
	if first.Drawn {
		n := len(first.ServicePort.Usable[first.Policy])
		for k := 1; k < n; k++ {
			decisions = append(decisions, decision.Decide(w.table, p, sure((float64(k)+0.5)/float64(n)), memory, nil))
		}
	}
	return decisions
}

func outcomeOf(d *decision.Decision) outcome {
	o := outcome{verdict: d.Verdict, masquerade: d.Masquerade}
	if d.Verdict == decision.DNAT {
		o.to = d.Endpoint()
	}
	return o
}

// TestKernelAgreesWithDecide has the kernel send real packets through the rules that
// Render writes, and compares the results with Decide.
func TestKernelAgreesWithDecide(t *testing.T) {
	available := backends(t)
	worlds, packets := netnstest.Cases(300, 99), 24
	seen := make(tally)
	for seed := range uint64(worlds) {
		b := available[seed%uint64(len(available))]
		t.Run(fmt.Sprintf("%s/%d", b, seed), func(t *testing.T) {
			w4, w6 := newWorld(seed, decision.IPv4), newWorld(seed, decision.IPv6)
			n := newKernelNode(t, w4, w6)
			for _, w := range []*world{w4, w6} {
				n.load(t, b, w)
				e := &experiment{world: w, rules: "rendered rules:", node: n, memory: affinity.New(), seen: seen}
				e.generate(packets)
				check(t, netns.OnOneCPU(e.perform))
				e.compare(t)
			}
			seen["back end "+string(b)]++
		})
		if t.Failed() {
			return
		}
	}
	for _, b := range available {
		seen.atLeast(t, worlds/len(available), "back end "+string(b))
	}
	seen.require(t, worlds)
}

// experiment is a number of packets that are sent to a node.
type experiment struct {
	*world
	rules   string // whose, in messages
	node    *kernelNode
	memory  *affinity.Table
	seen    tally
	packets []*decision.Packet
	// lastPort goes on where the packets are others.
	lastPort uint16
	// differs reports whether the rules do something else than Decide, as is known of them. The decision is
	// the one with the same endpoint, if there is one. Nil: they never do.
	differs func(e *experiment, p *decision.Packet, d *decision.Decision, got outcome) bool
	// bound has the clients of each address apart, if the rules bind them so.
	bound   map[netip.AddrPort]*affinity.Table
	wires   map[uint32][]captured // of each packet, by its number
	tracked map[flowKey]conntrack.Flow
}

type flowKey struct {
	protocol            decision.Protocol
	source, destination netip.AddrPort
}

// generate makes the packets. Each has a port of its own, to be distinguished from others. Half
// of them are for services with affinity, from few clients: they come again.
func (e *experiment) generate(count int) {
	var sticky []*decision.ServicePort
	for _, s := range e.table.Services() {
		if s.AffinitySeconds > 0 {
			sticky = append(sticky, s)
		}
	}
	for len(e.packets) < count {
		p := e.packet()
		if len(sticky) > 0 && e.coin(2) {
			p = e.packetTo(sticky[e.IntN(len(sticky))], e.sources[e.IntN(4)])
		}
		if s := e.table.Services()[e.IntN(len(e.table.Services()))]; p.Local && s.NodePort != 0 && e.coin(3) {
			p.Protocol, p.Destination = s.Protocol, netip.AddrPortFrom(e.loopback(1), s.NodePort)
		}
		if p.Local && e.table.IsLocal(p.Destination.Addr()) && e.coin(2) {
			p.Source = netip.AddrPortFrom(p.Destination.Addr(), 0) // as the kernel chooses
		}
		if !e.sendable(p) {
			continue
		}
		e.add(p)
	}
}

// add gives the packet a port of its own and puts it behind the others.
func (e *experiment) add(p *decision.Packet) {
	e.lastPort++
	p.Source = netip.AddrPortFrom(p.Source.Addr(), 20000+e.lastPort)
	e.packets = append(e.packets, p)
}

// sendable reports whether there is such a packet. From a loopback address to another one
// there is not, unless the node has route_localnet: the kernel finds no route.
func (e *experiment) sendable(p *decision.Packet) bool {
	return e.family == decision.IPv6 || !p.Source.Addr().IsLoopback() ||
		p.Destination.Addr().IsLoopback() || e.table.Node().LocalhostNodePorts
}

// perform, on one CPU, sends the packets and collects what is to be seen of them.
func (e *experiment) perform() error {
	for i, p := range e.packets {
		if err := e.node.transmit(p, uint32(i+1)); err != nil {
			return fmt.Errorf("sending %+v: %w", *p, err)
		}
	}
	wires, err := e.node.barrier(e.world)
	if err != nil {
		return err
	}
	e.wires = make(map[uint32][]captured)
	for _, c := range wires {
		e.wires[c.number] = append(e.wires[c.number], c)
	}
	flows, err := e.node.flows()
	if err != nil {
		return err
	}
	e.tracked = make(map[flowKey]conntrack.Flow)
	for _, f := range flows {
		k := flowKey{decision.Protocol(f.TupleOrig.Proto.Protocol), originalSource(f), originalDestination(f)}
		e.tracked[k] = f
	}
	return nil
}

func originalSource(f conntrack.Flow) netip.AddrPort {
	return netip.AddrPortFrom(f.TupleOrig.IP.SourceAddress, f.TupleOrig.Proto.SourcePort)
}

func originalDestination(f conntrack.Flow) netip.AddrPort {
	return netip.AddrPortFrom(f.TupleOrig.IP.DestinationAddress, f.TupleOrig.Proto.DestinationPort)
}

// compare goes in the order of sending: what the kernel chose for one packet binds
// the client of the next.
func (e *experiment) compare(t *testing.T) {
	t.Helper()
	for i, p := range e.packets {
		got, err := e.observed(uint32(i+1), p)
		memory := e.memoryOf(p)
		decisions := possible(e.world, p, memory)
		k := slices.IndexFunc(decisions, func(d decision.Decision) bool { return outcomeOf(&d) == got })
		if k < 0 && err == nil {
			k = e.drewItsOwnPort(p, decisions, got)
		}
		different := false
		if e.differs != nil && k < 0 && err == nil {
			k = slices.IndexFunc(decisions, func(d decision.Decision) bool { return outcomeOf(&d).to == got.to })
			different = e.differs(e, p, &decisions[max(k, 0)], got)
			if different {
				e.seen["different"]++
			} else {
				k = -1
			}
		}
		if different && k < 0 {
			continue
		}
		if err != nil || k < 0 {
			var may []string
			for _, d := range decisions {
				may = append(may, fmt.Sprintf("%s (%s, %s, %s, mark %q)", outcomeOf(&d), d.Reason, d.Entry, d.Branch, d.Mark))
			}
			t.Fatalf("%s %s packet %d, %+v: the kernel gives %s, error %v\nDecide gives\n  %s\nWalk gives\n%s",
				e.rules, e.family, i, *p, got, err, strings.Join(may, "\n  "), text(Walk(e.table, p, &decisions[0])))
		}
		d := decisions[k]
		if !different {
			e.seen.add(e.world, p, &d, k)
		}
		if d.Verdict == decision.DNAT && d.ServicePort.AffinitySeconds > 0 {
			memory.Bind(d.ServicePort, d.Endpoint(), p.Source.Addr())
		}
	}
}

// drewItsOwnPort gives the decision behind what looks like no masquerade and may be one: the source of a packet that the
// node sends may be what the kernel would give it, with the port that the kernel drew. With --random-fully that happens
// once in 64,512 packets (nf_nat_l4proto_unique_tuple), so a test has two of them at most. -1: there is none.
func (e *experiment) drewItsOwnPort(p *decision.Packet, decisions []decision.Decision, got outcome) int {
	if !e.table.IsLocal(p.Source.Addr()) || e.seen["drew its own port"] == 2 {
		return -1
	}
	got.masquerade = true
	k := slices.IndexFunc(decisions, func(d decision.Decision) bool { return outcomeOf(&d) == got })
	if k >= 0 {
		e.seen["drew its own port"]++
	}
	return k
}

// memoryOf has the clients that are bound at the packet's destination.
func (e *experiment) memoryOf(p *decision.Packet) *affinity.Table {
	if e.bound == nil {
		return e.memory
	}
	if e.bound[p.Destination] == nil {
		e.bound[p.Destination] = affinity.New()
	}
	return e.bound[p.Destination]
}

// observed is the outcome in the kernel. The error names a contradiction.
func (e *experiment) observed(number uint32, p *decision.Packet) (o outcome, err error) {
	var sent, refusals []captured
	for _, c := range e.wires[number] {
		if c.refusal {
			refusals = append(refusals, c)
		} else {
			sent = append(sent, c)
		}
	}
	flow, tracked := e.tracked[flowKey{p.Protocol, p.Source, p.Destination}]
	// Replies would come from where the packet went, and go to what it has as a source.
	to := netip.AddrPortFrom(flow.TupleReply.IP.SourceAddress, flow.TupleReply.Proto.SourcePort)
	from := netip.AddrPortFrom(flow.TupleReply.IP.DestinationAddress, flow.TupleReply.Proto.DestinationPort)
	local := tracked && e.table.IsLocal(to.Addr())
	if !tracked || local && flow.Mark&delivered == 0 {
		o.verdict = decision.Drop
		if len(refusals) > 0 {
			o.verdict = decision.Reject
		}
		if len(sent) > 0 || len(refusals) > 1 {
			err = fmt.Errorf("stopped, but seen: %v", e.wires[number])
		}
		return o, err
	}
	if to != p.Destination {
		o.verdict, o.to = decision.DNAT, to
	}
	o.masquerade = from != p.Source
	switch {
	case o.masquerade && !e.table.IsLocal(from.Addr()):
		err = fmt.Errorf("the source became %s, which is not the node's", from)
	case local && len(sent) > 0:
		err = fmt.Errorf("for the node itself, but seen outside: %v", sent)
	case !local && (len(sent) != 1 || sent[0].source != from || sent[0].destination != to):
		err = fmt.Errorf("tracked as from %s to %s, but seen outside: %v", from, to, sent)
	case len(refusals) > 0 && !local:
		// (The node itself may answer that there is no listener.)
		err = fmt.Errorf("passed, but refused: %v", refusals)
	}
	return o, err
}

// TestKernelDrawsEvenly: the probabilities that Render writes give every endpoint the
// same share of the flows, as Decide's draw does.
func TestKernelDrawsEvenly(t *testing.T) {
	b := backends(t)[0]
	drawsEvenly(t, &experiment{rules: "rendered rules:", memory: affinity.New()}, func(n *kernelNode, w *world) { n.load(t, b, w) })
}

// drawsEvenly: every endpoint gets the same share of the flows.
func drawsEvenly(t *testing.T, e *experiment, load func(*kernelNode, *world)) {
	w := newWorld(0, decision.IPv4)
	s := w.service(0)
	s.Protocol, s.AffinitySeconds, s.InternalPolicy = decision.UDP, 0, decision.Cluster
	s.Endpoints, s.Usable, s.HasEndpoints = nil, [2][]uint32{}, true
	const endpoints, batches, packets = 7, 30, 100
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: netip.AddrPortFrom(w.addr(netPod, 1+i), 53)})
		s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(i))
	}
	w.table = decision.NewTable(1, time.Time{}, *w.table.Node(), []*decision.ServicePort{s})
	n := newKernelNode(t, w)
	load(n, w)
	e.world, e.node, e.seen = w, n, make(tally)
	for range batches {
		e.packets = nil
		for range packets {
			e.add(&decision.Packet{
				Protocol: decision.UDP, InInterface: "veth1",
				Source: netip.AddrPortFrom(w.addr(netPod, 400), 0), Destination: netip.AddrPortFrom(s.ClusterIP, s.Port),
			})
		}
		check(t, netns.OnOneCPU(e.perform))
		e.compare(t)
	}
	const expected = float64(batches*packets) / endpoints
	chi2 := 0.0
	for i := range endpoints {
		diff := float64(e.seen[fmt.Sprintf("endpoint %d of %d", i+1, endpoints)]) - expected
		chi2 += diff * diff / expected
	}
	// Six degrees of freedom: above 45 once in 20 million runs.
	if chi2 > 45 {
		t.Errorf("chi-square %.1f for %v", chi2, e.seen)
	}
}
