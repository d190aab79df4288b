package stepper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

const (
	// cancelPatience is how long a server may take to cancel a hold whose asker goes away.
	cancelPatience = 5 * time.Second
	// fatePatience is how long to wait for what becomes of a flow: longer than a flow
	// takes to count as unanswered.
	fatePatience = flow.UnansweredAfter + 3*time.Second
)

// end tells how the hold ended and, where the flow went on, what became of it.
func (s *Session) end(ctx context.Context, hold *observe.Hold) error {
	if err := s.Screen.Done(hold); err != nil {
		return err
	}
	if hold.Record.ID == "" || hold.Record.Endpoint == "" || hold.Outcome == "dropped" {
		return nil
	}
	r, err := s.fate(ctx, hold.Record)
	if err != nil || r == nil {
		return err
	}
	return s.Screen.Fate(r)
}

var errTold = errors.New("told")

// fate waits for what becomes of a flow; nil: it cannot be told in time.
func (s *Session) fate(ctx context.Context, held *flow.Record) (*flow.Record, error) {
	ctx, stop := context.WithTimeout(ctx, fatePatience)
	defer stop()
	q := observe.FlowQuery{Follow: true, Source: held.Source, Destination: held.Destination, Protocol: held.Protocol}
	if held.Time != nil { // what happened meanwhile comes first
		q.Since = held.Time.UTC().Format(time.RFC3339Nano)
	}
	var told *flow.Record
	err := s.Observer.Flows(ctx, q, func(item observe.Item) error {
		r := item.Record
		if r == nil || r.ID != held.ID || r.Life == nil || r.Life.State == flow.Decided {
			return nil
		}
		told = r
		return errTold
	})
	switch {
	case errors.Is(err, errTold), ctx.Err() != nil:
		return told, nil
	case err != nil:
		return nil, fmt.Errorf("what became of the flow: %w", err)
	}
	return told, nil
}
