package hubblesource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/hubbleapi/hubblepb"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// earlier is how much earlier than a query events are read, for what began before.
const earlier = time.Minute

// request asks for events since a time, if it is not zero, else for all that are kept.
func request(since time.Time) *hubblepb.GetFlowsRequest {
	var kinds []*hubblepb.EventTypeFilter
	for _, k := range []int32{eventDrop, eventTrace, eventTraceSock} {
		kinds = append(kinds, &hubblepb.EventTypeFilter{Type: k})
	}
	r := &hubblepb.GetFlowsRequest{Whitelist: []*hubblepb.FlowFilter{{EventType: kinds}}}
	if since.IsZero() {
		r.Number = math.MaxUint64
	} else {
		r.Since = timestamppb.New(since.Add(-earlier))
	}
	return r
}

// Flows lists flows that are made of the events in Hubble's buffer, or follows them. Hubble's lost events are its own, of which
// a flow has several; they count as missed. Following, the records of one connection on several nodes are not joined.
func (s *Source) Flows(ctx context.Context, q observe.FlowQuery, each func(observe.Item) error) error {
	f, err := q.Parse(s.now())
	if err != nil {
		return err
	}
	if f.Follow {
		return s.follow(ctx, f, each)
	}
	t, err := s.read(ctx, f.Since, func(m *observe.Missed) error { return each(observe.Item{Missed: m}) })
	if err != nil {
		return err
	}
	s.advise(t, 1)
	return remote.List(q, f, func(f *observe.Filter, leftOut map[string]uint64, each func(*flow.Record) error) error {
		for _, r := range t.list(f, leftOut) {
			if err := each(r); err != nil {
				return err
			}
		}
		return nil
	}, each)
}

// read reads the events in Hubble's buffer.
func (s *Source) read(ctx context.Context, since time.Time, missed func(*observe.Missed) error) (*tracker, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := newTracker()
	stream, err := s.client.GetFlows(ctx, request(since))
	for err == nil {
		var r *hubblepb.GetFlowsResponse
		if r, err = stream.Recv(); err == nil {
			if m := t.response(r, s.now()); m != nil {
				if err := missed(m); err != nil {
					return nil, err
				}
			}
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, s.explain(ctx, err)
	}
	t.finish(s.now())
	return t, nil
}

// response takes a response, and returns what it says about missing ones.
func (t *tracker) response(r *hubblepb.GetFlowsResponse, now time.Time) *observe.Missed {
	switch x := r.GetResponseTypes().(type) {
	case *hubblepb.GetFlowsResponse_Flow:
		if e, ok := parse(x.Flow); ok {
			e.node = cmp.Or(e.node, nodeName(r.GetNodeName()))
			t.take(&e, now)
		}
	case *hubblepb.GetFlowsResponse_LostEvents:
		m := &observe.Missed{Node: nodeName(r.GetNodeName()), Missed: x.LostEvents.GetNumEventsLost(), Why: observe.MissedLost}
		if x.LostEvents.GetSource() == hubblepb.LostEventSource_HUBBLE_RING_BUFFER {
			m.Why = observe.MissedSlow
		}
		t.lost(m.Node)
		return m
	case *hubblepb.GetFlowsResponse_NodeStatus:
		if s := x.NodeStatus.GetStateChange(); s == hubblepb.NodeState_NODE_UNAVAILABLE || s == hubblepb.NodeState_NODE_ERROR {
			var names []string
			for _, n := range x.NodeStatus.GetNodeNames() {
				t.lost(nodeName(n))
				names = append(names, nodeName(n))
			}
			return &observe.Missed{Node: strings.Join(names, ", "), Why: observe.MissedUnreachable}
		}
	}
	return nil
}

// list returns the newest records that match, in the order of their beginning, and counts flows for no service that are
// left out, by node.
func (t *tracker) list(f *observe.Filter, leftOut map[string]uint64) (records []*flow.Record) {
	if f.Limit == 0 {
		return nil
	}
	for _, c := range t.begun {
		r := c.record(0, c.life())
		switch {
		case !f.MatchRecord(r):
		case f.ServicesOnly && r.Reason == decision.NotAService.String():
			leftOut[r.Node]++
		default:
			records = append(records, r)
		}
	}
	slices.SortStableFunc(records, func(a, b *flow.Record) int { return a.Time.Compare(*b.Time) })
	if f.Limit != observe.All && len(records) > f.Limit {
		records = records[len(records)-f.Limit:]
	}
	return records
}

// The times of a stream.
const (
	tick = 50 * time.Millisecond
	// Past events have all come when one of the present comes, when none has come for silence, and in any case after catchUp:
	// those that a relay holds back longer come as events.
	catchUp = 5 * time.Second
)

// follower is a stream to a reader.
type follower struct {
	*Source
	*tracker
	filter  *observe.Filter
	each    func(observe.Item) error
	err     error // of each
	leftOut map[string]uint64
	sampled map[string]uint64
	second  time.Time // the beginning of the one that rate counts
	given   int       // in it
}

// follow sends events until the context ends.
func (s *Source) follow(ctx context.Context, f *observe.Filter, each func(observe.Item) error) error {
	caller := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	past := f.Limit != 0
	r := new(hubblepb.GetFlowsRequest)
	if all := request(f.Since); past {
		r = all
	} else {
		r.Whitelist = all.Whitelist
	}
	r.Follow = true
	stream, err := s.client.GetFlows(ctx, r)
	if err != nil {
		return s.explain(caller, err)
	}
	responses, end := make(chan *hubblepb.GetFlowsResponse, 256), make(chan error, 1)
	go func() {
		defer close(responses)
		for {
			response, err := stream.Recv()
			if err != nil {
				end <- err
				return
			}
			select {
			case responses <- response:
			case <-ctx.Done():
				end <- ctx.Err()
				return
			}
		}
	}()
	w := &follower{Source: s, tracker: newTracker(), filter: f, each: each, leftOut: make(map[string]uint64), sampled: make(map[string]uint64)}
	began := s.now()
	last, swept := began, began
	if !past {
		w.emit = w.send
	}
	clock := time.NewTicker(tick)
	defer clock.Stop()
	for w.err == nil {
		select {
		case response, ok := <-responses:
			if !ok {
				err := <-end
				switch {
				case caller.Err() != nil:
					return nil
				case errors.Is(err, io.EOF):
					return fmt.Errorf("%s: the stream ended: Hubble stopped, or a proxy on the way closed the connection", s.server)
				}
				return s.explain(caller, err)
			}
			now := s.now()
			last = now
			if past && (response.GetFlow().GetTime().AsTime().After(began) || now.Sub(began) > catchUp) {
				past = w.present(now)
			}
			if m := w.response(response, now); m != nil && w.err == nil {
				w.err = each(observe.Item{Missed: m})
			}
		case <-clock.C:
			now := s.now()
			if past && (now.Sub(last) > silence || now.Sub(began) > catchUp) {
				past = w.present(now)
			}
			if past {
				continue
			}
			w.pass(now)
			if now.Sub(swept) >= time.Second && w.err == nil {
				swept = now
				s.advise(w.tracker, manyUnknown)
				w.reportMissed()
			}
		case <-caller.Done():
			return nil
		}
	}
	return w.err
}

// present sends past flows, and begins with the present.
func (w *follower) present(now time.Time) (past bool) {
	w.finish(now)
	for _, r := range w.list(w.filter, w.leftOut) {
		if w.err == nil {
			w.err = w.each(observe.Item{Record: r})
		}
	}
	w.begun = slices.DeleteFunc(w.begun, func(c *connection) bool { return now.Sub(c.first) >= flow.UnansweredAfter })
	w.emit = w.send
	return false
}

// send sends an event to the reader, if it matches.
func (w *follower) send(c *connection, what flow.Event, life flow.Life) {
	if w.err != nil || len(w.filter.Events) > 0 && !slices.Contains(w.filter.Events, what) {
		return
	}
	r, now := c.record(what, life), w.now()
	if !w.filter.MatchRecord(r) {
		return
	}
	decides := what.IsDecision()
	if w.filter.ServicesOnly && r.Reason == decision.NotAService.String() {
		if decides || len(w.filter.States)+len(w.filter.Events) > 0 {
			w.leftOut[r.Node]++
		}
		return
	}
	if w.filter.Rate > 0 {
		if now.Sub(w.second) >= time.Second {
			w.second, w.given = now, 0
		}
		c.leftOut = c.leftOut || decides && w.given >= w.filter.Rate
		if c.leftOut {
			w.sampled[r.Node]++
			return
		}
		w.given++
	}
	r.Emitted = &now
	w.err = w.each(observe.Item{Record: r})
}

// reportMissed reports what the reader did not get.
func (w *follower) reportMissed() {
	w.err = remote.ReportLeftOut(w.leftOut, w.each)
	for node, n := range w.sampled {
		if w.err == nil {
			w.err = w.each(observe.Item{Missed: &observe.Missed{Node: node, Missed: n, Why: observe.MissedSampled}})
		}
	}
	clear(w.sampled)
}

// manyUnknown is how many connections without a known translation, and none with one, a stream has before its reader gets
// advice.
const manyUnknown = 20

// advise notes each node of which no translation is known, if it has had that many connections.
func (s *Source) advise(t *tracker, many int) {
	if s.Note == nil {
		return
	}
	var nodes []string
	for name, b := range t.blind {
		if b.known == 0 && b.unknown >= many {
			if _, noted := s.noted.LoadOrStore(name, true); !noted {
				nodes = append(nodes, name)
			}
		}
	}
	if len(nodes) == 0 {
		return
	}
	slices.Sort(nodes)
	s.Note("Hubble reports no translation of a Service's address on " + strings.Join(nodes, ", ") +
		": connections of pods may be to Services that are not named. Cilium's Helm values socketLB.tracing=true and bpf.monitorAggregation=none let it report them")
}
