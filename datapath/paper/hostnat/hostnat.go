// Package hostnat computes the effect of the host's own rules of nat POSTROUTING - a CNI plugin's,
// ip-masq-agent's, Docker's - on the source of a flow whose destination a service proxy
// translates.
//
// Some data is unknown when the entry is created. Marks are those of the packet before connection
// tracking: marks that rules of mangle or filter set later are not known. The device is that of
// the route for local packets: routing rules that match a packet's source or mark are ignored. The
// contents of ipsets are not read. A port is selected at random only if the client's own is not
// free or not within the range, with --random or without.
package hostnat

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// Table is one table "nat".
type Table struct {
	Name string // for messages
	Dump *iptables.Dump
}

// Rules are the compiled tables of a host. They are immutable.
type Rules struct {
	families map[decision.Family][]machine
	host     *netfilter.Host
}

type machine struct {
	*netfilter.Machine
	name string
}

// Compile prepares tables, which are evaluated in their order: the first that translates is the
// last one evaluated (nf_nat_core.c, nf_nat_inet_fn). Unusable tables are left out and named in
// the error; the other rules can be used.
func Compile(tables []Table, host *netfilter.Host) (*Rules, error) {
	r := &Rules{families: make(map[decision.Family][]machine), host: host}
	var faults []error
	for _, t := range tables {
		f := decision.IPv4
		if t.Dump.Family == iptables.IPv6 {
			f = decision.IPv6
		}
		m, err := netfilter.New([]*iptables.Dump{t.Dump}, nil, host, netfilter.Options{})
		switch {
		case err != nil:
			faults = append(faults, fmt.Errorf("%s: %w", t.Name, err))
		case m.Translates(netfilter.Postrouting):
			r.families[f] = append(r.families[f], machine{m, t.Name})
		}
	}
	return r, errors.Join(faults...)
}

// Any reports, also for nil, whether there are rules that may translate the source of a flow of the
// family.
func (r *Rules) Any(f decision.Family) bool { return r != nil && len(r.families[f]) > 0 }

// Out returns the output device of packets to the address, as far as the host's routes are known.
func (r *Rules) Out(to netip.Addr) string {
	if !r.Any(decision.FamilyOf(to)) {
		return ""
	}
	return r.families[decision.FamilyOf(to)][0].Route(to).Interface
}

// Result is the effect of the rules.
type Result struct {
	// Rule is the rule as iptables-save prints it, and Table its table; empty: the source is
	// unchanged.
	Rule  *iptables.Rule
	Table string
	// Unknown is the reason why the effect on the source is unknown; empty: it is known.
	Unknown string
	// Masquerade: the source becomes an address of the output device; else, with a Rule, it
	// becomes Source.
	Masquerade bool
	Source     netip.Addr
	// Ports is the range for the source port; 0 to 0: any.
	Ports iptables.PortRange
}

// Evaluator evaluates rules. It is not safe for concurrent use; the zero value is valid. It
// allocates nothing, unless the result is Unknown.
type Evaluator struct {
	snat   netfilter.SourceNAT
	packet netfilter.Translated
}

// Evaluate returns the effect of the rules on a flow from p that is sent to the endpoint through
// the device out. p.InInterface counts if the rules match it. mark is the packet's. r may be nil.
func (a *Evaluator) Evaluate(r *Rules, p *decision.Packet, endpoint netip.AddrPort, out string, mark uint32) Result {
	a.packet = netfilter.Translated{
		Packet: iptables.Packet{
			Protocol: uint8(p.Protocol), Source: p.Source, Destination: endpoint, Local: p.Local, InInterface: p.InInterface,
			Mark: mark, TTL: 64,
		},
		Original: p.Destination, Out: out,
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
