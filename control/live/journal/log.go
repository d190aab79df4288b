package journal

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// LogConfig configures a log.
type LogConfig struct {
	Names flow.Names // of sources and endpoints
	Steps bool       // with the walk through kube-proxy's chains
	// Failed is called once, if writing fails; later records are lost.
	Failed func(error)
}

// Log writes a record for each decision of a journal, as JSON lines. Records that a slow writer
// does not take before the journal evicts them are counted and left out.
type Log struct {
	config LogConfig
	reader *Reader
	lost   atomic.Uint64
	taken  atomic.Uint64 // records that the writer, or its buffer, took
	stop   context.CancelFunc
	done   chan struct{}
	failed atomic.Pointer[error] // of writing
}

// closeTimeout is how long Close waits for a writer that accepts nothing.
const closeTimeout = 10 * time.Second

// NewLog starts a log of all decisions from now on.
func (j *Journal) NewLog(w io.Writer, c LogConfig) *Log {
	ctx, stop := context.WithCancel(context.Background())
	l := &Log{config: c, reader: j.NewReader(), stop: stop, done: make(chan struct{})}
	go l.write(ctx, w)
	return l
}

// Lost returns the number of records that were left out.
func (l *Log) Lost() uint64 { return l.lost.Load() }

// Err returns the first write error, after which the log gets no more records; nil: none yet.
func (l *Log) Err() error {
	if err := l.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// Close writes the records so far and returns the first write error. It waits as long as the writer takes records, but
// not forever for a blocked one.
func (l *Log) Close() error {
	l.stop()
	for {
		before := l.taken.Load()
		select {
		case <-l.done:
			return l.Err()
		case <-time.After(closeTimeout):
		}
		if l.taken.Load() == before {
			return fmt.Errorf("the reader of the flow log is blocked: %d records are lost, and those still waiting", l.Lost())
		}
	}
}

// write encodes record by record and flushes whenever none is waiting, so that a reader
// sees each at once.
func (l *Log) write(ctx context.Context, w io.Writer) {
	defer close(l.done)
	b := bufio.NewWriter(w)
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false) // "->" in rules is to stay readable
	entries := make([]Entry, 64)
	for stopping := false; !stopping; {
		l.reader.Wait(ctx)
		stopping = ctx.Err() != nil // one last time, then
		for n := len(entries); n == len(entries); {
			var missed uint64
			n, missed = l.reader.Read(entries, decisions)
			l.lost.Add(missed)
			l.encode(enc, entries[:n])
		}
		if l.Err() == nil {
			l.fail(b.Flush())
		}
	}
}

func (l *Log) encode(enc *json.Encoder, entries []Entry) {
	for i := range entries {
		if l.Err() != nil {
			l.lost.Add(1)
			continue
		}
		r := entries[i].Record(l.config.Names, l.config.Steps)
		r.Life = nil // it has hardly begun
		l.fail(enc.Encode(r))
		l.taken.Add(1)
	}
}

func (l *Log) fail(err error) {
	if err != nil {
		l.failed.Store(&err)
		l.config.Failed(err)
	}
}

// decisions matches the events that are decisions of a worker.
func decisions(_ *flow.Flow, _ flow.State, e flow.Event) bool {
	return e.IsDecision() || e == flow.Repeated
}
