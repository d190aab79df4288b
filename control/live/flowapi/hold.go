package flowapi

import (
	"context"
	"net/http"
	"net/url"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// holder returns the Holder, if there is one.
func (s *API) holder(ctx context.Context) (observe.Holder, error) {
	h := s.Observer.Holder()
	if h == nil {
		if nodes, err := s.Observer.Status(ctx); err == nil && len(nodes) == 1 && nodes[0].Daemon != nil && nodes[0].Daemon.Observed != "" {
			return nil, NotFound("holding flows is not possible: %s decides, and nfqproxy only observes", nodes[0].Daemon.Observed)
		}
		return nil, NotFound("holding flows is not available on this server: the daemon requires --flow-api-holds")
	}
	return h, nil
}

func (s *API) holds(r *http.Request) (l observe.HoldList, err error) {
	h, err := s.holder(r.Context())
	if err != nil {
		return l, err
	}
	holds, err := h.Holds(r.Context())
	return observe.HoldList{Holds: NotNull(holds)}, err
}

func (s *API) hold(w http.ResponseWriter, r *http.Request) error {
	var q observe.HoldQuery
	if err := s.ReadQuestion(w, r, &q); err != nil {
		return err
	}
	if _, _, err := q.Parse(); err != nil {
		return err
	}
	h, err := s.holder(r.Context())
	if err != nil {
		return err
	}
	hold, err := h.Hold(r.Context(), q)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/holds/"+url.PathEscape(hold.ID))
	return s.Answer(w, http.StatusCreated, hold)
}

// getHold waits for the hold's next generation, but for a limited time: proxies on the way and the
// client time out without a response.
func (s *API) getHold(w http.ResponseWriter, r *http.Request) error {
	v, err := Parameters(r)
	if err != nil {
		return err
	}
	after, err := observe.AfterOf(v)
	if err != nil {
		return err
	}
	h, err := s.holder(r.Context())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.Timing.Poll)
	defer cancel()
	hold, err := h.Get(ctx, r.PathValue("id"), after)
	if err != nil {
		return err
	}
	return s.Answer(w, http.StatusOK, hold)
}

func (s *API) act(w http.ResponseWriter, r *http.Request) error {
	var a observe.Act
	if err := s.ReadQuestion(w, r, &a); err != nil {
		return err
	}
	if err := a.Check(); err != nil {
		return err
	}
	h, err := s.holder(r.Context())
	if err != nil {
		return err
	}
	hold, err := h.Act(r.Context(), r.PathValue("id"), a)
	if err != nil {
		return err
	}
	return s.Answer(w, http.StatusOK, hold)
}

func (s *API) cancelHold(w http.ResponseWriter, r *http.Request) error {
	if err := NoParameters(r); err != nil {
		return err
	}
	h, err := s.holder(r.Context())
	if err != nil {
		return err
	}
	if err := h.Cancel(r.Context(), r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
