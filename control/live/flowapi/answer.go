package flowapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
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

// Parameters reads the parameters of the URL.
func Parameters(r *http.Request) (url.Values, error) {
	v, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, &observe.Error{Status: http.StatusBadRequest, Message: "cannot parse the query parameters: " + err.Error()}
	}
	return v, nil
}

// NoParameters refuses all.
func NoParameters(r *http.Request) error {
	v, err := Parameters(r)
	if err != nil {
		return err
	}
	return observe.NoValues(v)
}
