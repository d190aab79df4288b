package text

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/vocabulary"
	"github.com/nfqproxy/nfqproxy/datapath/paper/unit"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// StateColor is the colour of a state or an event; empty: it has none.
func StateColor(e flow.Event) Color {
	switch w := vocabulary.StateOf(e); {
	case w.IsError():
		return Red
	case w.Tone == vocabulary.Notable:
		return Yellow
	case w.Tone == vocabulary.Neutral, w.Ended:
		return Dim
	case w.Tone == vocabulary.Good:
		return Green
	}
	return ""
}

// EventTime is the time of a record's event; nil: unknown.
func EventTime(r *flow.Record) *time.Time {
	l := r.Life
	switch {
	case l == nil || r.Event == 0:
	case r.Event == l.State:
		return &l.Since
	case r.Event == flow.Gone && l.CountedAt != nil: // its counts are those of the end
		return l.CountedAt
	}
	return r.Time
}

// Story renders one flow: its decision with the reasons, and its life cycle. If several nodes decided the connection, it begins with the
// way through all of them. It ends with a newline.
func Story(r *flow.Record, o Options) string {
	var b strings.Builder
	if path := pathOf(r, o); path != nil {
		b.WriteString(pathDrawing(r, path, o))
		fmt.Fprintf(&b, "\n  on node %s\n", r.Node)
		o.Style.detail(&b, r, cmp.Or(o.Walk, WalkWords))
	} else {
		b.WriteString(o.Style.Explain(r, cmp.Or(o.Walk, WalkWords)))
	}
	b.WriteString("\n")
	if r.ID != "" {
		labeled(&b, storyLabel, "id", r.ID)
	}
	if r.Time != nil {
		labeled(&b, storyLabel, "decided", r.Time.In(o.zone()).Format(dayTime+" MST"))
	}
	if r.Stages != nil {
		labeled(&b, storyLabel, "stages", stagesInWords(r))
	}
	if h := r.Held; h != nil {
		labeled(&b, storyLabel, "held", fmt.Sprintf("for %s, then %s (hold %s)", unit.Seconds(h.Seconds), h.Action, h.ID))
	}
	if o.DroppedBy != "" {
		labeled(&b, storyLabel, "dropped", o.DroppedBy)
	}
	if l := r.Life; l != nil {
		lifeCycle(&b, r, o)
	}
	return b.String()
}

// stagesInWords lists the latency of the packet by stage. A packet without an entry waits for those of its batch.
func stagesInWords(r *flow.Record) string {
	var list []string
	s, written := r.Stages, "entry written in"
	if r.Conntrack == "" {
		written = "entries of its batch written in"
	}
	add := func(what string, seconds float64) {
		if seconds > 0 {
			list = append(list, what+" "+unit.Seconds(seconds))
		}
	}
	if s.Waited != nil {
		add("waited for", *s.Waited)
	}
	add("decided in", s.Decided)
	add(written, s.Written)
	add("verdict in", s.Accepted)
	return strings.Join(list, ", ")
}

// lifeCycle renders the life cycle of a flow: lines, then the timeline.
func lifeCycle(b *strings.Builder, r *flow.Record, o Options) {
	l := r.Life
	state := o.Style.Paint(StateColor(l.State), l.State.String())
	if about := vocabulary.StateOf(l.State).Text; about != "" {
		state += ": " + about
	}
	if l.KernelState != "" {
		state += " (" + l.KernelState + ")"
	}
	labeled(b, storyLabel, "state", state)
	if l.SeenSource != "" {
		labeled(b, storyLabel, "seen", "by the endpoint as "+l.SeenSource)
	}
	if l.Sent != nil && l.Received != nil {
		until := ""
		if !l.Over && l.CountedAt != nil {
			until = ", counted at " + Clock(l.CountedAt.In(o.zone()))
		}
		labeled(b, storyLabel, "sent", traffic(l.Sent)+until)
		labeled(b, storyLabel, "received", traffic(l.Received))
	}
	if l.Repeated > 0 {
		labeled(b, storyLabel, "repeated", quantity.Count(l.Repeated, "retransmission")+" of the first packet")
	}
	if l.Incomplete {
		labeled(b, storyLabel, "note", "conntrack events were lost or not requested: states may be missing")
	}
	b.WriteString(timeline(r, o.Style, "  "))
}

// timeline renders the history of a flow, with times since the decision. Each line
// starts with indent and ends with a newline; it is empty without a known history.
func timeline(r *flow.Record, s Style, indent string) string {
	if r.Life == nil || len(r.Life.History) == 0 {
		return ""
	}
	start := r.Life.History[0].Time
	if r.Time != nil {
		start = *r.Time
	}
	var b strings.Builder
	b.WriteString("\n")
	for _, m := range r.Life.History {
		fmt.Fprintf(&b, "%s%8s  %s\n", indent, since(m.Time.Sub(start)), s.Paint(StateColor(m.Event), m.Event.String()))
	}
	return b.String()
}

// since formats a time relative to the decision. By the kernel's clock an event may be slightly
// earlier.
func since(d time.Duration) string {
	switch {
	case d == 0:
		return "0"
	case d < 0:
		return unit.Duration(d)
	}
	return "+" + unit.Duration(d)
}

// traffic is the number of packets and their size.
func traffic(c *flow.Count) string {
	return quantity.Count(c.Packets, "packet") + ", " + unit.Bytes(c.Bytes)
}
