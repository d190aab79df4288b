package viewapi

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
)

// lab returns the Lab, if there is one.
func (v *views) lab() (labapi.Lab, error) {
	if v.Lab == nil {
		return nil, flowapi.NotFound("there is no lab here: only labs can be changed")
	}
	return v.Lab, nil
}

func (v *views) labStatus(_ *flowapi.API, r *http.Request) (*labapi.Status, error) {
	lab, err := v.lab()
	if err != nil {
		return nil, err
	}
	return lab.LabStatus(r.Context())
}

func (v *views) changeLab(_ *flowapi.API, r *http.Request, c labapi.Change) (l labapi.ChangeList, err error) {
	if err := c.Check(); err != nil {
		return l, err
	}
	lab, err := v.lab()
	if err != nil {
		return l, err
	}
	changes, err := lab.Change(r.Context(), c)
	return labapi.ChangeList{Changes: flowapi.NotNull(changes)}, err
}

func (v *views) faults(_ *flowapi.API, r *http.Request) (l labapi.FaultList, err error) {
	lab, err := v.lab()
	if err != nil {
		return l, err
	}
	status, err := lab.LabStatus(r.Context())
	if err != nil {
		return l, err
	}
	return labapi.FaultList{Faults: flowapi.NotNull(status.Faults), Kinds: labapi.FaultKinds}, nil
}

func (v *views) addFault(a *flowapi.API, w http.ResponseWriter, r *http.Request) error {
	var f labapi.Fault
	if err := a.ReadQuestion(w, r, &f); err != nil {
		return err
	}
	lab, err := v.lab()
	if err != nil {
		return err
	}
	f, err = lab.AddFault(r.Context(), f)
	if err != nil {
		return err
	}
	w.Header().Set("Location", fmt.Sprintf("/v1/lab/faults/%d", f.ID))
	return a.Answer(w, http.StatusCreated, f)
}

// removeFault ends the fault of the path or, without one, all faults.
func (v *views) removeFault(_ *flowapi.API, r *http.Request) (l labapi.FaultList, err error) {
	id := 0
	if text := r.PathValue("id"); text != "" {
		if id, err = strconv.Atoi(text); err != nil || id < 1 {
			return l, flowapi.NotFound("no fault %q: want its number", text)
		}
	}
	lab, err := v.lab()
	if err != nil {
		return l, err
	}
	ended, err := lab.RemoveFault(r.Context(), id)
	return labapi.FaultList{Faults: flowapi.NotNull(ended)}, err
}
