package replay

import (
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/packet"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// Values that only records of flows decided by a dump's rules have.
const (
	// verdictUnknown: the walk reached an unknown effect.
	verdictUnknown = "unknown"
	// reasonRules: the reason is in the steps.
	reasonRules = "rules"
)

// Rules are the rules that decide without a service table.
type Rules struct {
	// Machines are those of one or both families.
	Machines map[decision.Family]*netfilter.Machine
	Steps    bool // records with steps
}

// byRules decides by the rules of dumps.
type byRules struct {
	Rules
	rand    netfilter.Rand
	states  map[decision.Family]*netfilter.State
	entries map[conntrack.Tuple]*netfilter.Entry // of flows that have not ended, by their original tuple
	begun   time.Time                            // the time of the first packet
}

// ByRules makes a decider that sends the first packet of each flow through rules, whose state
// continues from flow to flow: counters of -m statistic --mode nth, limits, lists and quotas.
// Later packets are not sent: rules that count or limit packets count flows. The time is that of
// the capture.
func ByRules(rules Rules, r netfilter.Rand) Decider {
	d := &byRules{Rules: rules, rand: r, states: make(map[decision.Family]*netfilter.State), entries: make(map[conntrack.Tuple]*netfilter.Entry)}
	for family := range rules.Machines {
		d.states[family] = &netfilter.State{}
	}
	return d
}

func (d *byRules) Decide(f *First) (Decision, error) {
	r := &flow.Record{
		Version: flow.Version, Time: &f.Time, Protocol: decision.Protocol(f.Protocol).String(), Source: f.Source.String(), Destination: f.Destination.String(),
		Verdict: decision.Accept.String(), Reason: reasonRules, Candidates: []flow.Candidate{}, Excluded: []flow.Excluded{},
	}
	result := Decision{Record: r, Translated: f.Tuple}
	family := decision.FamilyOf(f.Destination.Addr())
	machine := d.Machines[family]
	if machine == nil {
		return result, nil // without rules of the family, everything passes
	}
	state := d.states[family]
	if d.begun.IsZero() {
		d.begun = f.Time
	}
	state.Began = d.begun
	state.Now = max(state.Now, f.Time.Sub(d.begun).Seconds())

	p := iptables.Packet{
		Protocol: uint8(f.Protocol), Source: f.Source, Destination: f.Destination, InInterface: f.Interface,
		Length: uint16(min(f.Length, 0xffff)), TOS: f.TOS, TTL: f.TTL, Bytes: f.Data,
	}
	if f.Sender == nil {
		p.Supposed |= iptables.FactMAC
	} else {
		p.MAC = (*iptables.MACAddress)(f.Sender)
	}
	switch f.Protocol {
	case packet.TCP:
		p.ReadTCPHeader()
		p.Flags |= iptables.SYN
	case packet.SCTP:
		p.Chunks = []iptables.ChunkType{{Type: chunkInit}}
	}
	machine.Place(&p)
	if p.Local {
		p.Owner = &iptables.SocketOwner{}
		p.Supposed |= iptables.FactOwner
	}
	r.Local = p.Local
	way := machine.Send(p, state, d.rand)
	r.Service, r.Entry = serviceOf(way.Path)
	if d.Steps {
		r.Steps = way.Steps
	}
	switch way.Verdict {
	case netfilter.Dropped:
		r.Verdict = decision.Drop.String()
		return result, nil
	case netfilter.Rejected:
		r.Verdict = decision.Reject.String()
		return result, nil
	case netfilter.Sent, netfilter.Delivered:
	default:
		r.Verdict = verdictUnknown
		return result, nil
	}
	if e := way.Entry; e != nil {
		d.entries[f.Tuple] = e
		result.Translated.Source, result.Translated.Destination = e.Reply.Destination, e.Reply.Source
		if e.DNAT {
			r.Verdict, r.Endpoint = decision.DNAT.String(), e.Reply.Source.String()
		}
		if e.SNAT {
			r.Masquerade, r.MasqueradeAddress = true, e.Reply.Destination.Addr().String()
		}
	}
	return result, nil
}

func (d *byRules) Forget(original conntrack.Tuple) {
	if e := d.entries[original]; e != nil {
		d.states[decision.FamilyOf(original.Destination.Addr())].Forget(e)
		delete(d.entries, original)
	}
}

// commented are the kinds of addresses in kube-proxy's comments.
var commented = map[string]decision.Entry{
	"cluster IP": decision.EntryClusterIP, "external IP": decision.EntryExternalIP, "loadbalancer IP": decision.EntryLoadBalancer,
}

// serviceOf reads the service port from kube-proxy's comments on the rules that matched:
// "default/web:http cluster IP", "default/web:http has no endpoints". Both are empty if no rule
// has one.
func serviceOf(path []*iptables.Rule) (service, entry string) {
	for _, r := range path {
		if !strings.HasPrefix(r.Chain, "KUBE-") {
			continue
		}
		for _, m := range r.Matches {
			c, ok := m.(iptables.Comment)
			if !ok {
				continue
			}
			name, rest, _ := strings.Cut(c.Text, " ")
			if namespace, name, ok := strings.Cut(name, "/"); !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
				continue
			}
			if r.Chain == "KUBE-NODEPORTS" {
				return name, decision.EntryNodePort.String()
			}
			if e, ok := commented[rest]; ok {
				return name, e.String()
			}
			return name, ""
		}
	}
	return "", ""
}
