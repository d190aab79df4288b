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
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = writeUntil(w, b, s.Timing.Write, time.Now().Add(s.Timing.Answer)) // a client that no longer reads needs no error
}

// setWriteDeadline bounds the writes from here on. Recorders of tests have no deadlines.
func (s *API) setWriteDeadline(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.Timing.Write))
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

// pieceSize is how much of a long response is buffered before it is written.
const pieceSize = 32 << 10

// pieces writes one JSON response piece by piece. The head is sent with the first: before, an
// error response is still possible.
type pieces struct {
	*API
	w     http.ResponseWriter
	until time.Time // for the whole response: a slow client releases its share then
	b     bytes.Buffer
	began bool
}

func (s *API) pieces(w http.ResponseWriter) *pieces {
	return &pieces{API: s, w: w, until: time.Now().Add(s.Timing.Answer)}
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
	return p.write()
}

// write writes what there is.
func (p *pieces) write() error {
	if !p.began {
		p.began = true
		p.w.Header().Set("Content-Type", "application/json")
		p.w.WriteHeader(http.StatusOK)
	}
	err := writeUntil(p.w, p.b.Bytes(), p.Timing.Write, p.until)
	p.b.Reset()
	if p.b.Cap() > 4*pieceSize { // one value was long
		p.b = bytes.Buffer{}
	}
	return err
}

// writeUntil writes in pieces, each of which may take timeout, and the whole until then.
// Recorders of tests have no deadlines.
func writeUntil(w http.ResponseWriter, b []byte, timeout time.Duration, until time.Time) (err error) {
	c := http.NewResponseController(w)
	for len(b) > 0 && err == nil {
		deadline := time.Now().Add(timeout)
		if until.Before(deadline) {
			deadline = until
		}
		_ = c.SetWriteDeadline(deadline)
		var n int
		n, err = w.Write(b[:min(len(b), pieceSize)])
		b = b[n:]
	}
	return err
}
