package conntracklist

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Kind is how an entry contradicts the services.
type Kind uint8

// The kinds.
const (
	// NoEndpoint: it is translated to what is no endpoint of its service.
	NoEndpoint Kind = iota
	// NotServing: it is of UDP, and translated to an endpoint that does not serve, while others do.
	NotServing
	// OtherService: it is translated to an endpoint of another service only.
	OtherService
	// Untranslated: it is to an address of a service that has endpoints for it, and not translated.
	Untranslated
	// NotMasqueraded: its source is unchanged, and the service's packets from there have to be masqueraded.
	NotMasqueraded
)

// Contradiction is a group of entries that contradict the services in one way.
type Contradiction struct {
	Kind    Kind
	Service *decision.ServicePort
	// At is the address of the service that the entries have, and Endpoint what they are translated to.
	At, Endpoint netip.AddrPort
	// Other is the service port that Endpoint belongs to; valid iff Kind is OtherService.
	Other *decision.ServicePort
	// Mark is why they have to be masqueraded; valid iff Kind is NotMasqueraded.
	Mark    decision.Mark
	Count   int
	Example Entry
}

// Judgement is the result for all entries.
type Judgement struct {
	// Entries is the number of entries, and OfServices of those to addresses of services.
	Entries, OfServices int
	// Ending is the number of entries that would contradict the services, of TCP connections that are closing.
	Ending int
	// Contradictions are in the order of their services, the most entries of each first.
	Contradictions []Contradiction
	// Masquerade: it is known which entries have to be masqueraded. Without a node it is not, nor which addresses have
	// node ports.
	Masquerade bool
}

// Judge compares entries with the service table of their node. Entries of other zones than 0 belong to other programs.
func Judge(t *decision.Table, entries []Entry) *Judgement {
	j := &judge{table: t, groups: make(map[group]*Contradiction), owners: make(map[owner]*decision.ServicePort)}
	j.Masquerade = len(t.Node().Addresses) > 0
	for _, s := range t.Services() {
		for i := range s.Endpoints {
			k := owner{s.Endpoints[i].AddrPort, s.Protocol}
			if j.owners[k] == nil {
				j.owners[k] = s
			}
		}
	}
	for i := range entries {
		j.Entries++
		j.see(&entries[i])
	}
	for _, c := range j.groups {
		j.Contradictions = append(j.Contradictions, *c)
	}
	slices.SortFunc(j.Contradictions, func(a, b Contradiction) int {
		return cmp.Or(a.Service.Name.Service().Compare(b.Service.Name.Service()), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Example.Line, b.Example.Line))
	})
	return &j.Judgement
}

type judge struct {
	Judgement
	table  *decision.Table
	groups map[group]*Contradiction
	owners map[owner]*decision.ServicePort
}

type group struct {
	kind         Kind
	service      *decision.ServicePort
	at, endpoint netip.AddrPort
}

type owner struct {
	endpoint netip.AddrPort
	protocol decision.Protocol
}

// see judges one entry.
func (j *judge) see(e *Entry) {
	p := decision.Packet{Protocol: decision.Protocol(e.Original.Protocol), Source: e.Original.Source, Destination: e.Original.Destination}
	if p.Protocol != decision.TCP && p.Protocol != decision.UDP && p.Protocol != decision.SCTP || e.Zone != 0 {
		return
	}
	p.Local = j.table.IsLocal(p.Source.Addr())
	candidates := j.table.Candidates(&p)
	if len(candidates) == 0 {
		return
	}
	j.OfServices++
	to := e.Endpoint()
	of, index := endpointOf(candidates, to)
	if of == nil {
		j.lost(e, &p, candidates, to)
		return
	}
	if p.Protocol == decision.UDP && !of.Endpoints[index].Serving && anyServing(candidates) {
		j.add(e, Contradiction{Kind: NotServing, Service: of})
		return
	}
	// What a host sends itself may be masqueraded as the address that it has.
	if !j.Masquerade || p.Local || e.Masqueraded() {
		return
	}
	d, ok := decision.ToEndpoint(j.table, &p, to, decision.ByProxy)
	if !ok || !d.Masquerade {
		return
	}
	if detector := &j.table.Node().Detector; d.Mark == decision.MarkOutside && (detector.Bridge != "" || detector.InterfacePrefix != "") {
		return // the device decides, which entries do not have
	}
	j.add(e, Contradiction{Kind: NotMasqueraded, Service: d.ServicePort, Mark: d.Mark})
}

// lost judges an entry that leads to no endpoint of its service ports.
func (j *judge) lost(e *Entry, p *decision.Packet, candidates []*decision.ServicePort, to netip.AddrPort) {
	c := Contradiction{Kind: NoEndpoint, Service: candidates[0]}
	if other := j.owners[owner{to, candidates[0].Protocol}]; other != nil {
		c.Kind, c.Other = OtherService, other
	}
	if to == e.Original.Destination {
		d := decision.Decide(j.table, p, anyDraw{}, nil, nil)
		if d.Verdict != decision.DNAT {
			return // it is refused, as by policy Local or source ranges, or is of a time without a proxy
		}
		c = Contradiction{Kind: Untranslated, Service: d.ServicePort}
	}
	j.add(e, c)
}

// anyDraw is for decisions of which only the verdict counts.
type anyDraw struct{}

func (anyDraw) Float64() float64 { return 0 }

// add counts an entry.
func (j *judge) add(e *Entry, c Contradiction) {
	switch e.TCP {
	case conntrack.TCPTimeWait, conntrack.TCPClose, conntrack.TCPLastAck:
		j.Ending++
		return
	}
	c.At, c.Endpoint = e.Original.Destination, e.Endpoint()
	k := group{c.Kind, c.Service, c.At, c.Endpoint}
	if j.groups[k] == nil {
		c.Example = *e
		j.groups[k] = &c
	}
	j.groups[k].Count++
}

// endpointOf finds the service port that has the endpoint, and the endpoint's position.
func endpointOf(candidates []*decision.ServicePort, to netip.AddrPort) (*decision.ServicePort, int) {
	for _, s := range candidates {
		for i := range s.Endpoints {
			if s.Endpoints[i].AddrPort == to {
				return s, i
			}
		}
	}
	return nil, 0
}

func anyServing(candidates []*decision.ServicePort) bool {
	return slices.ContainsFunc(candidates, func(s *decision.ServicePort) bool {
		return slices.ContainsFunc(s.Endpoints, func(e decision.Endpoint) bool { return e.Serving })
	})
}
