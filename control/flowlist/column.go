package flowlist

import (
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// columnsFor are the columns of tables.
func columnsFor(o Options, wide bool) []column {
	// plain makes a column without colours.
	plain := func(name string, least int, value func(*flow.Record) string) column {
		return column{name, least, func(r *flow.Record) cell { return cell{text: value(r)} }}
	}
	columns := []column{{"TIME", 12, func(r *flow.Record) cell {
		return cell{moment(EventTime(r), o.zone(), o.now()), flow.Dim}
	}}}
	if o.Follow {
		columns = append(columns, column{"EVENT", 11, func(r *flow.Record) cell {
			return cell{string(r.Event), StateColor(r.Event)}
		}})
	}
	columns = append(columns,
		plain("PROTO", 5, func(r *flow.Record) string { return r.Protocol }),
		plain("SOURCE", 24, Source),
		plain("DESTINATION", 24, Destination),
		column{"ENDPOINT", 24, endpoint},
		column{"STATE", 11, func(r *flow.Record) cell {
			s := State(r)
			return cell{string(s), StateColor(s)}
		}},
		plain("DURATION", 8, func(r *flow.Record) string { return duration(r, o) }),
		plain("SENT", 6, func(r *flow.Record) string { return bytes(r, func(l *flow.Life) *flow.Count { return l.Sent }) }),
		plain("RECEIVED", 8, func(r *flow.Record) string { return bytes(r, func(l *flow.Life) *flow.Count { return l.Received }) }),
	)
	if !wide {
		return columns
	}
	return append(columns,
		plain("NODE", 12, func(r *flow.Record) string { return r.Node }),
		plain("ASKED-BY", 19, func(r *flow.Record) string { return r.Source }),
		plain("ASKED-FOR", 19, func(r *flow.Record) string { return r.Destination }),
		plain("SENT-TO", 19, func(r *flow.Record) string { return r.Endpoint }),
		plain("SEEN-FROM", 19, seenSource),
		plain("REASON", 10, func(r *flow.Record) string { return r.Reason }),
		plain("POLICY", 7, func(r *flow.Record) string { return r.Policy }),
		plain("MASQUERADE", 10, func(r *flow.Record) string {
			if !r.Masquerade {
				return ""
			}
			return r.MasqueradeReason
		}),
		plain("STAGES", 24, stages),
		plain("ID", 16, func(r *flow.Record) string { return r.ID }),
	)
}

// Source names who asked: the pod, the machine or the node where one is known, else the
// address; with the port.
func Source(r *flow.Record) string {
	name := r.SourceNode
	switch {
	case r.SourcePod != "":
		name = r.SourcePod
	case r.SourceHost != "":
		name = r.SourceHost
	}
	i := strings.LastIndexByte(r.Source, ':')
	if name == "" || i < 0 {
		return r.Source
	}
	return name + r.Source[i:]
}

// Destination names what was asked for: the service where it is one, else the address.
func Destination(r *flow.Record) string {
	if r.Service != "" {
		return r.Service
	}
	return r.Destination
}

// Endpoint names who got it: the pod where one is known, else the address; or says why
// nobody did.
func Endpoint(r *flow.Record) string { return endpoint(r).text }

func endpoint(r *flow.Record) cell {
	switch r.Verdict {
	case decision.DNAT.String():
		if r.Conntrack == "failed" {
			return cell{"failed: " + r.Error, flow.Red}
		}
		if r.Pod != "" {
			return cell{r.Pod, flow.Green}
		}
		return cell{r.Endpoint, flow.Green}
	case decision.Accept.String():
		return cell{"-", flow.Dim}
	}
	return cell{r.Verdict + ": " + strings.ReplaceAll(r.Reason, "-", " "), flow.Red}
}

// State is the flow's state, or what its verdict says of it where no life is known; empty for
// what is for no service.
func State(r *flow.Record) flow.State {
	if r.Life != nil {
		return r.Life.State
	}
	switch {
	case r.Conntrack == "failed":
		return flow.Failed
	case r.Verdict == decision.Reject.String():
		return flow.Rejected
	case r.Verdict == decision.Drop.String():
		return flow.Dropped
	case r.Verdict == decision.DNAT.String():
		return flow.Decided
	}
	return ""
}

// EventTime is when what the record is about happened; nil: it is not known.
func EventTime(r *flow.Record) *time.Time {
	l := r.Life
	switch {
	case l == nil || r.Event == "":
	case r.Event == l.State:
		return &l.Since
	case r.Event == flow.Gone && l.CountedAt != nil: // its counts are those of the end
		return l.CountedAt
	}
	return r.Time
}

// moment tells a time of today without the day.
func moment(t *time.Time, zone *time.Location, now time.Time) string {
	if t == nil {
		return ""
	}
	at, now := t.In(zone), now.In(zone)
	if at.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return at.Format("15:04:05.000")
	}
	return at.Format("2006-01-02 15:04:05.000")
}

// duration is how long it lived; of one that lives, until now or until the event.
func duration(r *flow.Record, o Options) string {
	l := r.Life
	if l == nil {
		return ""
	}
	switch l.State {
	case flow.Rejected, flow.Dropped, flow.Failed:
		return ""
	case flow.Decided, flow.Answered, flow.Established, flow.Closing, flow.Unanswered:
		if !l.Over && !o.Follow && r.Time != nil {
			return Duration(max(0, o.now().Sub(*r.Time)))
		}
	}
	return Duration(Seconds(l.Duration))
}

func bytes(r *flow.Record, way func(*flow.Life) *flow.Count) string {
	if r.Life == nil {
		return ""
	}
	count := way(r.Life)
	if count == nil {
		return ""
	}
	return Bytes(count.Bytes)
}

func seenSource(r *flow.Record) string {
	if r.Life == nil {
		return ""
	}
	return r.Life.SeenSource
}

// stages tells how long the packet waited, then until it was decided, written and accepted.
func stages(r *flow.Record) string {
	s := r.Stages
	if s == nil {
		return ""
	}
	waited := "?"
	if s.Waited != nil {
		waited = Duration(Seconds(*s.Waited))
	}
	for _, more := range []float64{s.Decided, s.Written, s.Accepted} {
		waited += "+" + Duration(Seconds(more))
	}
	return waited
}
