package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Bounds of a recorder.
const (
	// interval is the maximum of [Config.Interval].
	interval = time.Minute
	// rowsOfPart bounds the rows that wait; as many are being written. Each takes about 1 KiB.
	rowsOfPart = 1 << 15
	// pagesOfOver are the newest millions of flows whose end is written, see [Recorder.over].
	pagesOfOver = 4096
	// LeastSize is the least [Config.MaxSize].
	LeastSize = 16 << 20
	// retry is the delay between attempts to follow the flows.
	retry = 2 * time.Second
)

// recorded are the events that a recorder follows: of a flow's others, its end tells all. A daemon passes on a limited
// number of events.
var recorded = []flow.Event{flow.Decided, flow.Established, flow.Unanswered, flow.Rejected, flow.Dropped, flow.Failed, flow.Gone}

// Config configures a [Recorder].
type Config struct {
	Dir string
	// Name is that of the node, or of the recorder of several nodes: each recorder of a directory needs its own.
	Name string
	// MaxSize bounds the files of this recorder, in bytes, and MaxAge their age: the oldest are removed; 0: no bound.
	MaxSize int64
	MaxAge  time.Duration
	// ServicesOnly leaves out flows that are for no service.
	ServicesOnly bool
	// Interval is how long rows wait for others: what a killed recorder loses; 0: a minute, the maximum.
	Interval time.Duration
	Log      *slog.Logger

	now        func() time.Time // nil: time.Now
	rowsOfPart int              // 0: rowsOfPart
}

// Recorder writes the flows of an observer into the files of a directory. It writes a part of an hour at least once a minute,
// with one row for each flow that is new or changed, and merges the parts of an hour when the hour is over.
type Recorder struct {
	Config
	lock *os.File

	mu      sync.Mutex // of all below
	pending pending
	since   time.Time // of the present span of pending; zero: the flows are not followed
	// over are the flows whose last row is written: a daemon that is asked for all that it knows reports them again.
	over idSet

	writing sync.Mutex // held by who writes a part
	merging sync.Mutex // held by who merges parts
}

// pending are the rows of a part that is not written yet.
type pending struct {
	rows  []row
	index map[string]int // of rows, by ID
	pool  pool
	spans []span
	gaps  []gap
}

// Open opens a directory. The caller must call [Recorder.Close].
func Open(c Config) (*Recorder, error) {
	if strings.ContainsAny(c.Name, "_/") || c.Name == "" {
		return nil, fmt.Errorf("%q: not a name for files", c.Name)
	}
	if c.now == nil {
		c.now = time.Now
	}
	c.Interval, c.rowsOfPart = cmp.Or(c.Interval, interval), cmp.Or(c.rowsOfPart, rowsOfPart)
	if err := os.MkdirAll(c.Dir, 0o750); err != nil {
		return nil, err
	}
	r := &Recorder{Config: c, over: idSet{most: pagesOfOver}}
	var err error
	if r.lock, err = os.OpenFile(filepath.Join(c.Dir, "."+c.Name+".lock"), os.O_CREATE|os.O_RDWR, 0o640); err != nil {
		return nil, err
	}
	if err := unix.Flock(int(r.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = r.lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: another process records %s in this directory: use another directory", c.Dir, c.Name)
		}
		return nil, fmt.Errorf("cannot lock %s: %w", r.lock.Name(), err)
	}
	if err := r.start(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Close releases the directory.
func (r *Recorder) Close() error { return r.lock.Close() }

// own are the files of the recorder, the oldest first, with those that were set aside.
func (r *Recorder) own() ([]file, error) {
	files, err := list(r.Dir)
	return slices.DeleteFunc(files, func(f file) bool { return f.recorder != r.Name }), err
}

func (r *Recorder) readable() ([]file, error) {
	files, err := r.own()
	return slices.DeleteFunc(files, func(f file) bool { return f.corrupt }), err
}

func (r *Recorder) start() error {
	left, err := filepath.Glob(filepath.Join(r.Dir, "*_"+r.Name+"*"+unfinished))
	if err != nil {
		return err
	}
	for _, path := range left {
		if f, ok := parseName(strings.TrimSuffix(filepath.Base(path), unfinished)); ok && f.recorder == r.Name {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	files, err := r.readable()
	if err != nil {
		return err
	}
	hours := 0
	for i, f := range slices.Backward(files) {
		if i < len(files)-1 && !f.hour.Equal(files[i+1].hour) {
			hours++
		}
		if hours > 1 { // a daemon does not know older flows
			break
		}
		err := r.readOver(f.path)
		if bad, ok := errors.AsType[*UnreadableError](err); ok {
			r.setAside(bad.Path, bad.Err)
		} else if err != nil {
			return err
		}
	}
	return r.bound(0)
}

// readOver adds the flows of a file that are over.
func (r *Recorder) readOver(path string) error {
	f, err := openFile(path)
	if err != nil {
		return err
	}
	defer f.close()
	return reading(path, func() error {
		for _, g := range f.RowGroups() {
			if err := f.eachOver(g, func(id string) { r.over.add(id) }); err != nil {
				return err
			}
		}
		return nil
	})
}

// setAside renames a file that cannot be read, so that other readers do not fail at it.
func (r *Recorder) setAside(path string, err error) {
	r.Log.Warn("set a file aside, which cannot be read; its flows are lost", "file", path, "as", path+corrupt, "error", err)
	if err := os.Rename(path, path+corrupt); err != nil {
		r.Log.Error("cannot rename it", "error", err)
	}
}

func (r *Recorder) hour() time.Time { return r.now().UTC().Truncate(time.Hour) }

// Run records the flows of an observer until the context ends, and then writes what it has. It waits for an observer
// that fails, unless the first request is refused.
func (r *Recorder) Run(ctx context.Context, o observe.Observer) error {
	following, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	group.Go(func() {
		if err := r.follow(following, o); err != nil {
			cancel(err)
		}
	})
	merge := func(before time.Time) {
		group.Go(func() {
			if err := r.mergeOld(following, before); err != nil && following.Err() == nil {
				r.Log.Error("cannot merge the parts of an hour; trying again after the next one", "error", err)
			}
		})
	}
	ticker := time.NewTicker(r.Interval)
	defer ticker.Stop()
	hour := r.hour()
	merge(hour) // of a recorder that was stopped
	for following.Err() == nil {
		toHour := time.NewTimer(max(hour.Add(time.Hour).Sub(r.now()), time.Second))
		select {
		case <-ticker.C:
		case <-toHour.C:
		case <-following.Done():
		}
		toHour.Stop()
		r.flush(hour)
		if next := r.hour(); !next.Equal(hour) {
			hour = next
			merge(hour)
		}
	}
	group.Wait()
	r.flush(r.hour()) // what came while the stream ended
	if err := context.Cause(following); ctx.Err() == nil {
		return err
	}
	return nil
}

// beginner is an observer that tells when a stream begins.
type beginner interface {
	Follow(ctx context.Context, q observe.FlowQuery, began func(), each func(observe.Item) error) error
}

// follow follows the flows, again and again.
func (r *Recorder) follow(ctx context.Context, o observe.Observer) error {
	var events []string
	for _, e := range recorded {
		events = append(events, e.String())
	}
	// Known flows come first: they may have ended while nobody recorded them.
	q := observe.FlowQuery{Follow: true, Event: strings.Join(events, ","), Limit: "0", ServicesOnly: r.ServicesOnly}
	for succeeded, logged := false, false; ; {
		began := func() {
			r.began()
			if logged || !succeeded {
				r.Log.Info("recording flows", "directory", r.Dir, "name", r.Name)
			}
			succeeded, logged = true, false
		}
		var err error
		if b, ok := o.(beginner); ok {
			err = b.Follow(ctx, q, began, r.take)
		} else {
			began()
			err = o.Flows(ctx, q, r.take)
		}
		r.ended()
		if ctx.Err() != nil {
			return nil
		}
		var refused *observe.Error
		if errors.As(err, &refused) && refused.Status < 500 && refused.Status != http.StatusTooManyRequests && !succeeded {
			return err
		}
		if !logged {
			r.Log.Warn("cannot follow the flows; trying again", "error", err)
		}
		logged = true
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry):
		}
	}
}

// began and ended begin and end the span of time in which flows are followed.
func (r *Recorder) began() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since = r.now()
}

func (r *Recorder) ended() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endSpan(r.now())
	r.since = time.Time{}
}

func (r *Recorder) endSpan(at time.Time) {
	if !r.since.IsZero() && at.After(r.since) {
		r.pending.spans = append(r.pending.spans, span{r.since.UTC().Round(0), at.UTC().Round(0)})
	}
}

// take takes an item of a stream. If too many rows wait, it waits until they are written: the server reports what it leaves out
// meanwhile.
func (r *Recorder) take(i observe.Item) error {
	r.mu.Lock()
	switch {
	case i.Missed != nil && i.Missed.IsLoss():
		r.pending.miss(i.Missed, r.now().UTC())
	case i.Record != nil:
		r.add(i.Record)
	}
	full := len(r.pending.rows) >= r.rowsOfPart
	r.mu.Unlock()
	if full {
		r.flush(r.hour())
	}
	return nil
}

func (r *Recorder) add(x *flow.Record) {
	p := &r.pending
	at, known := p.index[x.ID]
	if x.Event == flow.Repeated { // its time is that of the repetition
		if known && x.Life != nil {
			p.rows[at].Repeated = int32(x.Life.Repeated)
		}
		return
	}
	if x.ID == "" || x.Time == nil || !known && r.over.has(x.ID) {
		return
	}
	if known {
		p.rows[at] = rowOf(x, p.pool)
		return
	}
	if p.index == nil {
		p.index, p.pool = make(map[string]int), make(pool)
	}
	next := rowOf(x, p.pool)
	next.ID = strings.Clone(next.ID)
	p.index[next.ID] = len(p.rows)
	p.rows = append(p.rows, next)
}

// miss adds to the gap of the same node and reason.
func (p *pending) miss(m *observe.Missed, now time.Time) {
	for i := range p.gaps {
		if g := &p.gaps[i]; g.Node == m.Node && g.Why == m.Why {
			g.Missed, g.To = g.Missed+m.Missed, now
			return
		}
	}
	p.gaps = append(p.gaps, gap{span{now, now}, m.Node, m.Missed, m.Why})
}

// flush writes the rows that wait into a part of the hour.
func (r *Recorder) flush(hour time.Time) {
	r.writing.Lock()
	defer r.writing.Unlock()
	now := r.now()
	r.mu.Lock()
	r.endSpan(now)
	if !r.since.IsZero() {
		r.since = now
	}
	p := r.pending
	r.pending = pending{}
	r.mu.Unlock()
	if len(p.rows)+len(p.spans)+len(p.gaps) == 0 {
		return
	}
	for i := range p.rows {
		p.rows[i].Recorded = now.UnixMicro()
	}
	slices.SortFunc(p.rows, func(a, b row) int { return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.ID, b.ID)) })
	if err := r.writePart(hour, &p); err != nil {
		r.Log.Error("cannot write flows: they are lost", "flows", len(p.rows), "error", err)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.pending.miss(&observe.Missed{Missed: uint64(len(p.rows)), Why: observe.MissedNotWritten}, now.UTC())
		return
	}
	r.mu.Lock()
	for i := range p.rows {
		if p.rows[i].Over {
			r.over.add(p.rows[i].ID)
		}
	}
	r.mu.Unlock()
	if err := r.bound(0); err != nil {
		r.Log.Error("cannot remove old files", "error", err)
	}
}

func (r *Recorder) writePart(hour time.Time, p *pending) error {
	files, err := r.own()
	if err != nil {
		return err
	}
	part := 1
	for _, f := range files {
		if f.hour.Equal(hour) {
			part = max(part, f.part+1)
		}
	}
	w, err := newWriter(filepath.Join(r.Dir, nameOf(hour, r.Name, part)))
	if err != nil {
		return err
	}
	if err := w.write(p.rows); err != nil {
		w.abort()
		return err
	}
	c := coverage{spans: p.spans, gaps: p.gaps}
	nodes := make(map[string]bool)
	for i := range p.rows {
		nodes[p.rows[i].Node] = true
	}
	c.nodes = slices.Sorted(maps.Keys(nodes))
	return w.commit(c)
}

// bound removes the oldest files, so that others of a size fit. It keeps the newest file.
func (r *Recorder) bound(reserve int64) error {
	files, err := r.own()
	if err != nil {
		return err
	}
	total := reserve
	for _, f := range files {
		total += f.size
	}
	for len(files) > 1 {
		f := files[0]
		old := r.MaxAge > 0 && f.hour.Add(time.Hour).Before(r.now().Add(-r.MaxAge))
		if !old && (r.MaxSize == 0 || total <= r.MaxSize) {
			return nil
		}
		if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		total, files = total-f.size, files[1:]
	}
	return nil
}
