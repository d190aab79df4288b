package text

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/nodepath"
	"github.com/nfqproxy/nfqproxy/datapath/flow/vocabulary"
)

// pathWidth is the width of the drawing of a path, in columns.
const pathWidth = 80

// pathOf returns the hops of a record, if there is more to show than its own node: records of
// others, or nodes without a record where o.Observed explains them.
func pathOf(r *flow.Record, o Options) []nodepath.Hop {
	path := nodepath.Of(r)
	if len(path) < 2 || len(r.Others) == 0 && o.Observed == nil {
		return nil
	}
	return path
}

// drawing writes the way of a packet through several nodes, and the path of the reply.
type drawing struct {
	strings.Builder
	o Options
}

// pathDrawing renders a connection on all its nodes: the addresses on each segment, each node's decision,
// and the reply path. It ends with a newline.
func pathDrawing(r *flow.Record, path []nodepath.Hop, o Options) string {
	d := &drawing{o: o}
	middle := nodepath.Decider(r)
	first := middle
	for _, hop := range slices.Backward(path) {
		if hop.Record != nil {
			first = hop.Record
		}
	}
	var nodes []string
	for _, hop := range path {
		nodes = append(nodes, hop.Node)
	}
	fmt.Fprintf(d, "%s %s -> %s\n", r.Protocol, first.Source, first.Destination)
	d.text("", "through ", strings.Join(nodes, ", then "))
	fmt.Fprintf(d, "\n  %s\n", d.o.Style.Paint(Bold, owner(first)))
	var before *flow.Record
	for i, hop := range path {
		switch {
		case before != nil:
			source, destination := addressesAfter(before)
			d.segment(source, destination, before)
		case hop.Record != nil:
			d.segment(hop.Record.Source, hop.Record.Destination, nil)
		case i == 0:
			d.WriteString("    ┆\n")
		}
		if before = hop.Record; before != nil {
			d.node(before, first)
		} else {
			d.gap(hop.Node)
		}
	}
	d.end(path, middle)
	if middle.Endpoint != "" && !nodepath.EndsHere(middle) {
		d.reply(middle)
	}
	return d.String()
}

// owner is the name of the source, else its address.
func owner(r *flow.Record) string {
	name := Source(r)
	return name[:strings.LastIndexByte(name, ':')]
}

// addressesAfter are the addresses of the packet after a node. A port that the kernel selects and has not
// reported is a question mark.
func addressesAfter(r *flow.Record) (source, destination string) {
	source, destination, known := nodepath.Outgoing(r)
	if !known {
		source = "an address of " + r.Node
		if a := r.MasqueradeAddress; strings.Contains(a, ":") {
			source = "[" + a + "]:?"
		} else if a != "" {
			source = a + ":?"
		}
	}
	return source, destination
}

// text writes a line after a margin, wrapped below its start: each further line starts with the margin.
func (d *drawing) text(margin, start, text string) {
	indent := strings.Repeat(" ", ansi.StringWidth(start))
	room := max(20, pathWidth-ansi.StringWidth(margin)-len(indent))
	for i, line := range strings.Split(ansi.Wrap(text, room, " "), "\n") {
		if i > 0 {
			start = indent
		}
		d.WriteString(strings.TrimRight(margin+start+line, " ") + "\n")
	}
}

// segment draws the packet between two nodes; after is the node before it, nil: not known, or none.
func (d *drawing) segment(source, destination string, after *flow.Record) {
	mark := ""
	if after != nil {
		var changed []string
		if destination != after.Destination {
			changed = append(changed, "destination")
			destination = d.o.Style.Paint(Green, destination)
		}
		if source != after.Source {
			changed = append(changed, "source")
			source = d.o.Style.Paint(Yellow, source)
		}
		if len(changed) > 0 {
			mark = strings.Join(changed, " and ") + " translated"
		}
	}
	const margin = "    │  "
	packet := source + " -> " + destination
	if mark != "" && ansi.StringWidth(margin+packet+mark)+4 <= pathWidth {
		packet, mark = packet+"  ("+mark+")", ""
	}
	d.text(margin, "", packet)
	if mark != "" {
		d.text(margin, "", "("+mark+")")
	}
}

// node draws a node with its decision.
func (d *drawing) node(r, first *flow.Record) {
	about := ""
	if r.Time != nil && first.Time != nil {
		about = ", " + since(r.Time.Sub(*first.Time))
		if r == first {
			about = ", " + Clock(r.Time.In(d.o.zone()))
		}
	}
	if r.ID != "" {
		about += ", flow " + r.ID
	}
	fmt.Fprintf(d, "  ┌─▼─ %s%s\n", d.o.Style.Paint(Bold, r.Node), about)
	for _, l := range d.o.Style.decision(r) {
		d.text("  │ ", fmt.Sprintf("%-8s ", l.name), l.text)
	}
	d.WriteString("  └─┬─\n")
}

// gap draws a node without a record. Its packets are not known, and so are no addresses after it.
func (d *drawing) gap(node string) {
	fmt.Fprintf(d, "  ┌┄▼┄ %s\n", d.o.Style.Paint(Bold, node))
	d.text("  ┆ ", "", words.Gaps.Of(d.o.gap(node)))
	d.WriteString("  └┄┬┄\n    ┆\n")
}

// gap is the reason why a node has no record.
func (o Options) gap(node string) string {
	if o.Observed != nil && !o.Observed[node] {
		return nodepath.GapUnobserved
	}
	return nodepath.GapNoRecord
}

// end draws where the packet goes after its last node.
func (d *drawing) end(path []nodepath.Hop, middle *flow.Record) {
	last := path[len(path)-1].Record
	switch {
	case last != nil && nodepath.EndsHere(last):
		text := flow.Failed.String()
		if last.Conntrack != "failed" {
			text = words.Verdicts[slices.IndexFunc(words.Verdicts, func(w vocabulary.VerdictWord) bool { return w.Code == last.Verdict })].Text
		}
		fmt.Fprintf(d, "    ✗  %s\n", d.o.Style.Paint(Red, text))
		return
	case last != nil:
		source, destination := addressesAfter(last)
		d.segment(source, destination, last)
	}
	d.WriteString("    ▼\n")
	target := middle.Destination
	if middle.Endpoint != "" {
		target = cmp.Or(middle.Pod, middle.Endpoint)
	}
	if middle.EndpointNode != "" {
		target += ", on " + middle.EndpointNode
	}
	fmt.Fprintf(d, "  %s\n", d.o.Style.Paint(Bold, target))
}

// reply writes the path of the reply through the node that translates it back, and the state there.
func (d *drawing) reply(r *flow.Record) {
	var steps []string
	source, endpoint := addressesAfter(r)
	verb := "replies to"
	switch l := r.Life; {
	case l != nil && l.State == flow.Refused:
		verb = "refuses the connection of"
	case l != nil && !l.Answered && (l.State == flow.Unanswered || l.Over):
		steps = []string{"no reply"}
	case l != nil && !l.Answered:
		steps = []string{"no reply yet"}
	}
	if steps == nil {
		steps = []string{
			fmt.Sprintf("the endpoint %s the source that it saw: %s -> %s", verb, endpoint, source),
			fmt.Sprintf("%s: connection tracking finds the flow's entry; no nat rule is evaluated", r.Node),
		}
		if source != r.Source {
			steps = append(steps, fmt.Sprintf("un-SNAT: the destination becomes %s again", r.Source))
		}
		steps = append(steps, fmt.Sprintf("un-DNAT: the source becomes %s again", r.Destination))
	}
	state := ""
	if r.Life != nil {
		state = " (state " + d.o.Style.Paint(StateColor(r.Life.State), r.Life.State.String()) + ")"
	}
	fmt.Fprintf(d, "\n  reply path%s\n", state)
	for i, step := range steps {
		d.text("  ", fmt.Sprintf("%d. ", i+1), step)
	}
}
