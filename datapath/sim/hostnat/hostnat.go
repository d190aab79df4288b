// Package hostnat computes what the host's own rules of nat POSTROUTING - a CNI plugin's,
// ip-masq-agent's, Docker's - do to the source of a flow whose destination a service proxy
// translates.
//
// Some things are not known when the entry is made. Marks are those that the packet has
// before connection tracking: what rules of mangle or filter set later is not seen. The
// device is that of the route for packets made here: rules of routing that ask for a
// packet's source or mark are not obeyed. What is in ipsets is not read. A port is taken
// at random only if the client's own is not free or not within the range, --random or not.
package hostnat

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/sim/netfilter"
)

// Table is one table "nat".
type Table struct {
	Name string // for messages
	Dump *iptables.Dump
}

// Rules are the tables of a host, ready to be asked. They are immutable.
type Rules struct {
	families map[decision.Family][]machine
	host     *netfilter.Host
}

type machine struct {
	*netfilter.Machine
	name string
}

// Compile prepares tables, which are asked in their order: the first that translates is
// the last one asked (nf_nat_core.c, nf_nat_inet_fn). What cannot be used is left out,
// and in the error; the rules can be used all the same.
func Compile(tables []Table, host *netfilter.Host) (*Rules, error) {
	r := &Rules{families: make(map[decision.Family][]machine), host: host}
	var faults []error
	for _, t := range tables {
		f := decision.IPv4
		if t.Dump.Family == iptables.IPv6 {
			f = decision.IPv6
		}
		m, err := netfilter.New(t.Dump, nil, host, netfilter.Options{})
		switch {
		case err != nil:
			faults = append(faults, fmt.Errorf("%s: %w", t.Name, err))
		case m.Translates(netfilter.Postrouting):
			r.families[f] = append(r.families[f], machine{m, t.Name})
		}
	}
	return r, errors.Join(faults...)
}

// Any says, also of nil, whether there are rules that may translate the source of a flow of the
// family.
func (r *Rules) Any(f decision.Family) bool { return r != nil && len(r.families[f]) > 0 }

// Out is the device by which packets to the address leave, as far as the host's routes
// are known.
func (r *Rules) Out(to netip.Addr) string {
	if !r.Any(decision.FamilyOf(to)) {
		return ""
	}
	return r.families[decision.FamilyOf(to)][0].Route(to).Interface
}

// Answer is what the rules would have done.
type Result struct {
	// Rule is the rule as iptables-save prints it, and Table what it is in; empty: the
	// source stays as it is.
	Rule  *iptables.Rule
	Table string
	// Unjudged says why it cannot be told what becomes of the source; empty: it can.
	Unknown string
	// Masquerade: to an address of the device it leaves by; else, with a Rule, to Source.
	Masquerade bool
	Source     netip.Addr
	// Ports are those that the source port is to be one of; 0 to 0: any.
	Ports iptables.PortRange
}

// Asker asks rules. It is not safe for concurrent use; the zero value is valid. Asking
// allocates nothing, unless the answer is Unjudged.
type Evaluator struct {
	snat   netfilter.SourceNAT
	packet netfilter.Translated
}

// Ask asks what would have become of a flow from p that is sent to the endpoint by the
// device out. p.InInterface counts if the rules ask for it. mark is the packet's. r may be nil.
func (a *Evaluator) Evaluate(r *Rules, p *decision.Packet, endpoint netip.AddrPort, out string, mark uint32) Result {
	a.packet = netfilter.Translated{
		Packet: netfilter.Packet{
			Protocol: uint8(p.Protocol), Source: p.Source, Destination: endpoint, Local: p.Local, InInterface: p.InInterface,
			Mark: mark, TTL: 64,
		},
		Asked: p.Destination, Out: out,
	}
	if p.Protocol == decision.TCP {
		a.packet.Flags = iptables.SYN
	}
	if r == nil {
		return Result{}
	}
	for _, m := range r.families[decision.FamilyOf(endpoint.Addr())] {
		j := a.snat.Evaluate(m.Machine, &a.packet)
		switch {
		case j.Rule == nil:
			continue
		case j.Unknown:
			return Result{Rule: j.Rule, Table: m.name, Unknown: "it depends on data that is not known here"}
		case !j.Masquerade && !j.Source.IsValid():
			return Result{Rule: j.Rule, Table: m.name, Unknown: "it drops or rejects the packet, which is not applied here"}
		case !j.Masquerade && j.Source == p.Source.Addr() && (j.Ports == iptables.PortRange{} || j.Ports.Contains(p.Source.Port())):
			return Result{} // within the range already
		case !j.Masquerade && !r.host.Has(j.Source):
			return Result{Rule: j.Rule, Table: m.name, Unknown: fmt.Sprintf("%s is no address of this host: entries with it would not be recognised as ours", j.Source)}
		}
		return Result{Rule: j.Rule, Table: m.name, Masquerade: j.Masquerade, Source: j.Source, Ports: j.Ports}
	}
	return Result{}
}
