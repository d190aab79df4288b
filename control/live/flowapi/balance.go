package flowapi

import (
	"net/http"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// balancing returns the Balancing, if there is one.
func (s *API) balancing() (observe.Balancing, error) {
	if s.Balancing == nil {
		return nil, NotFound("balancing algorithms cannot be switched on this server; where nfqproxy only observes, another service proxy selects the endpoints")
	}
	return s.Balancing, nil
}

func (s *API) algorithms(r *http.Request) (*observe.Algorithms, error) {
	b, err := s.balancing()
	if err != nil {
		return nil, err
	}
	return b.Algorithms(r.Context())
}

func (s *API) shadows(w http.ResponseWriter, r *http.Request) error {
	v, err := Parameters(r)
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
	return s.Answer(w, http.StatusOK, all)
}

func (s *API) balance(w http.ResponseWriter, r *http.Request) error {
	var c observe.BalanceChange
	if err := s.ReadQuestion(w, r, &c); err != nil {
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
