package flowtext

import (
	"fmt"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// StateColor is the colour of a state or an event; empty: it has none.
func StateColor(e flow.Event) Color {
	switch tone := e.Tone(); {
	case tone == flow.Bad:
		return Red
	case tone == flow.Notable:
		return Yellow
	case tone == flow.Neutral, e.Ended():
		return Dim
	case tone == flow.Good:
		return Green
	}
	return ""
}

// Story renders one flow: its decision with the reasons, and its life cycle. rules adds the
// rules as iptables-save prints them. If several nodes decided the connection, it begins with the
// way through all of them. It ends with a newline.
func Story(r *flow.Record, o Options, rules bool) string {
	var b strings.Builder
	if path := pathOf(r, o); path != nil {
		b.WriteString(way(r, path, o))
		fmt.Fprintf(&b, "\n  on node %s\n", r.Node)
		o.Style.detail(&b, r, rules)
	} else {
		b.WriteString(o.Style.Story(r, rules))
	}
	b.WriteString("\n")
	if r.ID != "" {
		line(&b, "id", "%s", r.ID)
	}
	if r.Time != nil {
		line(&b, "decided", "%s", r.Time.In(o.zone()).Format("2006-01-02 15:04:05.000 MST"))
	}
	if r.Stages != nil {
		line(&b, "stages", "%s", stagesInWords(r.Stages))
	}
	if h := r.Held; h != nil {
		line(&b, "held", "for %s, then %s (hold %s)", Duration(Seconds(h.Seconds)), h.Action, h.ID)
	}
	if o.DroppedBy != "" {
		line(&b, "dropped", "%s", o.DroppedBy)
	}
	if l := r.Life; l != nil {
		life(&b, r, o)
	}
	return b.String()
}

// stagesInWords lists the latency of the packet by stage.
func stagesInWords(s *flow.Stages) string {
	var list []string
	add := func(what string, seconds float64) {
		if seconds > 0 {
			list = append(list, what+" "+Duration(Seconds(seconds)))
		}
	}
	if s.Waited != nil {
		add("waited for", *s.Waited)
	}
	add("decided in", s.Decided)
	add("entry written in", s.Written)
	add("accepted in", s.Accepted)
	return strings.Join(list, ", ")
}

// life renders the life cycle of a flow: lines, then the timeline.
func life(b *strings.Builder, r *flow.Record, o Options) {
	l := r.Life
	state := o.Style.Paint(StateColor(l.State), l.State.String())
	if about := l.State.Words(); about != "" {
		state += ": " + about
	}
	if l.KernelState != "" {
		state += " (" + l.KernelState + ")"
	}
	line(b, "state", "%s", state)
	if l.SeenSource != "" {
		line(b, "seen", "by the endpoint as %s", l.SeenSource)
	}
	if l.Sent != nil && l.Received != nil {
		until := ""
		if !l.Over && l.CountedAt != nil {
			until = ", counted at " + l.CountedAt.In(o.zone()).Format("15:04:05.000")
		}
		line(b, "sent", "%s%s", count(l.Sent), until)
		line(b, "received", "%s", count(l.Received))
	}
	if l.Repeated > 0 {
		line(b, "repeated", "%s", times(l.Repeated))
	}
	if l.Incomplete {
		line(b, "note", "conntrack events were lost or not requested: states may be missing")
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
		return Duration(d)
	}
	return "+" + Duration(d)
}

func count(c *flow.Count) string {
	packets := "packets"
	if c.Packets == 1 {
		packets = "packet"
	}
	return fmt.Sprintf("%d %s, %s", c.Packets, packets, Bytes(c.Bytes))
}

func times(n uint32) string {
	if n == 1 {
		return "1 retransmission of the first packet"
	}
	return fmt.Sprintf("%d retransmissions of the first packet", n)
}
