package switchover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/view/findings"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// settleTime is how long a node may have no flow, and its daemon may not be observable, after its pod is ready.
const settleTime = 5 * time.Second

// Flows judges a node by what its daemon observes: no problem of the daemon, and TCP flows to services that get
// answers, if there are any. Where daemons cannot be observed it reports that, and does not judge: then a node is good
// if its pod is ready. It is for one run.
type Flows struct {
	// Open observes all nodes. It is called at the first check, when there is a daemon.
	Open func() (observe.Observer, error)
	// Report takes one line for each node.
	Report func(text string)

	opened   bool
	observer observe.Observer // nil: none
	node     string           // of the last check
	since    time.Time        // the first check of the node
}

// Check judges a node.
func (f *Flows) Check(ctx context.Context, node string) error {
	if !f.opened {
		f.opened = true
		var err error
		if f.observer, err = f.Open(); err != nil {
			f.observer = nil
			f.Report(fmt.Sprintf("flows are not checked: %v", err))
		}
	}
	if f.observer == nil {
		return nil
	}
	if f.node != node {
		f.node, f.since = node, time.Now()
	}
	settled := time.Since(f.since) >= settleTime
	summary, err := f.judge(ctx, node)
	if unknown, is := errors.AsType[unobservableError](err); is && settled {
		f.Report(fmt.Sprintf("node %s: flows are not checked: %v", node, unknown.error))
		return nil
	}
	switch {
	case err != nil:
		return err
	case summary.answered > 0:
		f.Report(fmt.Sprintf("node %s: %d of %d new TCP flows to services got an answer", node, summary.answered, summary.flows))
		return nil
	case summary.unanswered > 0:
		return fmt.Errorf("none of %d new TCP flows to services got an answer", summary.flows)
	case !settled:
		return errors.New("no new flow to a service got an answer yet")
	}
	f.Report(fmt.Sprintf("node %s: no new TCP flow to a service so far", node))
	return nil
}

// unobservableError is the error of a daemon that cannot be observed.
type unobservableError struct{ error }

// summary counts the new flows of a node.
type summary struct{ flows, answered, unanswered int }

func (f *Flows) judge(ctx context.Context, node string) (s summary, err error) {
	status, err := f.observer.Status(ctx)
	if err != nil {
		return s, unobservableError{err}
	}
	i := slices.IndexFunc(status, func(s observe.Status) bool { return s.Node == node })
	switch {
	case i < 0:
		return s, unobservableError{errors.New("its daemon is not known yet")}
	case status[i].Daemon == nil && len(status[i].Problems) > 0:
		return s, unobservableError{errors.New(status[i].Problems[0].Text)}
	case status[i].Daemon == nil:
		return s, unobservableError{errors.New("its daemon cannot be reached")}
	}
	records, err := findings.Recent(ctx, f.observer)
	if err != nil {
		return s, unobservableError{err}
	}
	found, err := findings.Observed(ctx, f.observer, records)
	if err != nil {
		return s, unobservableError{err}
	}
	for _, d := range found {
		if d.Object == "Node "+node && d.Code.Severity() == diagnose.Error {
			return s, fmt.Errorf("%s: %s", d.Code, d.Text)
		}
	}
	for _, r := range records {
		if r.Node != node || r.Protocol != "TCP" || r.Life == nil {
			continue
		}
		s.flows++
		switch {
		case r.Life.Answered:
			s.answered++
		case r.Life.State == flow.Unanswered:
			s.unanswered++
		}
	}
	return s, nil
}
