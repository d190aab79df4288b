package history

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// History is the [observe.Observer] of recorded flows. It has no services, tables, status and topology, and no steps and events of flows.
// A record has the latest state that was recorded. It is safe for concurrent use, also beside a recorder.
type History struct {
	// Dir is the directory.
	Dir string
	// Warn is called with each file that cannot be read, which is skipped; nil: it is an error.
	Warn func(error)

	observe.OnlyFlows
}

var _ observe.Observer = (*History)(nil)

// Check returns an error if the directory has no history.
func (h *History) Check() error {
	files, err := h.files()
	if err == nil && len(files) == 0 {
		return fmt.Errorf("%s has no history: nfqproxy record --dir %[1]s writes one", h.Dir)
	}
	return err
}

func (h *History) files() ([]file, error) {
	files, err := list(h.Dir)
	return slices.DeleteFunc(files, func(f file) bool { return f.corrupt }), err
}

func (h *History) unreadable(err error) error {
	bad, ok := errors.AsType[*UnreadableError](err)
	if h.Warn == nil || !ok {
		return err
	}
	h.Warn(bad)
	return nil
}

// opened are files in use, the oldest first.
type opened []*reader

func (o opened) close() {
	for _, r := range o {
		r.close()
	}
}

// attempts bounds how often the directory is listed: a recorder may replace parts by their hour in between.
const attempts = 5

// open opens all files that may have flows decided since a time.
func (h *History) open(since time.Time) (all opened, err error) {
	for range attempts {
		if all, err = h.openListed(since); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return all, err
}

func (h *History) openListed(since time.Time) (all opened, err error) {
	files, err := h.files()
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		// A row is not older than its flow. The clocks of nodes differ by less than an hour.
		if f.hour.Add(2 * time.Hour).Before(since) {
			continue
		}
		r, err := openFile(f.path)
		if err == nil {
			all = append(all, r)
			continue
		}
		if errors.Is(err, fs.ErrNotExist) {
			all.close()
			return nil, err
		}
		if err := h.unreadable(err); err != nil {
			all.close()
			return nil, err
		}
	}
	return all, nil
}

// Flows lists flows in the order of their decisions; a list of all flows only nearly so, if there are more than fit into memory.
// What the history lacks of the time comes first.
func (h *History) Flows(ctx context.Context, q observe.FlowQuery, each func(observe.Item) error) error {
	f, err := q.Parse(time.Now())
	if err != nil {
		return err
	}
	if f.Follow {
		return &observe.Error{Status: http.StatusBadRequest, Field: "follow", Message: "follow: a history has past flows only"}
	}
	files, err := h.open(f.Since)
	if err != nil {
		return err
	}
	defer files.close()
	for _, m := range missed(files, f) {
		if err := each(observe.Item{Missed: m}); err != nil {
			return err
		}
	}
	return remote.List(q, f, func(f *observe.Filter, leftOut map[string]uint64, each func(*flow.Record) error) error {
		s := &search{History: h, ctx: ctx, filter: f, leftOut: leftOut}
		return s.list(files, each)
	}, each)
}

// Nodes returns the nodes whose flows are recorded.
func (h *History) Nodes() ([]string, error) {
	files, err := h.open(time.Time{})
	if err != nil {
		return nil, err
	}
	defer files.close()
	var all coverage
	for _, r := range files {
		all.add(r.coverage)
	}
	return all.nodes, nil
}

// Flow returns a flow.
func (h *History) Flow(ctx context.Context, id string) (found *flow.Record, err error) {
	files, err := h.open(time.Time{})
	if err != nil {
		return nil, err
	}
	defer files.close()
	for _, r := range slices.Backward(files) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		err := reading(r.path, func() error {
			for _, g := range r.RowGroups() {
				at := newBits(g.NumRows())
				has := false
				if err := r.eachID(g, func(i int64, is string) error {
					if is == id {
						at.set(i)
						has = true
					}
					return nil
				}); err != nil || !has {
					if err != nil {
						return err
					}
					continue
				}
				return r.eachRow(g, at, func(x *row) error {
					found = x.record()
					return nil
				})
			}
			return nil
		})
		if err := h.unreadable(err); err != nil {
			return nil, err
		}
		if found != nil {
			return found, nil
		}
	}
	return nil, &observe.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("flow %q is not in the history %s", id, h.Dir)}
}
