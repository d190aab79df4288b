package text

import (
	"cmp"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/nodepath"
	"github.com/nfqproxy/nfqproxy/datapath/paper/unit"
)

// columnsFor returns the columns of a table.
func columnsFor(o Options, wide bool) []column {
	// plain makes a column without colours.
	plain := func(name string, least int, value func(*flow.Record) string) column {
		return column{name, least, func(r *flow.Record) cell { return cell{text: value(r)} }}
	}
	columns := []column{{"TIME", 12, func(r *flow.Record) cell {
		return cell{formatTime(EventTime(r), o.zone(), o.now()), Dim}
	}}}
	if o.Follow {
		columns = append(columns, column{"EVENT", 11, func(r *flow.Record) cell {
			return cell{r.Event.String(), StateColor(r.Event)}
		}})
	}
	columns = append(columns,
		plain("PROTO", 5, func(r *flow.Record) string { return r.Protocol }),
		plain("SOURCE", 24, Source),
		plain("DESTINATION", 24, Destination),
		column{"ENDPOINT", 24, endpoint},
		column{"STATE", 11, func(r *flow.Record) cell {
			s := r.State()
			return cell{s.String(), StateColor(s)}
		}},
		plain("DURATION", 8, func(r *flow.Record) string { return duration(r, o) }),
		plain("SENT", 6, func(r *flow.Record) string { return bytesOf(r, func(l *flow.Life) *flow.Count { return l.Sent }) }),
		plain("RECEIVED", 8, func(r *flow.Record) string { return bytesOf(r, func(l *flow.Life) *flow.Count { return l.Received }) }),
	)
	if wide || o.Nodes {
		columns = append(columns, plain("NODE", 12, nodes))
	}
	if !wide {
		return columns
	}
	return append(columns,
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

// Source returns the name of the source (a pod, machine or node) or, if it is not known, its
// address; with the port.
func Source(r *flow.Record) string {
	return named(cmp.Or(r.SourcePod, r.SourceHost, r.SourceNode), r.Source)
}

// Destination returns the service, or else the destination address, with the packet's destination
// port. A node port differs from the service's port.
func Destination(r *flow.Record) string { return named(r.Service, r.Destination) }

// nodes are the nodes that decided the flow, in the order of its first packet.
func nodes(r *flow.Record) string {
	var names []string
	for _, hop := range nodepath.Of(r) {
		if hop.Record != nil {
			names = append(names, hop.Node)
		}
	}
	return strings.Join(names, " → ")
}

// named replaces the address by a name, if there is one, and keeps the port.
func named(name, address string) string {
	i := strings.LastIndexByte(address, ':')
	if name == "" || i < 0 {
		return address
	}
	return name + address[i:]
}

// Endpoint returns the endpoint's pod or, if it is not known, its address, with the port. Without
// an endpoint it is the reason.
func Endpoint(r *flow.Record) string { return endpoint(r).text }

func endpoint(r *flow.Record) cell {
	switch r.Verdict {
	case decision.DNAT.String():
		if r.Conntrack == "failed" {
			return cell{"failed: " + r.Error, Red}
		}
		return cell{named(r.Pod, r.Endpoint), Green}
	case decision.Accept.String():
		if r.Reason == decision.TranslationUnknown.String() {
			return cell{"not known", Dim}
		}
		return cell{"-", Dim}
	}
	return cell{r.Verdict + ": " + strings.ReplaceAll(r.Reason, "-", " "), Red}
}

// formatTime formats a time; the date is left out for today.
func formatTime(t *time.Time, zone *time.Location, now time.Time) string {
	if t == nil {
		return ""
	}
	at, now := t.In(zone), now.In(zone)
	if at.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return Clock(at)
	}
	return at.Format(dayTime)
}

// duration is the flow's lifetime; of an open flow, until now or, in a stream or a history, until the event. The kernel keeps the entry
// of a flow that has ended for a while (TIME_WAIT): that is no part of it.
func duration(r *flow.Record, o Options) string {
	l := r.Life
	if l == nil {
		return ""
	}
	switch {
	case l.State.IsDecision() && l.State.Ended(): // it reached no endpoint
		return ""
	case l.Open() && !o.Follow && !o.Recorded && r.Time != nil:
		return unit.Duration(max(0, o.now().Sub(*r.Time)))
	case l.Over && l.State.Ended() && r.Time != nil:
		return unit.Duration(max(0, l.Since.Sub(*r.Time)))
	}
	return unit.Seconds(l.Duration)
}

func bytesOf(r *flow.Record, way func(*flow.Life) *flow.Count) string {
	if r.Life == nil {
		return ""
	}
	count := way(r.Life)
	if count == nil {
		return ""
	}
	return unit.Bytes(count.Bytes)
}

func seenSource(r *flow.Record) string {
	if r.Life == nil {
		return ""
	}
	return r.Life.SeenSource
}

// stages lists the time that the packet waited, then until it was decided, written and accepted.
func stages(r *flow.Record) string {
	s := r.Stages
	if s == nil {
		return ""
	}
	waited := "?"
	if s.Waited != nil {
		waited = unit.Seconds(*s.Waited)
	}
	for _, more := range []float64{s.Decided, s.Written, s.Accepted} {
		waited += "+" + unit.Seconds(more)
	}
	return waited
}
