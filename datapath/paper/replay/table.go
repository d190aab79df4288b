package replay

import (
	"errors"
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
)

// byTable decides by a service table.
type byTable struct {
	table    *decision.Table
	rand     decision.Rand
	affinity *affinity.Table
	steps    bool
	now      time.Time
}

// ByTable makes a decider that decides as the daemon on the table's node would. A capture does not
// show whether a packet originated on the node itself: those from its addresses count as local.
// steps: records have steps.
func ByTable(t *decision.Table, r decision.Rand, steps bool) Decider {
	d := &byTable{table: t, rand: r, steps: steps}
	d.affinity = affinity.NewAt(func() time.Time { return d.now })
	return d
}

func (d *byTable) Decide(f *First) (Decision, error) {
	d.now = f.Time
	p := &decision.Packet{
		Protocol: decision.Protocol(f.Protocol), Source: f.Source, Destination: f.Destination,
		Local: d.table.IsLocal(f.Source.Addr()),
	}
	if by := &d.table.Node().Detector; !p.Local && (by.Bridge != "" || by.InterfacePrefix != "") {
		if f.Interface == "" {
			return Decision{}, errors.New("pods are to be detected by the interface, which the capture does not record: capture with pcapng, or set another --detect-local-mode")
		}
		p.InInterface = f.Interface
	}
	decided := decision.Decide(d.table, p, d.rand, d.affinity, nil)
	r := flow.New(d.table, p, &decided)
	r.Time = &f.Time
	if d.steps {
		r.Steps = kubechains.Walk(d.table, p, &decided)
	}
	result := Decision{Record: r, Translated: f.Tuple}
	if decided.Verdict != decision.DNAT {
		return result, nil
	}
	result.Translated.Destination = decided.Endpoint()
	if decided.Masquerade {
		// The kernel takes the address of the route to the endpoint; here there is one of each
		// family.
		if ip := d.table.Node().IP(decision.FamilyOf(f.Source.Addr())); ip.IsValid() {
			result.Translated.Source = netip.AddrPortFrom(ip, f.Source.Port())
		} else {
			result.NoSource = true
		}
	}
	if decided.ServicePort.AffinitySeconds > 0 {
		d.affinity.Bind(decided.ServicePort, decided.Endpoint(), f.Source.Addr())
	}
	return result, nil
}

func (d *byTable) Forget(conntrack.Tuple) {}
