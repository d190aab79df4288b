package text

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/unit"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// Line renders a record as one line, without a newline at its end:
//
//	12:04:05.123 worker1  TCP 10.244.1.9:41000 -> 10.96.118.136:80  default/my-nginx-service  => 10.244.2.2:80 (2 of 2, draw 0.71)  masq: -
//
// The time is in the local zone of the record's Time.
func (s Style) Line(r *flow.Record) string {
	var b strings.Builder
	if r.Time != nil {
		b.WriteString(Clock(*r.Time) + " ")
	}
	if r.Node != "" || s.NodeWidth > 0 {
		fmt.Fprintf(&b, "%-*s  ", s.NodeWidth, r.Node)
	}
	fmt.Fprintf(&b, "%s %s -> %s  ", r.Protocol, r.Source, r.Destination)
	b.WriteString(s.Outcome(r))
	if r.Service == "" {
		return s.Paint(Dim, b.String())
	}
	return b.String()
}

// Outcome renders the second half of Line: the service, and the endpoint or the verdict.
func (s Style) Outcome(r *flow.Record) string {
	if r.Service == "" && (r.Verdict == decision.Accept.String() || r.Verdict == "") {
		if r.Reason == decision.TranslationUnknown.String() {
			return "translation not known"
		}
		return "not for a service"
	}
	var b strings.Builder
	if r.Service != "" { // by a dump's rules, others than services are dropped, too
		b.WriteString(r.Service + "  ")
	}
	if r.Verdict != decision.DNAT.String() {
		b.WriteString("=> " + s.Paint(Red, r.Verdict) + ": " + strings.ReplaceAll(r.Reason, "-", " "))
		return b.String()
	}
	b.WriteString("=> " + s.Paint(Green, r.Endpoint) + choice(r) + "  masq: " + s.masquerade(r))
	if r.Proxy != "" {
		b.WriteString("  by " + r.Proxy)
	}
	if r.Reason == decision.UnknownEndpoint.String() {
		b.WriteString("  " + s.Paint(Red, "unknown endpoint"))
	}
	if r.Outdated > 0 {
		b.WriteString("  " + s.Paint(Red, "outdated for "+unit.Seconds(r.Outdated)))
	}
	switch r.Conntrack {
	case "kept", "replaced":
		b.WriteString("  " + s.Paint(Dim, r.Conntrack))
	case "failed":
		b.WriteString("  " + s.Paint(Red, "failed: "+r.Error))
	}
	return b.String()
}

// choice describes the selection of the endpoint: " (2 of 3, draw 0.71)", " (2 of 3, p2c: 2 open against 5)".
func choice(r *flow.Record) string {
	position := 0
	for i, c := range r.Candidates {
		if c.Endpoint == r.Endpoint {
			position = i + 1
		}
	}
	if position == 0 { // an earlier decision, and the endpoint has been removed since
		return ""
	}
	text := fmt.Sprintf("%d of %d", position, len(r.Candidates))
	switch {
	case r.Balance != nil && r.Balance.Evidence != "":
		text += fmt.Sprintf(", %s: %s", r.Balance.Algorithm, r.Balance.Evidence)
	case r.Draw != nil:
		text += fmt.Sprintf(", draw %.2f", *r.Draw)
	case len(r.Candidates) == 1:
		text = "the only one"
	}
	for _, a := range r.Earlier {
		text += fmt.Sprintf(", after %s: %s", a.Endpoint, a.Outcome)
	}
	return " (" + text + ")"
}

// candidatesUnknown reports whether it is not known which endpoints there were to select from, as of flows by Hubble.
func candidatesUnknown(r *flow.Record) bool {
	return r.Reason == decision.ByProxy.String() && len(r.Candidates)+len(r.Excluded) == 0
}

// sourceUnknown reports whether it is not known if the source is translated.
func sourceUnknown(r *flow.Record) bool {
	return candidatesUnknown(r) && !r.Masquerade && (r.Life == nil || r.Life.SeenSource == "")
}

func (s Style) masquerade(r *flow.Record) string {
	switch {
	case sourceUnknown(r):
		return "not known"
	case !r.Masquerade:
		return "-"
	}
	text := r.MasqueradeAddress
	if r.MasqueradeReason != "" {
		text = strings.TrimPrefix(text+" ("+r.MasqueradeReason+")", " ")
	}
	return s.Paint(Yellow, cmp.Or(text, "yes"))
}

// Missed is the message that records are missing; of a history, with their time in the zone.
func Missed(m *observe.Missed, zone *time.Location) string {
	at := ""
	if m.From != nil && m.To != nil {
		at = fmt.Sprintf(" from %s to %s", dayAndTime(*m.From, zone), dayAndTime(*m.To, zone))
	}
	switch {
	case m.Why == observe.MissedNotRecorded:
		return m.Node + ": nothing was recorded" + at
	case m.Why == observe.MissedUnreachable && at != "":
		return "node " + m.Node + " was unreachable at times" + at + ": records are missing"
	case m.Why == observe.MissedUnreachable:
		return "node " + m.Node + " is unreachable: no records from it until it answers"
	case m.Why == observe.MissedNoDaemon:
		return "node " + m.Node + " has no daemon: its flows are not recorded"
	}
	why := map[string]string{
		observe.MissedSlow:       "this client was too slow",
		observe.MissedSampled:    "the rate limit of the stream was reached",
		observe.MissedLost:       "buffer overflow on the node",
		observe.MissedNotWritten: "they could not be written to the history",
	}[m.Why]
	node := ""
	if m.Node != "" {
		node = m.Node + ": "
	}
	are := " are"
	if m.Missed == 1 {
		are = " is"
	}
	return node + quantity.Count(m.Missed, "record") + are + " missing" + cmp.Or(at, " here") + ": " + cmp.Or(why, m.Why)
}

// dayAndTime is a time of a history, which may be days ago.
func dayAndTime(at time.Time, zone *time.Location) string {
	return at.In(cmp.Or(zone, time.Local)).Format("2006-01-02 15:04:05")
}
