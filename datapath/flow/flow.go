package flow

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Flow is a flow that was decided on the datapath, as the worker tells of it: values
// that are copied without garbage. Text is made of it when somebody wants to read it.
type Flow struct {
	Packet   decision.Packet
	Decision decision.Decision
	// Table is the one it was decided by. Who keeps many flows should not keep their
	// tables: see [Flow.Node].
	Table *decision.Table
	// Node and TableAge are the table's node, and its age at Time.
	Node     *decision.Node
	TableAge time.Duration
	Queue    uint16
	Time     time.Time // when it was decided; if it was held, when it went on

	// Waited, Deciding, Writing and Accepting are the [Stages]; Waited is negative if it is
	// not known.
	Waited, Deciding, Writing, Accepting time.Duration

	// Outcome is what became of the connection entry; valid iff the verdict is DNAT.
	Outcome conntrack.Outcome
	// Existing and ExistingMasqueraded are where the kernel's entry leads, and whether its
	// source is translated; valid iff Outcome is Kept.
	Existing            netip.AddrPort
	ExistingMasqueraded bool
	// SourceAddr is the source address asked for; invalid: it stays.
	SourceAddr netip.Addr
	// HostRule is the host's own rule that has the source translated; nil: none does.
	HostRule fmt.Stringer
	Err      error // why Outcome is Failed
	Held     *Hold // nil: nobody held it
}

// Entry says whether the flow has a connection entry of ours.
func (d *Flow) Entry() bool {
	return d.Decision.Verdict == decision.DNAT && d.Outcome != conntrack.Failed
}

// Endpoint is where the flow goes; invalid: to none.
func (d *Flow) Endpoint() netip.AddrPort {
	switch {
	case d.Decision.Verdict != decision.DNAT:
		return netip.AddrPort{}
	case d.Outcome == conntrack.Kept:
		return d.Existing
	}
	return d.Decision.Endpoint()
}

// Record makes the record of it, without steps and without names but those of its endpoint.
// The record keeps nothing of the flow, whose memory may be used again.
func (d *Flow) Record() *Record {
	r, at, queue := newRecord(d.Node.Name, &d.Packet, &d.Decision), d.Time, d.Queue
	r.Time, r.Queue, r.TableAge, r.Held = &at, &queue, d.TableAge.Seconds(), d.Held
	r.Stages = &Stages{Decided: d.Deciding.Seconds(), Written: d.Writing.Seconds(), Accepted: d.Accepting.Seconds()}
	if d.Waited >= 0 {
		waited := d.Waited.Seconds()
		r.Stages.Waited = &waited
	}
	if d.Decision.Verdict != decision.DNAT {
		return r
	}
	if d.HostRule != nil {
		r.SetHostMasquerade(d.HostRule.String())
	}
	r.Conntrack = d.Outcome.String()
	if d.SourceAddr.IsValid() {
		r.MasqueradeAddress = d.SourceAddr.String()
	}
	switch {
	case d.Err != nil:
		r.Error = d.Err.Error()
	case d.Outcome == conntrack.Kept:
		r.SetKept(d.Existing, d.ExistingMasqueraded)
	}
	return r
}
