package flowapi

import (
	"net/http"
	"net/url"

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
