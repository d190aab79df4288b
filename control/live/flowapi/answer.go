package flowapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// encode encodes the value as JSON on one line, with the line's end. It is never part of HTML, so
// HTML escapes are off.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// Answer writes a JSON response.
func (s *API) Answer(w http.ResponseWriter, status int, v any) error {
	b, err := encode(v)
	if err != nil {
		return fmt.Errorf("cannot encode the response as JSON: %w", err)
	}
	s.write(w, "application/json", status, b)
	return nil
}

func (s *API) write(w http.ResponseWriter, contentType string, status int, b []byte) {
	r := response{API: s, w: w, contentType: contentType, status: status, until: time.Now().Add(s.Timing.Answer)}
	_ = r.write(b) // a client that no longer reads needs no error
}

// Fail writes an error.
func (s *API) Fail(w http.ResponseWriter, r *http.Request, err error) {
	var e *observe.Error
	switch {
	case errors.As(err, &e):
	case r.Context().Err() != nil: // the client is gone, or the server stops
		e = &observe.Error{Status: http.StatusServiceUnavailable, Message: "the server is stopping: try again"}
	case errors.As(err, new(*observe.SilentError)): // the relay has logged it
		e = &observe.Error{Status: http.StatusServiceUnavailable, Message: err.Error()}
	default:
		s.Log.Error("flow API: request failed", "method", r.Method, "path", r.URL.Path, "error", err)
		e = &observe.Error{Status: http.StatusInternalServerError, Message: err.Error()}
	}
	switch e.Status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "5")
	}
	_ = s.Answer(w, e.Status, e) // an Error can always be encoded
}

// NotFound is the error of a path that does not exist.
func NotFound(format string, a ...any) error {
	return &observe.Error{Status: http.StatusNotFound, Message: fmt.Sprintf(format, a...)}
}

// pieceSize is how much of a long response is written at a time.
const pieceSize = 32 << 10

// response is a response that is written piece by piece. Its head is sent with the first one: before, an error response is
// still possible.
type response struct {
	*API
	w           http.ResponseWriter
	contentType string
	status      int
	until       time.Time // for the whole of it: a slow client releases its share then; zero: it is a stream
	began       bool
}

func (o *response) begin() {
	if !o.began {
		o.began = true
		o.w.Header().Set("Content-Type", o.contentType)
		o.w.WriteHeader(o.status)
	}
}

// setDeadline bounds the next write. Recorders of tests have no deadlines.
func (o *response) setDeadline() {
	deadline := time.Now().Add(o.Timing.Write)
	if !o.until.IsZero() && o.until.Before(deadline) {
		deadline = o.until
	}
	_ = http.NewResponseController(o.w).SetWriteDeadline(deadline)
}

func (o *response) write(b []byte) (err error) {
	o.begin()
	for n := 0; len(b) > 0 && err == nil; b = b[n:] {
		o.setDeadline()
		n, err = o.w.Write(b[:min(len(b), pieceSize)])
	}
	return err
}

// end ends the response with the error of its content. If its head is sent already, the reader sees that it is not
// complete.
func (o *response) end(r *http.Request, err error, aborted string, about ...any) error {
	switch {
	case err == nil || !o.began:
		return err
	case r.Context().Err() == nil:
		o.Log.Warn(aborted, append(about, "reader", r.RemoteAddr, "error", err)...)
	}
	panic(http.ErrAbortHandler)
}

// pieces is a JSON response that is put together piece by piece.
type pieces struct {
	response
	b bytes.Buffer
}

// text adds JSON as it is.
func (p *pieces) text(json ...string) {
	for _, t := range json {
		p.b.WriteString(t)
	}
}

// value adds a value, and writes if there is enough for a piece.
func (p *pieces) value(v any) error {
	e := json.NewEncoder(&p.b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	p.b.Truncate(p.b.Len() - 1) // the line's end
	if p.b.Len() < pieceSize {
		return nil
	}
	return p.flush()
}

// flush writes what there is.
func (p *pieces) flush() error {
	err := p.write(p.b.Bytes())
	p.b.Reset()
	if p.b.Cap() > 4*pieceSize { // one value was long
		p.b = bytes.Buffer{}
	}
	return err
}
