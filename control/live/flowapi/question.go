package flowapi

import (
	"net/http"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Handler serves a request. One that returns an error has written nothing: the API responds with it.
type Handler func(*API, http.ResponseWriter, *http.Request) error

// Answering returns the handler of requests without parameters.
func Answering[T any](get func(*API, *http.Request) (T, error)) Handler {
	return func(s *API, w http.ResponseWriter, r *http.Request) error {
		if err := NoParameters(r); err != nil {
			return err
		}
		v, err := get(s, r)
		if err != nil {
			return err
		}
		return s.Answer(w, http.StatusOK, v)
	}
}

func (s *API) flow(r *http.Request) (*flow.Record, error) {
	return s.Observer.Flow(r.Context(), r.PathValue("id"))
}

func (s *API) tables(r *http.Request) (observe.TableList, error) {
	tables, err := s.Observer.Tables(r.Context())
	return observe.TableList{Tables: NotNull(tables)}, err
}

func (s *API) tableObjects(w http.ResponseWriter, r *http.Request) error {
	v, err := Parameters(r)
	if err != nil {
		return err
	}
	q, err := observe.ObjectsQueryOf(v)
	if err != nil {
		return err
	}
	if _, _, err := q.Parse(); err != nil {
		return err
	}
	o, err := s.Observer.Objects(r.Context(), q)
	if err != nil {
		return err
	}
	return s.Answer(w, http.StatusOK, o)
}

func (s *API) stats(r *http.Request) (observe.StatsList, error) {
	nodes, err := s.Observer.Stats(r.Context())
	return observe.StatsList{Nodes: NotNull(nodes)}, err
}

func (s *API) status(r *http.Request) (observe.StatusList, error) {
	nodes, err := s.Observer.Status(r.Context())
	return observe.StatusList{Nodes: NotNull(nodes)}, err
}

func (s *API) services(w http.ResponseWriter, r *http.Request) error {
	v, err := Parameters(r)
	if err != nil {
		return err
	}
	q, err := observe.ServiceQueryOf(v)
	if err == nil {
		_, err = q.Parse()
	}
	if err != nil {
		return err
	}
	return s.writeServices(w, r, q)
}

// writeServices writes an [observe.Services], one service after the other.
func (s *API) writeServices(w http.ResponseWriter, r *http.Request, q observe.ServiceQuery) error {
	const list = `"services":[`
	out := s.pieces(w)
	var answer observe.Services // without the services
	// around is what is before and behind the services.
	around := func() (before, behind string, err error) {
		b, err := encode(&answer)
		// In a text of JSON the quotes are escaped: this can only be the field.
		before, behind, _ = strings.Cut(string(b), list)
		return before, behind, err
	}
	separator := ""
	next, err := observe.EachService(r.Context(), s.Observer, q, func(head *observe.Services) error {
		answer = *head
		answer.Services = []observe.Service{}
		before, _, err := around()
		out.text(before, list)
		return err
	}, func(service *observe.Service) error {
		out.text(separator)
		separator = ","
		return out.value(service)
	})
	if err == nil {
		answer.Next = next
		_, behind, _ := around()
		out.text(behind)
		err = out.write()
	}
	switch {
	case err == nil:
		return nil
	case !out.began:
		return err
	case r.Context().Err() == nil:
		s.Log.Warn("response aborted", "path", r.URL.Path, "reader", r.RemoteAddr, "error", err)
	}
	panic(http.ErrAbortHandler) // the reader sees that it is not the end
}

func (s *API) getTopology(w http.ResponseWriter, r *http.Request) error {
	if err := NoParameters(r); err != nil {
		return err
	}
	content, done, err := s.topology.get(r.Context(), func() ([]byte, error) {
		topology, err := s.Observer.Topology(r.Context())
		if err != nil {
			return nil, err
		}
		return encode(topology)
	})
	if err != nil {
		return err
	}
	defer done()
	s.write(w, "application/json", http.StatusOK, content)
	return nil
}

func (s *API) explain(w http.ResponseWriter, r *http.Request) error {
	var q observe.Question
	if err := s.ReadQuestion(w, r, &q); err != nil {
		return err
	}
	record, err := s.Observer.Explain(r.Context(), q)
	if err != nil {
		return err
	}
	return s.Answer(w, http.StatusOK, record)
}

func (s *API) description(w http.ResponseWriter, r *http.Request) error {
	if err := NoParameters(r); err != nil {
		return err
	}
	s.write(w, "application/yaml", http.StatusOK, Description)
	return nil
}

// NotNull makes JSON's empty list of nil.
func NotNull[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

// ReadQuestion reads the request body; no parameters are allowed.
func (s *API) ReadQuestion(w http.ResponseWriter, r *http.Request, v any) error {
	if err := NoParameters(r); err != nil {
		return err
	}
	return s.readBody(w, r, v)
}
