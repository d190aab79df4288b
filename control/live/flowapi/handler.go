package flowapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"time"

	strict "sigs.k8s.io/json"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// Handler serves a request. One that returns an error has written nothing: the API responds with it.
type Handler func(*API, http.ResponseWriter, *http.Request) error

// Answering returns the handler of requests without parameters.
func Answering[T any](get func(*API, *http.Request) (T, error)) Handler {
	return AnsweringQuery(observe.QueryOf[struct{}], func(s *API, r *http.Request, _ struct{}) (T, error) { return get(s, r) })
}

// AnsweringQuery returns the handler of requests with parameters, which are read with query.
func AnsweringQuery[Q, T any](query func(url.Values) (Q, error), get func(*API, *http.Request, Q) (T, error)) Handler {
	return answering(func(_ *API, _ http.ResponseWriter, r *http.Request) (Q, error) { return parameters(r, query) }, get)
}

// AnsweringBody returns the handler of requests with a body and without parameters.
func AnsweringBody[Q, T any](get func(*API, *http.Request, Q) (T, error)) Handler {
	return answering(func(s *API, w http.ResponseWriter, r *http.Request) (q Q, err error) {
		err = s.ReadQuestion(w, r, &q)
		return q, err
	}, get)
}

func answering[Q, T any](read func(*API, http.ResponseWriter, *http.Request) (Q, error), get func(*API, *http.Request, Q) (T, error)) Handler {
	return func(s *API, w http.ResponseWriter, r *http.Request) error {
		q, err := read(s, w, r)
		if err != nil {
			return err
		}
		v, err := get(s, r, q)
		if err != nil {
			return err
		}
		return s.Answer(w, http.StatusOK, v)
	}
}

// parameters reads the parameters of the URL.
func parameters[Q any](r *http.Request, query func(url.Values) (Q, error)) (q Q, err error) {
	v, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return q, &observe.Error{Status: http.StatusBadRequest, Message: "cannot parse the query parameters: " + err.Error()}
	}
	return query(v)
}

// NoParameters refuses all.
func NoParameters(r *http.Request) error {
	_, err := parameters(r, observe.QueryOf[struct{}])
	return err
}

// maxBody is the maximum size of a body, in bytes. Requests have some hundred.
const maxBody = 64 << 10

// ReadQuestion reads the request body, a JSON object; no parameters are allowed. The content type is required: pages of
// other sites can send other types without a preflight request (CSRF).
func (s *API) ReadQuestion(w http.ResponseWriter, r *http.Request, v any) error {
	if err := NoParameters(r); err != nil {
		return err
	}
	contentType := r.Header.Get("Content-Type")
	if media, _, err := mime.ParseMediaType(contentType); err != nil || media != "application/json" {
		return &observe.Error{Status: http.StatusUnsupportedMediaType, Message: fmt.Sprintf("Content-Type %q: want application/json", contentType)}
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" {
		return &observe.Error{Status: http.StatusUnsupportedMediaType, Message: fmt.Sprintf("Content-Encoding %q: want none", encoding)}
	}
	// Without the deadline, a client that never sends the rest would keep the connection.
	// Recorders of tests have none.
	controller := http.NewResponseController(w)
	_ = controller.SetReadDeadline(time.Now().Add(s.Timing.Read))
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		return &observe.Error{Status: http.StatusRequestEntityTooLarge, Message: fmt.Sprintf("the body exceeds the limit of %d bytes", maxBody)}
	case err != nil:
		return &observe.Error{Status: http.StatusBadRequest, Message: "cannot read the body: " + err.Error()}
	}
	_ = controller.SetReadDeadline(time.Time{})
	return decode(b, v)
}

// decode reads a JSON object strictly: field names are case-sensitive, and each must be known and
// given once. Ignoring a misspelt field would change the request.
func decode(b []byte, v any) error {
	if string(bytes.TrimSpace(b)) == "null" { // which would do nothing
		return badBody("", "the body is null: want a JSON object")
	}
	unwanted, err := strict.UnmarshalStrict(b, v)
	var kind *json.UnmarshalTypeError
	var own *observe.Error
	switch {
	case errors.As(err, &own): // of a type that reads itself
		return own
	case errors.As(err, &kind) && kind.Field == "":
		return badBody("", "the body is a JSON %s: want an object", kind.Value)
	case errors.As(err, &kind):
		field := strings.TrimPrefix(kind.Field, "Question.") // embedded, which JSON does not know
		return badBody(field, "%s is a JSON %s: want %s", field, kind.Value, wanted(kind.Type.Kind()))
	case err != nil:
		return badBody("", "invalid JSON in the body: %v", err)
	case len(unwanted) == 0:
		return nil
	}
	var field string
	if f, ok := errors.AsType[strict.FieldError](unwanted[0]); ok {
		field = f.FieldPath()
	}
	return badBody(field, "%v", unwanted[0])
}

// wanted names the JSON type of a field.
func wanted(k reflect.Kind) string {
	switch k {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Struct:
		return "an object"
	case reflect.Slice:
		return "a list"
	case reflect.Uint64:
		return "an integer, 0 or more"
	}
	return "an integer"
}

func badBody(field, format string, a ...any) error {
	return &observe.Error{Status: http.StatusBadRequest, Field: field, Message: fmt.Sprintf(format, a...)}
}

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
	case errors.Is(err, observe.ErrSilent): // the relay has logged it
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
