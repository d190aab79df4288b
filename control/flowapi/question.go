package flowapi

import (
	"net/http"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

func (s *server) flow(w http.ResponseWriter, r *http.Request) error {
	if err := noParameters(r); err != nil {
		return err
	}
	record, err := s.Observer.Flow(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	return s.answer(w, http.StatusOK, record)
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
	services, err := s.Observer.Services(r.Context(), q)
	if err != nil {
		return err
	}
	return s.answer(w, http.StatusOK, services)
}

func (s *server) table(w http.ResponseWriter, r *http.Request) error {
	if err := noParameters(r); err != nil {
		return err
	}
	tables, err := s.Observer.Tables(r.Context())
	if err != nil {
		return err
	}
	return s.answer(w, http.StatusOK, observe.TableList{Tables: notNull(tables)})
}

func (s *server) stats(w http.ResponseWriter, r *http.Request) error {
	if err := noParameters(r); err != nil {
		return err
	}
	nodes, err := s.Observer.Stats(r.Context())
	if err != nil {
		return err
	}
	return s.answer(w, http.StatusOK, observe.StatsList{Nodes: notNull(nodes)})
}

func (s *server) topology(w http.ResponseWriter, r *http.Request) error {
	if err := noParameters(r); err != nil {
		return err
	}
	topology, err := s.Observer.Topology(r.Context())
	if err != nil {
		return err
	}
	return s.answer(w, http.StatusOK, topology)
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

// readQuestion reads what is asked from a body where there are no parameters.
func (s *server) readQuestion(w http.ResponseWriter, r *http.Request, v any) error {
	if err := noParameters(r); err != nil {
		return err
	}
	return s.readBody(w, r, v)
}
