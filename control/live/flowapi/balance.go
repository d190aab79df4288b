package flowapi

import (
	"net/http"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// balancing returns the Balancing, if there is one.
func (s *server) balancing() (observe.Balancing, error) {
	if s.Balancing == nil {
		return nil, notFound("balancing algorithms cannot be switched on this server")
	}
	return s.Balancing, nil
}

func (s *server) algorithms(r *http.Request) (*observe.Algorithms, error) {
	b, err := s.balancing()
	if err != nil {
		return nil, err
	}
	return b.Algorithms(r.Context())
}

func (s *server) shadows(w http.ResponseWriter, r *http.Request) error {
	v, err := parameters(r)
	if err != nil {
		return err
	}
	service, err := observe.ServiceOf(v)
	if err != nil {
		return err
	}
	b, err := s.balancing()
	if err != nil {
		return err
	}
	all, err := b.Shadows(r.Context(), service)
	if err != nil {
		return err
	}
	return s.answer(w, http.StatusOK, all)
}

func (s *server) balance(w http.ResponseWriter, r *http.Request) error {
	var c observe.BalanceChange
	if err := s.readQuestion(w, r, &c); err != nil {
		return err
	}
	if _, _, err := c.Name(); err != nil {
		return err
	}
	b, err := s.balancing()
	if err != nil {
		return err
	}
	if err := b.Balance(r.Context(), c); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
