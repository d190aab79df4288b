package top

import (
	"context"

	tea "charm.land/bubbletea/v2"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

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
