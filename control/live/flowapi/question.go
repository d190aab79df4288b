package flowapi

import (
	"errors"
	"net/http"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// handler serves a request. One that returns an error has written nothing.
type handler func(*server, http.ResponseWriter, *http.Request) error

// answering returns the handler of requests without parameters.
func answering[T any](get func(*server, *http.Request) (T, error)) handler {
	return func(s *server, w http.ResponseWriter, r *http.Request) error {
		if err := noParameters(r); err != nil {
			return err
		}
		v, err := get(s, r)
		if err != nil {
			return err
		}
		return s.answer(w, http.StatusOK, v)
	}
}

func (s *server) flow(r *http.Request) (*flow.Record, error) {
	return s.Observer.Flow(r.Context(), r.PathValue("id"))
}

func (s *server) tables(r *http.Request) (observe.TableList, error) {
	tables, err := s.Observer.Tables(r.Context())
	return observe.TableList{Tables: notNull(tables)}, err
}

func (s *server) tableObjects(w http.ResponseWriter, r *http.Request) error {
	v, err := parameters(r)
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
	return s.answer(w, http.StatusOK, o)
}

func (s *server) stats(r *http.Request) (observe.StatsList, error) {
	nodes, err := s.Observer.Stats(r.Context())
	return observe.StatsList{Nodes: notNull(nodes)}, err
}

func (s *server) status(r *http.Request) (observe.StatusList, error) {
	nodes, err := s.Observer.Status(r.Context())
	return observe.StatusList{Nodes: notNull(nodes)}, err
}

func (s *server) services(w http.ResponseWriter, r *http.Request) error {
	v, err := parameters(r)
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
func (s *server) writeServices(w http.ResponseWriter, r *http.Request, q observe.ServiceQuery) error {
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

func (s *server) getTopology(w http.ResponseWriter, r *http.Request) error {
	if err := noParameters(r); err != nil {
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

func (s *server) explain(w http.ResponseWriter, r *http.Request) error {
	var q observe.Question
	if err := s.readQuestion(w, r, &q); err != nil {
		return err
	}
	record, err := s.Observer.Explain(r.Context(), q)
	if err != nil {
		return err
	}
	return s.answer(w, http.StatusOK, record)
}

var errNoDoctor = &observe.Error{Status: http.StatusNotFound, Message: "findings are not supported here"}

func (s *server) manifest(r *http.Request) (*observe.Manifest, error) {
	if s.Doctor == nil {
		return nil, &observe.Error{Status: http.StatusNotFound, Message: "the objects of the cluster are not known here: use kubectl get service,endpointslice -o yaml"}
	}
	return s.Doctor.Manifest(r.Context(), r.PathValue("namespace"), r.PathValue("name"))
}

func (s *server) findings(r *http.Request) (any, error) {
	if s.Doctor == nil {
		return nil, errNoDoctor
	}
	return s.Doctor.Findings(r.Context())
}

func (s *server) why(w http.ResponseWriter, r *http.Request) error {
	var q diagnose.Question
	if err := s.readQuestion(w, r, &q); err != nil {
		return err
	}
	if s.Doctor == nil {
		return errNoDoctor
	}
	answer, err := s.Doctor.Why(r.Context(), q)
	var wrong *diagnose.QuestionError
	if errors.As(err, &wrong) {
		return &observe.Error{Status: http.StatusBadRequest, Field: wrong.Field, Message: wrong.Err.Error()}
	}
	if err != nil {
		return err
	}
	return s.answer(w, http.StatusOK, answer)
}

func (s *server) request(w http.ResponseWriter, r *http.Request) error {
	var q observe.Request
	if err := s.readQuestion(w, r, &q); err != nil {
		return err
	}
	if s.Requester == nil {
		return &observe.Error{Status: http.StatusNotFound, Message: "sending requests is not supported here: only labs do"}
	}
	release, err := take(s.streams, r) // it may take as long as a flow is held
	if err != nil {
		return err
	}
	defer release()
	answer, err := s.Requester.Request(r.Context(), q)
	if err != nil {
		return err
	}
	return s.answer(w, http.StatusOK, answer)
}

func (s *server) description(w http.ResponseWriter, r *http.Request) error {
	if err := noParameters(r); err != nil {
		return err
	}
	s.write(w, "application/yaml", http.StatusOK, Description)
	return nil
}

// notNull makes JSON's empty list of nil.
func notNull[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

// readQuestion reads the request body; no parameters are allowed.
func (s *server) readQuestion(w http.ResponseWriter, r *http.Request, v any) error {
	if err := noParameters(r); err != nil {
		return err
	}
	return s.readBody(w, r, v)
}
