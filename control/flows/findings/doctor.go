package findings

import (
	"context"
	"net/http"
	"slices"
	"strings"

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
	// Firewall reads the rules of nodes; nil: they are not known. It is called for the nodes of recent flows that got
	// no answer.
	Firewall Firewall
}

// Findings are those of the objects, if they are known, and of what is observed.
func (d *Doctor) Findings(ctx context.Context) (*observe.FindingList, error) {
	seen, err := d.recent(ctx)
	if err != nil {
		return nil, err
	}
	list := append([]diagnose.Finding{}, seen.dropped...)
	if d.Observer != nil {
		observed, err := Observed(ctx, d.Observer, seen.records)
		if err != nil {
			return nil, err
		}
		list = append(list, observed...)
	}
	if d.Objects != nil {
		c, err := d.cluster(ctx, seen)
		if err != nil {
			return nil, err
		}
		list = slices.DeleteFunc(list, c.Ignores)
		for _, f := range c.Examine() {
			if f.Code != diagnose.HostDropsFlows { // it is in the list, with all services
				list = append(list, f)
			}
		}
	}
	diagnose.Sort(list)
	return &observe.FindingList{Version: diagnose.Version, Findings: list}, nil
}

// Why answers a question, with recent flows in mind. An error of the question is a [*diagnose.QuestionError].
func (d *Doctor) Why(ctx context.Context, q diagnose.Question) (*diagnose.Answer, error) {
	if d.Objects == nil {
		return nil, &observe.Error{Status: http.StatusNotFound, Message: "the objects of the cluster are not known here: use nfqproxy why --kubeconfig FILE"}
	}
	seen, err := d.recent(ctx)
	if err != nil {
		return nil, err
	}
	c, err := d.cluster(ctx, seen)
	if err != nil {
		return nil, err
	}
	answer, err := c.Why(q)
	if err == nil && d.Observer != nil {
		addSilent(ctx, d.Observer, answer)
		answer.Settle()
	}
	return answer, err
}

// addSilent adds to an answer that the daemon of a node on the way does not answer.
func addSilent(ctx context.Context, o observe.Observer, answer *diagnose.Answer) {
	status, err := o.Status(ctx)
	if err != nil {
		return
	}
	for _, f := range ofStatus(status, nil) {
		node, _ := strings.CutPrefix(f.Object, "Node ")
		passes := node == answer.Node || slices.ContainsFunc(answer.Passed, func(p diagnose.Place) bool { return p.Node == node })
		unreachable := slices.ContainsFunc(status, func(s observe.Status) bool {
			return s.Node == node && slices.ContainsFunc(s.Problems, func(p observe.Problem) bool { return p.Code == observe.ProblemUnreachable })
		})
		if f.Code != diagnose.NodeProblem || !passes || !unreachable {
			continue
		}
		answer.Notes = append(answer.Notes, f)
		if answer.Works && answer.Unless == "" {
			answer.Unless = "new connections hang on " + node + ", whose daemon does not answer"
		}
	}
}

// recent are recent flows, and what rules of nodes do to them.
type recent struct {
	records []*flow.Record
	dropped []diagnose.Finding
	blamed  []blame
}

func (d *Doctor) recent(ctx context.Context) (seen recent, err error) {
	if d.Observer == nil {
		return seen, nil
	}
	if seen.records, err = Recent(ctx, d.Observer); err == nil && d.Firewall != nil {
		seen.dropped, seen.blamed = dropped(ctx, d.Firewall, seen.records)
	}
	return seen, err
}

func (d *Doctor) cluster(ctx context.Context, seen recent) (*diagnose.Cluster, error) {
	objects, config, err := d.Objects(ctx)
	if err != nil {
		return nil, err
	}
	c := diagnose.New(objects, config)
	c.Observe(seen.records)
	for _, b := range seen.blamed {
		c.Blame(b.endpoint, b.protocol, b.Finding)
	}
	return c, nil
}
