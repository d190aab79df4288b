package flowapi

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// format is how a stream is written.
type format struct {
	contentType string
	keepAlive   string // keeps the connection open
	encode      func(observe.Item) ([]byte, error)
}

var (
	jsonLines    = format{"application/x-ndjson", "\n", encodeLine}
	serverEvents = format{"text/event-stream", ":\n\n", encodeEvent}
)

// formatOf returns server-sent events if the client accepts them explicitly.
func formatOf(r *http.Request) format {
	for _, accept := range r.Header.Values("Accept") {
		for kind := range strings.SplitSeq(accept, ",") {
			kind, _, _ = strings.Cut(kind, ";")
			if strings.EqualFold(strings.TrimSpace(kind), serverEvents.contentType) {
				return serverEvents
			}
		}
	}
	return jsonLines
}

func encodeLine(i observe.Item) ([]byte, error) {
	switch {
	case i.Missed != nil:
		return encode(observe.MissedLine{Version: flow.Version, Event: observe.EventMissed, Missed: *i.Missed})
	case i.Joined != nil:
		return encode(observe.JoinedLine{Version: flow.Version, Event: observe.EventJoined, Joined: *i.Joined})
	}
	return encodeRecord(i)
}

// encodeRecord passes on a record that comes from another server, and was not changed.
func encodeRecord(i observe.Item) ([]byte, error) {
	if i.Encoded != nil {
		return append(i.Encoded[:len(i.Encoded):len(i.Encoded)], '\n'), nil
	}
	return encode(i.Record)
}

func encodeEvent(i observe.Item) ([]byte, error) {
	var b []byte
	var err error
	event := "flow"
	switch {
	case i.Missed != nil:
		event = observe.EventMissed
		b, err = encode(i.Missed)
	case i.Joined != nil:
		event = observe.EventJoined
		b, err = encode(i.Joined)
	default:
		b, err = encodeRecord(i)
	}
	return append(append([]byte("event: "+event+"\ndata: "), b...), '\n'), err
}

// flows lists flows or streams their events.
func (s *API) flows(w http.ResponseWriter, r *http.Request) error {
	q, err := parameters(r, observe.QueryOf[observe.FlowQuery])
	if err != nil {
		return err
	}
	f := formatOf(r)
	w.Header().Set("Vary", "Accept")
	if r.Method == http.MethodHead { // else the observer parses the query
		if _, err := q.Parse(time.Now()); err != nil {
			return err
		}
		w.Header().Set("Content-Type", f.contentType)
		return nil
	}
	release, err := Take(s.streams, r)
	if err != nil {
		return err
	}
	defer release()
	return s.stream(w, r, q, f)
}

// The buffer for a slow reader, in encoded items and in bytes; beyond it the observer waits. The
// record of a flow to a service with many endpoints is long. One item is always allowed.
const (
	waiting      = 64
	waitingBytes = 256 << 10
)

// stream writes the items of the observer, which runs concurrently: if no item waits, the stream is
// flushed.
func (s *API) stream(w http.ResponseWriter, r *http.Request, q observe.FlowQuery, f format) error {
	ctx, cancel := context.WithCancel(r.Context())
	items, end := make(chan []byte, waiting), make(chan error, 1)
	room := semaphore.NewWeighted(waitingBytes)
	go func() {
		defer close(items)
		// This goroutine is not net/http's, which recovers panics: a bug in the observation of flows
		// must not end the program that serves them.
		defer func() {
			if p := recover(); p != nil {
				s.Log.Error("panic in a stream of flows", "panic", p, "stack", string(debug.Stack()))
				end <- fmt.Errorf("internal error: %v", p)
			}
		}()
		end <- s.Observer.Flows(ctx, q, func(i observe.Item) error {
			b, err := f.encode(i)
			if err != nil {
				return err
			}
			if err := room.Acquire(ctx, weight(b)); err != nil {
				return err
			}
			select {
			case items <- b:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	defer func() { // the observer does not outlive the request
		cancel()
		for range items {
		}
	}()
	alive := time.NewTimer(s.Timing.FirstSign)
	defer alive.Stop()
	if !q.Follow {
		alive.Stop()
	}
	out := streamWriter{response{API: s, w: w, contentType: f.contentType, status: http.StatusOK}, func(b []byte) { room.Release(weight(b)) }}
	err := out.copy(items, alive, []byte(f.keepAlive))
	if err == nil {
		err = <-end
	}
	if err == nil && !q.Follow {
		err = ctx.Err() // an incomplete list is an error
	}
	if err == nil {
		out.begin()
	}
	return out.end(r, err, "stream of flows aborted")
}

// weight is how much of waitingBytes an item takes.
func weight(b []byte) int64 { return int64(min(len(b), waitingBytes)) }

// streamWriter writes a stream.
type streamWriter struct {
	response
	written func([]byte) // called for each written item
}

// copy writes items until there are no more, or the client does not read.
func (o *streamWriter) copy(items <-chan []byte, alive *time.Timer, keepAlive []byte) error {
	for {
		var b []byte
		more, item := true, true
		select {
		case b, more = <-items:
		default:
			if err := o.flush(); err != nil {
				return err
			}
			select {
			case b, more = <-items:
			case <-alive.C:
				b, item = keepAlive, false
				alive.Reset(o.Timing.KeepAlive)
			}
		}
		if !more {
			return o.flush() // what came counts, however it ends
		}
		if err := o.write(b); err != nil {
			return err
		}
		if item {
			o.written(b)
		}
	}
}

func (o *streamWriter) flush() error {
	if !o.began {
		return nil
	}
	o.setDeadline()
	return http.NewResponseController(o.w).Flush()
}
