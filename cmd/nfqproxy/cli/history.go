package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/history"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// historyFlag adds the flag of a directory with recorded flows.
func historyFlag(cmd *cobra.Command, dir *string, use string) {
	cmd.Flags().StringVar(dir, "history", "", use+" from this directory, written by nfqproxy record")
	_ = cmd.MarkFlagDirname("history")
}

// openHistory returns the history in a directory. Each file that cannot be read is a warning.
func openHistory(dir string, stderr io.Writer) (*history.History, error) {
	var mu sync.Mutex
	warned := make(map[string]bool)
	h := &history.History{Dir: dir, Warn: func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if text := err.Error(); !warned[text] {
			warned[text] = true
			fmt.Fprintln(stderr, "nfqproxy: warning:", text)
		}
	}}
	if err := h.Check(); err != nil {
		return nil, fmt.Errorf("--history: %w", err)
	}
	return h, nil
}

// excludeHistory returns an error if one of the flags is given beside --history.
func excludeHistory(flags *pflag.FlagSet, others ...string) error {
	for _, o := range others {
		if flags.Changed(o) {
			return fmt.Errorf("--history and --%s cannot be used together: give one of them", o)
		}
	}
	return nil
}

// timeOfDay reads HH:MM or HH:MM:SS of the last 24 hours, a time (RFC 3339) or an age.
func timeOfDay(text string, now time.Time) (time.Time, error) {
	for _, layout := range []string{"15:04", "15:04:05"} {
		t, err := time.ParseInLocation(layout, text, now.Location())
		if err != nil {
			continue
		}
		at := time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location())
		if at.After(now) {
			at = at.AddDate(0, 0, -1)
		}
		return at, nil
	}
	f, err := observe.FlowQuery{Since: text}.Parse(now)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q: want a time of day (14:03), how long ago (2h), or a time such as 2026-01-02T15:04:05Z", text)
	}
	return f.Since, nil
}

// changedTopology is an Observer that reports in its topology what this program adds.
type changedTopology struct {
	observe.Observer
	change func(*observe.Topology)
}

// Topology returns the changed topology.
func (c *changedTopology) Topology(ctx context.Context) (*observe.Topology, error) {
	t, err := c.Observer.Topology(ctx)
	if err != nil {
		return nil, err
	}
	known := *t
	c.change(&known)
	return &known, nil
}

// withHistory is an Observer of the present whose lists of flows until a time, and single flows that it does not know any more, come from
// a history.
type withHistory struct {
	observe.Observer
	history *history.History
}

func (w *withHistory) Flows(ctx context.Context, q observe.FlowQuery, each func(observe.Item) error) error {
	if q.Until != "" && !q.Follow {
		return w.history.Flows(ctx, q, each)
	}
	return w.Observer.Flows(ctx, q, each)
}

func (w *withHistory) Flow(ctx context.Context, id string) (*flow.Record, error) {
	r, err := w.Observer.Flow(ctx, id)
	if e, ok := errors.AsType[*observe.Error](err); ok && e.Status == http.StatusNotFound {
		if past, e := w.history.Flow(ctx, id); e == nil {
			return past, nil
		}
	}
	return r, err
}

// awaitNodes returns the names of the observed nodes. It waits for a server that cannot be reached, until the context ends.
func awaitNodes(ctx context.Context, o observe.Observer, log interface{ Warn(string, ...any) }) ([]string, error) {
	for logged := false; ; logged = true {
		stats, err := o.Stats(ctx)
		if err == nil {
			var names []string
			for i := range stats {
				names = append(names, stats[i].Node)
			}
			return names, nil
		}
		if e, ok := errors.AsType[*observe.Error](err); ok && e.Status < 500 && e.Status != http.StatusTooManyRequests {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !logged {
			log.Warn("the daemon does not answer; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(nodeWait):
		}
	}
}

// fileName makes the name of a node that of files.
func fileName(node string) string {
	return strings.Map(func(c rune) rune {
		if c == '_' || c == '/' {
			return '-'
		}
		return c
	}, node)
}
