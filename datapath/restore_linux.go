package datapath

import (
	"fmt"
	"net/netip"
	"time"

	ct "github.com/ti-mo/conntrack"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// restoreAffinity restores clients' bindings from the connections of an earlier run. A binding
// starts with the connection if the kernel records time stamps
// (net.netfilter.nf_conntrack_timestamp), and now if it does not: the client then stays bound a
// little longer.
func restoreAffinity(to *affinity.Table, table *decision.Table) error {
	wanted := false
	for _, s := range table.Services() {
		wanted = wanted || s.AffinitySeconds > 0
	}
	if !wanted {
		return nil
	}
	conn, err := ct.Dial(nil)
	if err != nil {
		return fmt.Errorf("restore session affinity: %w", err)
	}
	defer conn.Close()
	// A connection that is created or removed during the dump may be missing: no harm.
	flows, err := conn.DumpFilter(ct.NewFilter().Mark(conntrack.DefaultMark).MarkMask(conntrack.DefaultMark), nil)
	if err != nil {
		return fmt.Errorf("restore session affinity: %w", err)
	}
	now := time.Now()
	for i := range flows {
		f := &flows[i]
		o, r := &f.TupleOrig, &f.TupleReply
		p := decision.Packet{
			Protocol:    decision.Protocol(o.Proto.Protocol),
			Source:      netip.AddrPortFrom(o.IP.SourceAddress, o.Proto.SourcePort),
			Destination: netip.AddrPortFrom(o.IP.DestinationAddress, o.Proto.DestinationPort),
		}
		began := f.Timestamp.Start
		if began.IsZero() {
			began = now
		}
		for _, s := range table.Candidates(&p) {
			if s.AffinitySeconds > 0 {
				to.BindAt(s, netip.AddrPortFrom(r.IP.SourceAddress, r.Proto.SourcePort), p.Source.Addr(), began)
			}
		}
	}
	to.Retain(table, nil)
	return nil
}
