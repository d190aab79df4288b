package viewapi

import (
	"errors"
	"net/http"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
)

var errNoDoctor = &observe.Error{Status: http.StatusNotFound, Message: "findings are not supported here"}

func (v *views) manifest(_ *flowapi.API, r *http.Request) (*remote.Manifest, error) {
	if v.Doctor == nil {
		return nil, &observe.Error{Status: http.StatusNotFound, Message: "the objects of the cluster are not known here: use kubectl get service,endpointslice -o yaml"}
	}
	return v.Doctor.Manifest(r.Context(), r.PathValue("namespace"), r.PathValue("name"))
}

func (v *views) findings(_ *flowapi.API, r *http.Request) (any, error) {
	if v.Doctor == nil {
		return nil, errNoDoctor
	}
	return v.Doctor.Findings(r.Context())
}

func (v *views) why(_ *flowapi.API, r *http.Request, q diagnose.Question) (*diagnose.Answer, error) {
	if v.Doctor == nil {
		return nil, errNoDoctor
	}
	answer, err := v.Doctor.Why(r.Context(), q)
	var wrong *diagnose.QuestionError
	if errors.As(err, &wrong) {
		return nil, &observe.Error{Status: http.StatusBadRequest, Field: wrong.Field, Message: wrong.Err.Error()}
	}
	return answer, err
}

func (v *views) request(a *flowapi.API, w http.ResponseWriter, r *http.Request) error {
	var q labapi.Request
	if err := a.ReadQuestion(w, r, &q); err != nil {
		return err
	}
	if v.Requester == nil {
		return &observe.Error{Status: http.StatusNotFound, Message: "sending requests is not supported here: only labs do"}
	}
	release, err := a.TakeStream(r) // it may take as long as a flow is held
	if err != nil {
		return err
	}
	defer release()
	answer, err := v.Requester.Request(r.Context(), q)
	if err != nil {
		return err
	}
	return a.Answer(w, http.StatusOK, answer)
}
