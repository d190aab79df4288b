package flow

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Log writes records as JSON lines without ever holding up whoever makes them:
// what the writer cannot take in time is counted and left out.
type Log struct {
	records chan *Record
	lost    atomic.Uint64
	done    chan struct{}
	err     error // of writing; valid after done
	failed  func(error)

	mu     sync.RWMutex // held for reading while sending, for writing while closing
	closed bool
}

// logBuffer is how many records wait for the writer at most.
const logBuffer = 8192

// closePatience is how long Close waits for a writer that takes nothing.
const closePatience = 2 * time.Second

// NewLog starts a log. [Log.Close] has to be called to write out what is left.
// failed is called once, if writing fails; what comes later is lost.
func NewLog(w io.Writer, failed func(error)) *Log {
	l := &Log{records: make(chan *Record, logBuffer), done: make(chan struct{}), failed: failed}
	go l.write(w)
	return l
}

// Flow logs a record, which it owns from then on. It never blocks.
func (l *Log) Flow(r *Record) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		l.lost.Add(1)
		return
	}
	select {
	case l.records <- r:
	default:
		l.lost.Add(1)
	}
}

// Lost is how many records were left out.
func (l *Log) Lost() uint64 { return l.lost.Load() }

// Close writes what is left and returns the first error of writing. A writer that
// takes nothing any more is left behind after a while.
func (l *Log) Close() error {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.records)
	}
	l.mu.Unlock()
	select {
	case <-l.done:
		return l.err
	case <-time.After(closePatience):
		return fmt.Errorf("the reader takes no more: %d records are lost", l.Lost()+uint64(len(l.records)))
	}
}

// write encodes record by record and flushes whenever none is waiting, so that a
// reader sees each at once.
func (l *Log) write(w io.Writer) {
	defer close(l.done)
	b := bufio.NewWriter(w)
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false) // "->" in rules is to stay readable
	for r := range l.records {
		if l.err != nil {
			l.lost.Add(1)
			continue
		}
		if l.err = enc.Encode(r); l.err == nil && len(l.records) == 0 {
			l.err = b.Flush()
		}
		if l.err != nil {
			l.failed(l.err)
		}
	}
	if l.err == nil {
		l.err = b.Flush()
	}
}
