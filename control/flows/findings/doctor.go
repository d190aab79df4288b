package findings

import (
	"context"
	"net/http"
	"slices"

	"github.com/nfqproxy/nfqproxy/control"
	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/control/source/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/sim/diagnose"
)

// Doctor is an [observe.Doctor] of what an observer sees, of objects, or of both. It is safe for concurrent use.
type Doctor struct {
	Observer observe.Observer // nil: nothing is observed
	// Objects returns the objects of the cluster and the configuration of its nodes, but for the name; nil: they are
	// not known. The objects may not change later.
	Objects func(context.Context) (*manifest.Objects, control.NodeConfig, error)
}

// Findings are those of the objects, if they are known, and of what is observed.
func (d *Doctor) Findings(ctx context.Context) (*observe.FindingList, error) {
	list := []diagnose.Finding{}
	records, err := d.recent(ctx)
	if err != nil {
		return nil, err
	}
	if d.Observer != nil {
		if list, err = Observed(ctx, d.Observer, records); err != nil {
			return nil, err
		}
	}
	if d.Objects != nil {
		c, err := d.cluster(ctx, records)
		if err != nil {
			return nil, err
		}
		list = append(slices.DeleteFunc(list, c.Ignores), c.Examine()...)
	}
	diagnose.Sort(list)
	return &observe.FindingList{Version: diagnose.Version, Findings: list}, nil
}

// Why answers a question, with recent flows in mind. An error of the question is a [*diagnose.QuestionError].
func (d *Doctor) Why(ctx context.Context, q diagnose.Question) (*diagnose.Answer, error) {
	if d.Objects == nil {
		return nil, &observe.Error{Status: http.StatusNotFound, Message: "the objects of the cluster are not known here: use nfqproxy why --kubeconfig FILE"}
	}
	records, err := d.recent(ctx)
	if err != nil {
		return nil, err
	}
	c, err := d.cluster(ctx, records)
	if err != nil {
		return nil, err
	}
	return c.Why(q)
}

func (d *Doctor) recent(ctx context.Context) ([]*flow.Record, error) {
	if d.Observer == nil {
		return nil, nil
	}
	return Recent(ctx, d.Observer)
}

func (d *Doctor) cluster(ctx context.Context, records []*flow.Record) (*diagnose.Cluster, error) {
	objects, config, err := d.Objects(ctx)
	if err != nil {
		return nil, err
	}
	c := diagnose.New(objects, config)
	c.Observe(records)
	return c, nil
}
