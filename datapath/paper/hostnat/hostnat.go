// Package hostnat computes what a dump of a host's rules says about the source of a flow, as
// [hostnat.Ruleset] does from the kernel's own rules.
package hostnat

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/hostnat"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// Table is one table "nat".
type Table struct {
	Name string // for messages
	Dump *iptables.Dump
}

// Rules are the compiled tables of a host.
type Rules struct {
	snat     netfilter.SourceNAT
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

// Translate returns the effect of the rules on a flow from p that is sent to the endpoint, by the
// host's routes as far as they are known. It is not safe for concurrent use.
func (r *Rules) Translate(p *decision.Packet, endpoint netip.AddrPort) hostnat.Result {
	machines := r.families[decision.FamilyOf(endpoint.Addr())]
	if len(machines) == 0 {
		return hostnat.Result{}
	}
	packet := netfilter.Translated{
		Packet:   iptables.Packet{Protocol: uint8(p.Protocol), Source: p.Source, Destination: endpoint, Local: p.Local, InInterface: p.InInterface, TTL: 64},
		Original: p.Destination, Out: machines[0].Route(endpoint.Addr()).Interface,
	}
	if p.Protocol == decision.TCP {
		packet.Flags = iptables.SYN
	}
	for _, m := range machines {
		j := r.snat.Evaluate(m.Machine, &packet)
		if j.Rule == nil {
			continue
		}
		result := hostnat.Result{Rule: &rules.Rule{Chain: j.Rule.Chain, Line: j.Rule.Line, Words: j.Rule.String()}, Table: m.name}
		switch {
		case j.Unknown:
			result.Unknown = hostnat.NotKnown
		case !j.Masquerade && !j.Source.IsValid():
			result.Unknown = hostnat.Drops
		case !j.Masquerade && j.Source == p.Source.Addr() && (j.Ports == iptables.PortRange{} || j.Ports.Contains(p.Source.Port())):
			return hostnat.Result{} // within the range already
		case !j.Masquerade && !r.host.Has(j.Source):
			result.Unknown = hostnat.NotOurs(j.Source)
		default:
			result.Masquerade, result.Source, result.FirstPort, result.LastPort = j.Masquerade, j.Source, j.Ports.First, j.Ports.Last
		}
		return result
	}
	return hostnat.Result{}
}
