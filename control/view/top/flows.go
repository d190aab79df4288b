package top

import (
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/unit"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// flowsView lists the recent flows of a service, the newest first.
type flowsView struct {
	service  string // namespace/name:port
	endpoint string // address and port; empty: of all
	records  []*flow.Record
	missed   uint64
}

func (v *flowsView) name() string {
	if v.endpoint != "" {
		return "flows to " + v.endpoint
	}
	return "flows"
}

// maxFlows is the number of flows in a list.
const maxFlows = 500

// take adds a record, or puts it in the place of an older one of the same flow.
func (v *flowsView) take(r *flow.Record) {
	i := slices.IndexFunc(v.records, func(other *flow.Record) bool { return other.ID == r.ID })
	if i >= 0 {
		if before := v.records[i]; r.Steps == nil {
			r.Steps = before.Steps
		}
		v.records[i] = r
		return
	}
	v.records = append([]*flow.Record{r}, v.records[:min(len(v.records), maxFlows-1)]...)
}

var flowColumns = []column{
	{name: "SOURCE"},
	{name: "TIME", least: 12, rank: 1},
	{name: "PROTO", rank: 4},
	{name: "PORT", right: true, least: 5}, // that it was sent to: the service's, or a node port
	{name: "ENDPOINT", least: 14, flexible: true},
	{name: "STATE", least: 11},
	{name: "SENT", right: true, least: 6, rank: 3},
	{name: "RECEIVED", right: true, rank: 2},
	{name: "NODE", rank: 5},
}

func (v *flowsView) content(m *Model, p *page) content {
	c := content{empty: "No flows yet."}
	if m.stream == nil {
		c.empty = "No flows: the stream is disconnected; reconnecting every second."
	}
	if v.missed > 0 {
		c.above = []cell{{quantity.Count(v.missed, "record") + " missed: too many flows.", text.Yellow}}
	}
	var keys []string
	var cells [][]cell
	for _, r := range v.records {
		line := m.flowCells(r)
		var texts []string
		for _, c := range line {
			texts = append(texts, c.text)
		}
		if matches(p.filter, append(texts, r.Source, r.Endpoint, r.ID)...) {
			keys = append(keys, r.ID)
			cells = append(cells, line)
		}
	}
	c.head, c.rows = m.rows(flowColumns, keys, cells)
	return c
}

func (m *Model) flowCells(r *flow.Record) []cell {
	at, sent, received := "", "", ""
	if r.Time != nil {
		at = text.Clock(r.Time.In(m.options.Zone))
	}
	if l := r.Life; l != nil && l.Sent != nil && l.Received != nil {
		sent, received = unit.Bytes(l.Sent.Bytes), unit.Bytes(l.Received.Bytes)
	}
	state := r.State()
	return []cell{
		{text: text.Source(r)}, {at, text.Dim}, {text: r.Protocol}, {text: port(r.Destination)}, {text: text.Endpoint(r)},
		{state.String(), text.StateColor(state)}, {text: sent}, {text: received}, {text: r.Node},
	}
}

// port is that of an address.
func port(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

func (v *flowsView) enter(_ *Model, key string) view {
	if key == "" {
		return nil // a flow without an id cannot be requested
	}
	return &storyView{id: key}
}
