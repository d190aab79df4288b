// Package simulate answers "what would happen to this packet?" without a kernel.
package simulate

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/chains"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Simulator decides packets one after the other, as a node would: clients stay
// bound by affinity from one packet to the next. It is not safe for concurrent use.
type Simulator struct {
	table    *decision.Table
	rand     decision.Rand
	affinity *affinity.Table
}

// New makes a simulator of the node that the table was made for.
func New(table *decision.Table, r decision.Rand) *Simulator {
	return &Simulator{table, r, affinity.New()}
}

// Decide gives the record of the flow that the packet would start, with its steps and,
// where the answer alone would leave the asker wondering, a hint.
func (s *Simulator) Decide(p *decision.Packet) *flow.Record {
	d := decision.Decide(s.table, p, s.rand, s.affinity)
	r := flow.New(s.table, p, &d)
	r.Steps = chains.Walk(s.table, p, &d)
	r.Hint = hint(s.table, p, &d)
	if d.Verdict == decision.DNAT && d.ServicePort.AffinitySeconds > 0 {
		s.affinity.Bind(d.ServicePort, d.Endpoint(), p.Source.Addr())
	}
	return r
}

// hint says what might help.
func hint(t *decision.Table, p *decision.Packet, d *decision.Decision) string {
	var hints []string
	if d.ServicePort == nil {
		hints = append(hints, nearMiss(t, p))
	}
	if !p.Local && !p.Source.Addr().IsLoopback() && t.IsLocal(p.Source.Addr()) {
		hints = append(hints, fmt.Sprintf("%s is an address of the node itself: for a packet made there, say that it is local", p.Source.Addr()))
	}
	return strings.Join(strings.Fields(strings.Join(hints, " ")), " ")
}

// nearMiss tells what there is near a destination that is no service's.
func nearMiss(t *decision.Table, p *decision.Packet) string {
	dst := p.Destination
	var ports, nodePorts, pods []string
	other := ""
	for _, s := range t.Services() {
		if s.Family != decision.FamilyOf(dst.Addr()) {
			continue
		}
		if hasAddress(s, dst.Addr()) {
			ports = append(ports, fmt.Sprintf("%d/%s (%s)", s.Port, s.Protocol, s.Name))
		}
		if s.NodePort == dst.Port() && s.Protocol == p.Protocol {
			other = s.Name.String()
		}
		if s.NodePort != 0 {
			nodePorts = append(nodePorts, fmt.Sprintf("%d/%s (%s)", s.NodePort, s.Protocol, s.Name))
		}
		for _, e := range s.Endpoints {
			if e.AddrPort.Addr() == dst.Addr() && len(pods) == 0 {
				pods = append(pods, fmt.Sprintf("%s is an endpoint of %s: the packet goes there directly, past all services.", dst.Addr(), s.Name))
			}
		}
	}
	switch {
	case len(ports) > 0:
		return fmt.Sprintf("%s has other ports: %s.", dst.Addr(), some(ports))
	case other != "":
		return fmt.Sprintf("%d is the node port of %s, but node ports are not open on %s: it is no address of the node (give those with --node-ip), or --nodeport-addresses leaves it out.", dst.Port(), other, dst.Addr())
	case t.IsLocal(dst.Addr()) && len(nodePorts) > 0:
		return fmt.Sprintf("%s is an address of the node; node ports are: %s.", dst.Addr(), some(nodePorts))
	case len(pods) > 0:
		return pods[0]
	}
	return fmt.Sprintf("No service has the address %s, in %d service ports.", dst.Addr(), len(t.Services()))
}

func hasAddress(s *decision.ServicePort, a netip.Addr) bool {
	for _, own := range append(append([]netip.Addr{s.ClusterIP}, s.ExternalIPs...), s.LoadBalancerIPs...) {
		if own == a {
			return true
		}
	}
	return false
}

// some joins the first few.
func some(list []string) string {
	const few = 8
	if len(list) > few {
		list = append(list[:few:few], fmt.Sprintf("and %d more", len(list)-few))
	}
	return strings.Join(list, ", ")
}
