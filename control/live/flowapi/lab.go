package flowapi

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// lab returns the Lab, if there is one.
func (s *server) lab() (observe.Lab, error) {
	if s.Lab == nil {
		return nil, notFound("there is no lab here: only labs can be changed")
	}
	return s.Lab, nil
}

func (s *server) labStatus(r *http.Request) (*observe.LabStatus, error) {
	lab, err := s.lab()
	if err != nil {
		return nil, err
	}
	return lab.LabStatus(r.Context())
}

func (s *server) changeLab(w http.ResponseWriter, r *http.Request) error {
	var c observe.LabChange
	if err := s.readQuestion(w, r, &c); err != nil {
		return err
	}
	if err := c.Check(); err != nil {
		return err
	}
	lab, err := s.lab()
	if err != nil {
		return err
	}
	changes, err := lab.Change(r.Context(), c)
	if err != nil {
		return err
	}
	return s.answer(w, http.StatusOK, observe.ChangeList{Changes: notNull(changes)})
}

func (s *server) faults(r *http.Request) (l observe.FaultList, err error) {
	lab, err := s.lab()
	if err != nil {
		return l, err
	}
	status, err := lab.LabStatus(r.Context())
	if err != nil {
		return l, err
	}
	return observe.FaultList{Faults: notNull(status.Faults), Kinds: observe.FaultKinds}, nil
}

func (s *server) addFault(w http.ResponseWriter, r *http.Request) error {
	var f observe.Fault
	if err := s.readQuestion(w, r, &f); err != nil {
		return err
	}
	lab, err := s.lab()
	if err != nil {
		return err
	}
	f, err = lab.AddFault(r.Context(), f)
	if err != nil {
		return err
	}
	w.Header().Set("Location", fmt.Sprintf("/v1/lab/faults/%d", f.ID))
	return s.answer(w, http.StatusCreated, f)
}

// removeFault ends the fault of the path or, without one, all faults.
func (s *server) removeFault(r *http.Request) (l observe.FaultList, err error) {
	id := 0
	if text := r.PathValue("id"); text != "" {
		if id, err = strconv.Atoi(text); err != nil || id < 1 {
			return l, notFound("no fault %q: want its number", text)
		}
	}
	lab, err := s.lab()
	if err != nil {
		return l, err
	}
	ended, err := lab.RemoveFault(r.Context(), id)
	return observe.FaultList{Faults: notNull(ended)}, err
}
