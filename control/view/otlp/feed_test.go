package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

func ids(records []*flow.Record) (list []string) {
	for _, r := range records {
		list = append(list, r.ID)
	}
	return list
}

// TestQueue: the newest records stay, and come out in their order.
func TestQueue(t *testing.T) {
	q := newQueue(3)
	for i := range 5 {
		if dropped := q.add(&flow.Record{ID: fmt.Sprint(i)}); dropped != (i >= 3) {
			t.Errorf("record %d: dropped is %v", i, dropped)
		}
	}
	q.wait(t.Context())
	if got := ids(q.take(2)); !slices.Equal(got, []string{"2", "3"}) {
		t.Errorf("first come %v", got)
	}
	q.wait(t.Context()) // there is one more
	if got := ids(q.take(2)); !slices.Equal(got, []string{"4"}) || q.len() != 0 {
		t.Errorf("then come %v", got)
	}
}

// TestFeed: decisions go to both pipes, other events to that of logs; losses on the node and of the stream are counted. After
// the end of a stream another one begins.
func TestFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		streams, begun := 0, 0
		f := &feed{log: slog.New(slog.DiscardHandler), began: func() { begun++ }, follow: func(_ context.Context, q observe.FlowQuery, began func(), each func(observe.Item) error) error {
			if streams++; q != (observe.FlowQuery{Follow: true}) {
				t.Errorf("asked for %+v", q)
			}
			switch streams {
			case 1:
				return errors.New("no daemon yet")
			case 4:
				stop()
				return nil
			}
			began()
			for _, i := range []observe.Item{
				{Record: &flow.Record{ID: "1", Event: flow.Decided}},
				{Missed: &observe.Missed{Missed: 5, Why: observe.MissedSlow}},
				{Record: &flow.Record{ID: "1", Event: flow.Answered}},
				{Missed: &observe.Missed{Missed: 7, Why: observe.MissedLost}},
				{Missed: &observe.Missed{Missed: 11, Why: observe.MissedLeftOut}}, // no loss
				{Missed: &observe.Missed{Why: observe.MissedUnreachable}},
			} {
				if err := each(i); err != nil {
					return err
				}
			}
			return errors.New("the daemon ended")
		}}
		e := &Exporter{config: Config{Records: 1, Buffer: 10}}
		logs, spans := e.newPipe(Logs), e.newPipe(Traces)
		spans.decisions = true
		f.pipes = []*pipe{logs, spans}
		f.run(ctx)
		for _, p := range f.pipes {
			if s := p.state(); s.Evicted != 10 || s.Overflow != 14 {
				t.Errorf("%s: %+v", p.signal, s)
			}
		}
		if l, s := ids(logs.queue.take(9)), ids(spans.queue.take(9)); len(l) != 4 || len(s) != 2 || begun != 1 {
			t.Errorf("logs %v, spans %v, begun %d times", l, s, begun)
		}
	})
}
