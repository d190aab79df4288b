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
	return func(s *API, w http.ResponseWriter, r *http.Request) error {
		q, err := parameters(r, query)
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

// AnsweringBody returns the handler of requests with a body and without parameters.
func AnsweringBody[Q, T any](get func(*API, *http.Request, Q) (T, error)) Handler {
	return func(s *API, w http.ResponseWriter, r *http.Request) error {
		var q Q
		if err := s.ReadQuestion(w, r, &q); err != nil {
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
