package engine

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	ct "github.com/ti-mo/conntrack"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
)

// restoreAffinity restores clients' bindings: those of the kernel's copy of the service table, and those
// of the connections of an earlier run. A connection's binding starts with it if the kernel records time
// stamps (net.netfilter.nf_conntrack_timestamp), and now if it does not: the client then stays bound a
// little longer.
func restoreAffinity(to *affinity.Table, table *decision.Table) error {
	if !usesAffinity(table) {
		return nil
	}
	now := time.Now()
	err := eachConnection(func(f *ct.Flow) {
		o, r := &f.TupleOrig, &f.TupleReply
		began := f.Timestamp.Start
		if began.IsZero() {
			began = now
		}
		bindAt(to, table, ruleset.Binding{
			Protocol: decision.Protocol(o.Proto.Protocol), Client: o.IP.SourceAddress,
			Service:  netip.AddrPortFrom(o.IP.DestinationAddress, o.Proto.DestinationPort),
			Endpoint: netip.AddrPortFrom(r.IP.SourceAddress, r.Proto.SourcePort),
			Last:     began,
		})
	})
	if err == nil {
		err = readBindings(to, table)
	}
	if err != nil {
		return fmt.Errorf("restore session affinity: %w", err)
	}
	return nil
}

// readBindings adds the bindings of the kernel's copy, which decides while the daemon does not, in the
// calling thread's network namespace.
func readBindings(to *affinity.Table, table *decision.Table) error {
	if !usesAffinity(table) {
		return nil
	}
	err := ruleset.ReadBindings(func(b ruleset.Binding) { bindAt(to, table, b) })
	to.Retain(table, nil)
	return err
}

func usesAffinity(t *decision.Table) bool {
	return slices.ContainsFunc(t.Services(), func(s *decision.ServicePort) bool { return s.AffinitySeconds > 0 })
}

func bindAt(to *affinity.Table, table *decision.Table, b ruleset.Binding) {
	p := decision.Packet{Protocol: b.Protocol, Source: netip.AddrPortFrom(b.Client, 0), Destination: b.Service}
	for _, s := range table.Candidates(&p) {
		if s.AffinitySeconds > 0 {
			to.BindAt(s, b.Endpoint, b.Client, b.Last)
		}
	}
}

// eachConnection calls each for the connections with our mark.
func eachConnection(each func(*ct.Flow)) error {
	conn, err := ct.Dial(nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	// A connection that is created or removed during the dump may be missing: no harm.
	flows, err := conn.DumpFilter(ct.NewFilter().Mark(conntrack.DefaultMark).MarkMask(conntrack.DefaultMark), nil)
	for i := range flows {
		each(&flows[i])
	}
	return err
}
