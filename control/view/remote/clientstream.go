package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// errSilent ends a stream without records or keepalives.
var errSilent = errors.New("timeout: no records and no keepalives received")

// Flows requests flows. A stream that ends early is an error.
func (c *Client) Flows(ctx context.Context, q observe.FlowQuery, each func(observe.Item) error) error {
	return c.Follow(ctx, q, func() {}, each)
}

// Follow is Flows, and calls began when the server has begun to answer: no event from then on is missing in a stream.
func (c *Client) Follow(ctx context.Context, q observe.FlowQuery, began func(), each func(observe.Item) error) error {
	caller := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	answer, err := c.request(ctx, http.MethodGet, []string{"flows"}, parameters(q), nil)
	if err == nil {
		defer answer.Body.Close()
		began()
		body := io.Reader(answer.Body)
		if q.Follow {
			silent := time.AfterFunc(c.silence, func() { cancel(errSilent) })
			defer silent.Stop()
			body = &watched{body, silent, c.silence}
		}
		err = c.items(ctx, body, q.Follow, each)
	}
	if q.Follow && caller.Err() != nil {
		return nil
	}
	return err
}

// First returns the first flow of a stream of any observer. If the context ends before there is one, the error is its cause.
func First(ctx context.Context, o observe.Observer, q observe.FlowQuery) (first *flow.Record, err error) {
	found := errors.New("found")
	err = o.Flows(ctx, q, func(i observe.Item) error {
		if i.Record == nil {
			return nil
		}
		first = i.Record
		return found
	})
	switch {
	case first != nil:
		return first, nil
	case err != nil:
		return nil, err
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, errors.New("the stream of flows has ended")
}

// watched ends the stream if a read takes too long. What the reader of records does
// meanwhile does not count.
type watched struct {
	io.Reader
	silent  *time.Timer
	silence time.Duration
}

func (w *watched) Read(b []byte) (int, error) {
	w.silent.Reset(w.silence)
	defer w.silent.Stop()
	return w.Reader.Read(b)
}

// items reads lines until their end.
func (c *Client) items(ctx context.Context, body io.Reader, endless bool, each func(observe.Item) error) error {
	lines := json.NewDecoder(body)
	for {
		var line json.RawMessage
		err := lines.Decode(&line)
		switch {
		case errors.Is(err, io.EOF) && !endless:
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("%s: the stream ended: nfqproxy stopped, or a proxy on the way closed the connection", c.server)
		case errors.Is(err, io.ErrUnexpectedEOF):
			return c.explain(ctx, errors.New("the stream was aborted: nfqproxy stopped, or the reader was too slow"))
		case err != nil:
			return c.explain(ctx, fmt.Errorf("cannot read the stream: %w", err))
		}
		item, err := c.item(line)
		if err == nil {
			err = each(item)
		}
		if err != nil {
			return err
		}
	}
}

// line is any line: a record, or by its event a [MissedLine] or a [JoinedLine]. Streams are long: a line is decoded
// once, not first for its event.
type line struct {
	flow.Record
	Event  string       `json:"event"` // not only the record's
	Missed uint64       `json:"missed"`
	Why    string       `json:"why"`
	Flow   string       `json:"flow"`
	Other  *flow.Record `json:"other"`
}

// item parses a line.
func (c *Client) item(text []byte) (observe.Item, error) {
	l := new(line)
	err := json.Unmarshal(text, l)
	if err != nil { // that of another version may have other types
		var only struct{ Version int }
		if json.Unmarshal(text, &only) == nil {
			if wrong := c.checkVersion(only.Version); wrong != nil {
				return observe.Item{}, wrong
			}
		}
		return observe.Item{}, fmt.Errorf("%s: invalid flow record: %w", c.server, err)
	}
	if err := c.checkVersion(l.Version); err != nil {
		return observe.Item{}, err
	}
	switch {
	case l.Event == observe.EventMissed:
		return observe.Item{Missed: &observe.Missed{Node: l.Node, Missed: l.Missed, Why: l.Why}}, nil
	case l.Event == observe.EventJoined && l.Other != nil:
		return observe.Item{Joined: &observe.Joined{Flow: l.Flow, Other: l.Other}}, nil
	}
	if l.Event != "" {
		_ = l.Record.Event.UnmarshalText([]byte(l.Event)) // never fails
	}
	if bytes.IndexByte(text, '\n') >= 0 { // of no server of ours: it does not fit in a line
		text = nil
	}
	return observe.Item{Record: &l.Record, Encoded: text}, nil
}
