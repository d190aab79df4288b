package findings

import (
	"context"
	"errors"
	"net/http"

	"github.com/nfqproxy/nfqproxy/control"
	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/control/source/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/sim/diagnose"
)

// Doctor is an [observe.Doctor] for an observer. It is safe for concurrent use.
type Doctor struct {
	Observer observe.Observer
	// Objects returns the objects of the cluster and the configuration of its nodes, but for the name; nil: they are
	// not known. The objects may not change later.
	Objects func(context.Context) (*manifest.Objects, control.NodeConfig, error)
}

// Findings are those of the objects, if they are known, and of what is observed.
func (d *Doctor) Findings(ctx context.Context) (*observe.FindingList, error) {
	records, err := Recent(ctx, d.Observer)
	if err != nil {
		return nil, err
	}
	list, err := Observed(ctx, d.Observer, records)
	if err != nil {
		return nil, err
	}
	if d.Objects != nil {
		objects, config, err := d.Objects(ctx)
		if err != nil {
			return nil, err
		}
		c := diagnose.New(objects, config)
		c.Observe(records)
		list = append(c.Examine(), list...)
		diagnose.Sort(list)
	}
	if list == nil {
		list = []diagnose.Finding{}
	}
	return &observe.FindingList{Version: diagnose.Version, Findings: list}, nil
}

// Why answers a question, with recent flows in mind.
func (d *Doctor) Why(ctx context.Context, q diagnose.Question) (*diagnose.Answer, error) {
	if d.Objects == nil {
		return nil, &observe.Error{Status: http.StatusNotFound, Message: "the objects of the cluster are not known here: use nfqproxy why --kubeconfig FILE"}
	}
	objects, config, err := d.Objects(ctx)
	if err != nil {
		return nil, err
	}
	records, err := Recent(ctx, d.Observer)
	if err != nil {
		return nil, err
	}
	c := diagnose.New(objects, config)
	c.Observe(records)
	answer, err := c.Why(q)
	var wrong *diagnose.QuestionError
	if errors.As(err, &wrong) {
		return nil, &observe.Error{Status: http.StatusBadRequest, Field: wrong.Field, Message: wrong.Err.Error()}
	}
	return answer, err
}
