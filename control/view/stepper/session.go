// Package stepper steps a held flow through the chains, by the commands of a user at a terminal
// or of a script.
package stepper

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Session is one hold, from its arming to the state of the released flow. It is for one use.
type Session struct {
	Observer observe.Observer // observes the flow; it must have a Holder
	Query    observe.HoldQuery
	// Lines are the commands, one a line (see [Help]); closed: no more commands, and the
	// flow is released.
	Lines <-chan string
	// Screen shows the hold.
	Screen Screen
}

// Help lists the commands.
const Help = "n or empty: next step, b: back, c N: choose candidate N, g: release, d: drop, q: release and quit"

// Run arms the hold, waits for a flow, and executes commands until the flow is released or dropped.
// When the context ends, the flow is released as decided. It is an error if no flow matched.
func (s *Session) Run(ctx context.Context) error {
	holder := s.Observer.Holder()
	if holder == nil {
		return errors.New("holding flows is not available: the server does not support holds")
	}
	hold, err := holder.Hold(ctx, s.Query)
	if err != nil {
		return err
	}
	if err := s.Screen.Waiting(hold); err != nil {
		return errors.Join(err, cancel(ctx, holder, hold.ID))
	}
	hold, err = s.lead(ctx, holder, hold)
	switch {
	case err != nil:
		return errors.Join(err, cancel(ctx, holder, hold.ID))
	case ctx.Err() != nil:
		return errors.Join(cancel(ctx, holder, hold.ID), s.Screen.Interrupted(hold))
	case hold.Record == nil:
		return fmt.Errorf("no flow %s in %s", filterInWords(s.Query.Flow), seconds(s.Query))
	}
	return s.end(ctx, hold)
}

// cancel releases a hold's flow, also after the end of the context.
func cancel(ctx context.Context, holder observe.Holder, id string) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer stop()
	var fault *observe.Error
	if err := holder.Cancel(ctx, id); err != nil && !errors.As(err, &fault) { // a fault: it is done already
		return fmt.Errorf("cannot cancel the hold (it ends at its timeout): %w", err)
	}
	return nil
}

// lead executes commands until the hold is done or the context ends.
func (s *Session) lead(ctx context.Context, holder observe.Holder, hold *observe.Hold) (*observe.Hold, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	changes := watch(ctx, holder, hold)
	for {
		var lines <-chan string // commands before the flow arrives wait for it
		if hold.State == observe.HoldHolding {
			lines = s.Lines
		}
		var next *observe.Hold
		var err error
		select {
		case <-ctx.Done():
			return hold, nil
		case c := <-changes:
			next, err = c.hold, c.err
		case line, more := <-lines:
			s.Screen.typed()
			if next, err = s.obey(ctx, holder, hold, line, more); isFault(err) {
				next, err = hold, s.Screen.Fault(err)
			}
		}
		switch {
		case ctx.Err() != nil:
			return hold, nil
		case err != nil:
			return hold, err
		case next.State == observe.HoldDone:
			return next, nil
		case next.State == observe.HoldHolding && moved(hold, next):
			if err := s.Screen.Holding(next); err != nil {
				return next, err
			}
		}
		if next.Generation > hold.Generation {
			hold = next
		}
	}
}

// moved reports whether there is a change to show: a retransmission is none.
func moved(before, after *observe.Hold) bool {
	return after.Generation > before.Generation && (before.Record == nil || before.Step != after.Step || before.Record.Endpoint != after.Record.Endpoint)
}

// isFault distinguishes an error in a command from a failure.
func isFault(err error) bool {
	var fault *observe.Error
	return errors.As(err, &fault)
}

type change struct {
	hold *observe.Hold
	err  error
}

// watch sends the changes of a hold until it is done, an error occurs or the context ends.
func watch(ctx context.Context, holder observe.Holder, hold *observe.Hold) <-chan change {
	changes := make(chan change)
	go func() {
		id, generation := hold.ID, hold.Generation
		for {
			hold, err := holder.Get(ctx, id, generation)
			if err == nil && hold.Generation == generation && ctx.Err() == nil {
				continue // nothing happened for as long as the server waits
			}
			select {
			case changes <- change{hold, err}:
			case <-ctx.Done():
				return
			}
			if err != nil || hold.State == observe.HoldDone {
				return
			}
			generation = hold.Generation
		}
	}()
	return changes
}

// obey executes a command line. more is false after the last command.
func (s *Session) obey(ctx context.Context, holder observe.Holder, hold *observe.Hold, line string, more bool) (*observe.Hold, error) {
	act, err := parse(line, hold)
	if err != nil {
		return nil, err
	}
	if !more {
		act = observe.Act{Action: observe.ActRelease}
	}
	return holder.Act(ctx, hold.ID, act)
}

// parse parses a command line.
func parse(line string, hold *observe.Hold) (observe.Act, error) {
	words := strings.Fields(line)
	if len(words) == 0 {
		return observe.Act{Action: observe.ActStep}, nil
	}
	if words[0] == "c" {
		return choice(words[1:], hold.Record)
	}
	action, ok := map[string]string{
		"n": observe.ActStep, "b": observe.ActBack, "g": observe.ActRelease, "d": observe.ActDrop, "q": observe.ActRelease,
	}[words[0]]
	if !ok || len(words) > 1 {
		return observe.Act{}, &observe.Error{Message: fmt.Sprintf("%q: want %s", line, Help)}
	}
	return observe.Act{Action: action}, nil
}

// choice parses a candidate: its number, or its address and port.
func choice(words []string, r *flow.Record) (observe.Act, error) {
	if len(r.Candidates) == 0 {
		return observe.Act{}, &observe.Error{Message: "no candidates to choose from: the flow has none"}
	}
	if len(words) == 1 {
		for i, c := range r.Candidates {
			if words[0] == fmt.Sprint(i+1) || words[0] == c.Endpoint {
				return observe.Act{Action: observe.ActChoose, Endpoint: c.Endpoint}, nil
			}
		}
	}
	return observe.Act{}, &observe.Error{Message: fmt.Sprintf("%q: want c and a number from 1 to %d", strings.Join(append([]string{"c"}, words...), " "), len(r.Candidates))}
}

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
