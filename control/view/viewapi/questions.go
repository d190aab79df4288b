package viewapi

import (
	"context"
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
	if wrong, ok := errors.AsType[*diagnose.QuestionError](err); ok {
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

// Doctor finds problems and their causes. It is safe for concurrent use.
type Doctor interface {
	// Findings are the problems of the whole cluster, the worst first.
	Findings(ctx context.Context) (*FindingList, error)
	// Why answers why a connection fails, or that it works. An error of the question is a
	// [*diagnose.QuestionError]; a client's is an [*observe.Error].
	Why(ctx context.Context, q diagnose.Question) (*diagnose.Answer, error)
	// Manifest returns the objects of a Service.
	Manifest(ctx context.Context, namespace, name string) (*remote.Manifest, error)
}

// FindingList is the response with findings.
type FindingList struct {
	Version  int                `json:"version"` // diagnose.Version
	Findings []diagnose.Finding `json:"findings"`
}

// Client is the Doctor of a server.
type Client struct{ *remote.Client }

var _ Doctor = Client{}

// Findings requests the problems of the cluster.
func (c Client) Findings(ctx context.Context) (*FindingList, error) {
	return remote.Ask[FindingList](ctx, c.Client, nil, "findings")
}

// Why requests the answer to a question.
func (c Client) Why(ctx context.Context, q diagnose.Question) (*diagnose.Answer, error) {
	return remote.Ask[diagnose.Answer](ctx, c.Client, q, "why")
}
