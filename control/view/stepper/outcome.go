package stepper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

const (
	// cancelTimeout is the time limit of the server for cancelling a hold whose client quits.
	cancelTimeout = 5 * time.Second
	// outcomeTimeout is the time to wait for the state of a released flow: longer than the time
	// after which a flow counts as unanswered.
	outcomeTimeout = flow.UnansweredAfter + 3*time.Second
)

// end prints how the hold ended and, if the flow was released, its state.
func (s *Session) end(ctx context.Context, hold *observe.Hold) error {
	if err := s.Screen.Done(hold); err != nil {
		return err
	}
	if hold.Record.Held == nil || hold.Record.Endpoint == "" || hold.Outcome == flow.HoldDropped {
		return nil
	}
	r, err := s.outcome(ctx, hold.Record)
	if err != nil || r == nil {
		return err
	}
	return s.Screen.Outcome(r)
}

var errFound = errors.New("state found")

// outcome waits for the state of a released flow; nil: not known in time. The flow has its ID only since its release, so it is
// found by that of its hold.
func (s *Session) outcome(ctx context.Context, held *flow.Record) (*flow.Record, error) {
	ctx, stop := context.WithTimeout(ctx, outcomeTimeout)
	defer stop()
	q := observe.FlowQuery{Follow: true, Source: held.Source, Destination: held.Destination, Protocol: held.Protocol}
	if held.Time != nil { // past events come first
		q.Since = held.Time.UTC().Format(time.RFC3339Nano)
	}
	var last *flow.Record
	err := s.Observer.Flows(ctx, q, func(item observe.Item) error {
		r := item.Record
		if r == nil || r.Held == nil || r.Held.ID != held.Held.ID || r.Life == nil || r.Life.State == flow.Decided {
			return nil
		}
		last = r
		return errFound
	})
	switch {
	case errors.Is(err, errFound), ctx.Err() != nil:
		return last, nil
	case err != nil:
		return nil, fmt.Errorf("cannot read the state of the flow: %w", err)
	}
	return last, nil
}
