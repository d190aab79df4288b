package session

import (
	"context"
	"time"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
)

// How often checks are evaluated: those that only look, those that send requests after the student did something, and those
// otherwise.
const (
	pollInterval    = 300 * time.Millisecond
	requestInterval = time.Second
	idleInterval    = 5 * time.Second
)

// watch evaluates the checks of the step under way, until the unit ends.
func (s *Session) watch(w *work) {
	ticks := time.NewTicker(pollInterval)
	defer ticks.Stop()
	busy := false
	var rest time.Time // no evaluation before
	for {
		all := false
		select {
		case <-w.ctx.Done():
			return
		case <-w.active:
			busy = true
			continue
		case <-w.wake:
			all = true
		case <-ticks.C:
			if time.Now().Before(rest) {
				continue
			}
		}
		began := time.Now()
		s.evaluate(w.ctx, w, all, &busy)
		// A host with many rules is slow to list them: leave most of the time to others.
		rest = time.Now().Add(4 * time.Since(began))
	}
}

// Active notes that the student did something: checks that send requests do so soon.
func (s *Session) Active() {
	if w := s.running(); w != nil {
		notify(w.active)
	}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// evaluate evaluates the checks of the step under way in their order, those that send requests only if that is due or all
// are wanted, and passes the step if they are met. No request is sent before the checks ahead of it are met: a connection
// of a check must not be open while the student writes the rule that is to drop it. busy: the student did something since
// the last requests.
func (s *Session) evaluate(ctx context.Context, w *work, all bool, busy *bool) {
	w.evaluating.Lock()
	defer w.evaluating.Unlock()
	s.mu.Lock()
	step, number, since := w.current(), w.step, w.since
	before := append([]labapi.LessonCheck(nil), w.checks...)
	s.mu.Unlock()
	if step == nil || len(step.Checks) == 0 {
		return
	}
	idle := time.Since(w.requested)
	due := all || idle > idleInterval || *busy && idle > requestInterval
	results := make([]labapi.LessonCheck, len(step.Checks))
	met, sent := true, false
	for i, c := range step.Checks {
		results[i] = before[i]
		if c.Sends() && !met {
			results[i].Met, results[i].Detail = false, ""
			continue
		}
		if c.Sends() && !due {
			met = met && before[i].Met
			continue
		}
		sent = sent || c.Sends()
		results[i].Met, results[i].Detail = w.check(ctx, c, since)
		met = met && results[i].Met
		if ctx.Err() != nil {
			return
		}
	}
	if sent {
		w.requested, *busy = time.Now(), false
	}
	if met && !due {
		// Met at different times is not enough.
		for i, c := range step.Checks {
			if c.Sends() {
				results[i].Met, results[i].Detail = w.check(ctx, c, since)
				met = met && results[i].Met
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.work != w || w.step != number || ctx.Err() != nil {
		return
	}
	changed := false
	for i := range results {
		changed = changed || results[i] != w.checks[i]
	}
	w.checks = results
	switch {
	case met && w.right:
		s.pass(w, step)
	case changed:
		s.publish()
	}
}

// pass ends a step. The caller holds mu.
func (s *Session) pass(w *work, step *learn.Step) {
	now := time.Now()
	err := s.record.Add(learn.Event{Time: now, Kind: learn.Passed, Unit: w.unit.ID, Step: step.Name})
	w.step++
	s.lesson.Good = true
	s.lesson.Notice = "done: " + step.Title
	if w.current() == nil {
		if err == nil {
			err = s.record.Add(learn.Event{Time: now, Kind: learn.Finished, Unit: w.unit.ID})
		}
		s.lesson.Notice += "\nunit " + w.unit.ID + " is finished"
	}
	if err != nil {
		s.lesson.Notice, s.lesson.Good = "cannot remember progress: "+err.Error(), false
	}
	s.enter(w)
}
