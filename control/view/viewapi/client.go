package viewapi

import (
	"context"

	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
)

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
