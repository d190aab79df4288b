package top

import (
	"context"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/nfqproxy/nfqproxy/control/observe"
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

// stream is the stream of flows for a view. Its buffer is small: the sender reports the records
// that did not fit as missed.
type stream struct {
	view  *flowsView
	items chan observe.Item
	end   chan error
	stop  context.CancelFunc
	idle  bool           // not read: paused
	kept  []observe.Item // that came when it was
}

// streamMsg are the items that waited, or the end.
type streamMsg struct {
	from  *stream
	items []observe.Item
	ended bool
	err   error
}

const waiting = 256

// keepStream makes a stream for the list of flows that is open, if it has none, and reads on.
func (m *Model) keepStream() tea.Cmd {
	var v *flowsView
	for _, p := range m.pages {
		if f, ok := p.view.(*flowsView); ok {
			v = f
		}
	}
	if v == nil {
		return nil
	}
	if m.stream != nil && m.stream.view == v {
		if !m.stream.idle {
			return nil
		}
		m.stream.idle = false
		m.stream.show(m.stream.kept)
		m.stream.kept = nil
		return m.read(m.stream)
	}
	m.endStream()
	ctx, stop := context.WithCancel(m.ctx)
	s := &stream{view: v, items: make(chan observe.Item, waiting), end: make(chan error, 1), stop: stop}
	m.stream = s
	q := observe.FlowQuery{Follow: true, Service: v.service, Endpoint: v.endpoint, Limit: "100"}
	go func() {
		defer close(s.items)
		s.end <- m.observer.Flows(ctx, q, func(item observe.Item) error {
			select {
			case s.items <- item:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	return m.read(s)
}

func (m *Model) endStream() {
	if m.stream != nil {
		m.stream.stop()
		m.stream = nil
	}
}

// readStream is Model.read.
func readStream(s *stream) tea.Cmd { return s.read }

// read waits for an item, and takes what there is.
func (s *stream) read() tea.Msg {
	item, open := <-s.items
	if !open {
		return streamMsg{from: s, ended: true, err: <-s.end}
	}
	msg := streamMsg{from: s, items: []observe.Item{item}}
	for len(msg.items) < waiting {
		select {
		case item, open := <-s.items:
			if !open { // reported by the next read
				return msg
			}
			msg.items = append(msg.items, item)
		default:
			return msg
		}
	}
	return msg
}

// takeFlows shows what came, and reads on.
func (m *Model) takeFlows(msg streamMsg) tea.Cmd {
	if msg.from != m.stream {
		return nil // of a list that was left
	}
	if msg.ended {
		m.endStream()
		m.note(msg.err)
		return nil // tried again with the next tick
	}
	if m.paused {
		m.stream.idle, m.stream.kept = true, msg.items
		return nil
	}
	m.stream.show(msg.items)
	return m.read(m.stream)
}

func (s *stream) show(items []observe.Item) {
	for _, item := range items {
		switch {
		case item.Record != nil:
			s.view.take(item.Record)
		case item.Missed != nil && item.Missed.IsLoss():
			s.view.missed += item.Missed.Missed
		}
	}
}

// storyView shows the details of one flow.
type storyView struct {
	id     string
	record *flow.Record // nil: not known yet
	err    error
}

type storyMsg struct {
	id     string
	record *flow.Record
	err    error
}

func (v *storyView) name() string { return "flow " + v.id }

func (v *storyView) take(msg storyMsg) {
	v.err = msg.err
	if msg.err == nil {
		v.record = msg.record
	}
}

// mayChange reports whether the flow may still change.
func (v *storyView) mayChange() bool {
	return v.record == nil || v.record.Life != nil && !v.record.Life.Over
}

func (m *Model) fetchStory(v *storyView) tea.Cmd {
	return func() tea.Msg {
		ctx, stop := context.WithTimeout(m.ctx, requestTimeout)
		defer stop()
		r, err := m.observer.Flow(ctx, v.id)
		return storyMsg{v.id, r, err}
	}
}

func (v *storyView) content(m *Model, _ *page) content {
	c := content{empty: "Waiting for the response."}
	if v.err != nil {
		c.empty = ""
		c.above = []cell{{v.err.Error(), text.Red}}
	}
	if v.record == nil {
		return c
	}
	text := text.Story(v.record, text.Options{Style: m.options.Style, Zone: m.options.Zone, Now: m.options.Now})
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		for _, part := range wrapHanging(line, m.width) {
			c.rows = append(c.rows, row{text: part})
		}
	}
	return c
}

// wrapHanging wraps a line that is too long; what goes on is indented more than its start. Its
// colours are lost then, as they would have to be begun anew.
func wrapHanging(line string, width int) []string {
	if ansi.StringWidth(line) <= width {
		return []string{line}
	}
	line = ansi.Strip(line)
	indent := min(len(line)-len(strings.TrimLeft(line, " "))+4, width/2)
	first, _, _ := strings.Cut(ansi.Wrap(line, width, ""), "\n")
	rest := strings.TrimLeft(line[len(first):], " ")
	lines := []string{first}
	for part := range strings.SplitSeq(ansi.Wrap(rest, max(1, width-indent), ""), "\n") {
		lines = append(lines, strings.Repeat(" ", indent)+strings.TrimRight(part, " "))
	}
	return lines
}

func (v *storyView) enter(*Model, string) view { return nil }
