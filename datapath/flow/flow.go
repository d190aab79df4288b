package flow

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Flow is a decided flow, as a datapath worker reports it: values that are copied without
// garbage. It is converted to text only when a reader needs it.
type Flow struct {
	Packet   decision.Packet
	Decision decision.Decision
	// Table is the service table of the decision. Code that keeps many flows must not keep
	// their tables: see [Flow.Node].
	Table *decision.Table
	// Node is the table's node; TableAge is the table's age at Time.
	Node     *decision.Node
	TableAge time.Duration
	Queue    uint16    // 0 if the daemon did not decide
	Time     time.Time // of the decision; for a held flow, of its release

	// Waited, Deciding, Writing and Accepting are the [Stages]; Waited is negative if unknown.
	Waited, Deciding, Writing, Accepting time.Duration

	// Outcome is the outcome for the conntrack entry; valid iff the verdict is DNAT.
	Outcome conntrack.Outcome
	// Proxy is the service proxy that decided the flow; empty: nfqproxy.
	Proxy string
	// Outdated is how long before Time the endpoint had been removed, or had stopped getting new flows; 0: it had not, as far
	// as is known. Only with reason ByProxy.
	Outdated time.Duration
	// Existing is the endpoint of the existing conntrack entry, ExistingMasqueraded whether its source is translated;
	// valid iff Outcome is Kept; Existing also with reason UnknownEndpoint.
	Existing            netip.AddrPort
	ExistingMasqueraded bool
	// SourceAddr is the requested source address after translation; invalid: no translation.
	SourceAddr netip.Addr
	// HostRule is the host's own rule that translates the source; nil: none.
	HostRule fmt.Stringer
	Err      error // why Outcome is Failed
	Held     *Hold // nil: it was not held
	// Earlier are the flow's earlier endpoints, in order; nil: none.
	Earlier []Attempt
	// Shadows are the selections that other algorithms would have made; nil: no shadow algorithms.
	Shadows []ShadowPick
}

// ShadowPick is the selection that another algorithm would have made.
type ShadowPick struct {
	Algorithm string
	// Pick has the endpoint's position in ServicePort.Usable of the flow's policy.
	Pick decision.Pick
}

// TupleOf is the connection tuple of a flow's first packet, before its translation.
func TupleOf(p *decision.Packet) conntrack.Tuple {
	return conntrack.Tuple{Source: p.Source, Destination: p.Destination, Protocol: uint8(p.Protocol)}
}

// Entry reports whether the flow has a conntrack entry created by nfqproxy.
func (d *Flow) Entry() bool {
	return d.Decision.Verdict == decision.DNAT && d.Outcome != conntrack.Failed
}

// Endpoint returns the flow's endpoint; invalid: it has none.
func (d *Flow) Endpoint() netip.AddrPort {
	switch {
	case d.Decision.Verdict != decision.DNAT:
		return netip.AddrPort{}
	case d.Outcome == conntrack.Kept, !d.Decision.HasEndpoint():
		return d.Existing
	}
	return d.Decision.Endpoint()
}

// Record converts the flow to a record, without steps and without names other than those of its endpoint. The record
// does not refer to the flow, whose memory may be reused.
func (d *Flow) Record() *Record {
	r := newRecord(d.Node.Name, &d.Packet, &d.Decision)
	r.Time, r.TableAge, r.Held, r.Earlier = new(d.Time), d.TableAge.Seconds(), d.Held, d.Earlier
	r.Proxy, r.Outdated = d.Proxy, d.Outdated.Seconds()
	if !d.Decision.Reason.Observed() {
		r.Queue = new(d.Queue)
		r.Stages = &Stages{Decided: d.Deciding.Seconds(), Written: d.Writing.Seconds(), Accepted: d.Accepting.Seconds()}
		if d.Waited >= 0 {
			r.Stages.Waited = new(d.Waited.Seconds())
		}
	}
	if d.Decision.Verdict != decision.DNAT {
		return r
	}
	if !d.Decision.HasEndpoint() {
		r.Endpoint = d.Existing.String()
	}
	r.addShadows(&d.Decision, d.Shadows)
	if d.HostRule != nil {
		r.SetHostMasquerade(d.HostRule.String())
	}
	if d.Proxy == "" {
		r.Conntrack = d.Outcome.String()
	}
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
