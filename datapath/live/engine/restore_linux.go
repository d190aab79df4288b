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
func (e *Engine) restoreAffinity(table *decision.Table) error {
	if !usesAffinity(table) {
		return nil
	}
	conn, err := ct.Dial(nil)
	if err != nil {
		return fmt.Errorf("restore session affinity: %w", err)
	}
	defer conn.Close()
	now := time.Now()
	// A connection that is created or removed during the dump may be missing: no harm.
	flows, err := conn.DumpFilter(ct.NewFilter().Mark(conntrack.DefaultMark).MarkMask(conntrack.DefaultMark), nil)
	for i := range flows {
		f := &flows[i]
		o, r, began := &f.TupleOrig, &f.TupleReply, f.Timestamp.Start
		if began.IsZero() {
			began = now
		}
		bindAt(e.bound, table, ruleset.Binding{
			Protocol: decision.Protocol(o.Proto.Protocol), Client: o.IP.SourceAddress,
			Service:  netip.AddrPortFrom(o.IP.DestinationAddress, o.Proto.DestinationPort),
			Endpoint: netip.AddrPortFrom(r.IP.SourceAddress, r.Proto.SourcePort),
			Last:     began,
		})
	}
	if err == nil {
		err = readBindings(e.bound, table)
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

// rememberInterval is the least time between two passes over the connection table, which
// take about a second for 262,144 entries.
const rememberInterval = 5 * time.Second

// rememberConnections makes entries that the workers have not written evictable: unreplied entries
// of an earlier run at once, others later whenever a full table has too few candidates.
func (e *Engine) rememberConnections() error {
	c, err := e.openConnections()
	if err != nil {
		return err
	}
	e.remembered.Add(1)
	e.remembering.Go(func() {
		defer c.Close() // it was read only
		e.rememberTable(c)
		e.remembered.Done()
		for e.awaitStarved() {
			e.rememberTable(c)
		}
	})
	return nil
}

func (e *Engine) rememberTable(c *conntrack.Table) {
	if err := c.RememberTable(); err != nil {
		e.log.Warn("cannot read which connections are unreplied; a full table does not evict them", "error", err)
	}
}

// awaitStarved waits until a full table has too few entries to evict, at least rememberInterval.
// It returns false if the engine ends.
func (e *Engine) awaitStarved() bool {
	select {
	case <-e.ended:
		return false
	case <-time.After(rememberInterval):
	}
	select {
	case <-e.ended:
		return false
	case <-e.unanswered.Starved():
		return true
	}
}
