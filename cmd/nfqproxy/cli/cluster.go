package cli

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/control/source/apiserver"
	"github.com/nfqproxy/nfqproxy/control/source/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/sim/diagnose"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// clusterFlags select the cluster that a question is about: a running lab, that of an API server, or files.
type clusterFlags struct {
	table      tableFlags
	kubeconfig string
	lab        string
}

func (f *clusterFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.table.addOptional(flags)
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "read the objects from the API server of this kubeconfig")
	labFlag(cmd, &f.lab)
}

// cluster returns the cluster, with recent flows if it is a lab.
func (f *clusterFlags) cluster(ctx context.Context, connect connector, stdin io.Reader) (*diagnose.Cluster, error) {
	objects, err := f.objects(ctx, stdin)
	if err != nil {
		return nil, err
	}
	config, err := f.table.configure(objects)
	if err != nil {
		return nil, err
	}
	c := diagnose.New(objects, config)
	if f.ofLab() {
		c.Observe(recentFlows(ctx, connect, f.lab))
	}
	return c, nil
}

// ofLab reports whether the cluster is a running lab.
func (f *clusterFlags) ofLab() bool { return len(f.table.objects) == 0 && f.kubeconfig == "" }

func (f *clusterFlags) objects(ctx context.Context, stdin io.Reader) (*manifest.Objects, error) {
	switch {
	case len(f.table.objects) > 0 && f.kubeconfig != "":
		return nil, errors.New("--objects and --kubeconfig exclude each other: give one of them")
	case !f.ofLab() && f.lab != "":
		return nil, errors.New("--lab excludes --objects and --kubeconfig: give one of them")
	case len(f.table.objects) > 0:
		return f.table.read(stdin)
	case f.kubeconfig != "":
		return (&apiserver.Connection{Kubeconfig: f.kubeconfig, UserAgent: "nfqproxy/" + version}).List(ctx)
	case f.lab == "" && len(lab.RunningLabs()) == 0:
		return nil, errors.New("no lab is running: give --objects or --kubeconfig, or start a lab")
	}
	return lab.ObjectsOf(f.lab)
}

// recentlyWithin is the age of the flows that count.
const recentlyWithin = 5 * time.Minute

// recentFlows returns recent flows of a running lab, the oldest first. A lab without a flow API has none.
func recentFlows(ctx context.Context, connect connector, name string) (records []*flow.Record) {
	server, token, err := defaultServer(name)
	if err != nil || server == "" {
		return nil
	}
	observer, err := connect(server, token)
	if err != nil {
		return nil
	}
	_ = observer.Flows(ctx, observe.FlowQuery{Verdict: "dnat", Since: recentlyWithin.String(), Limit: "1000"}, func(item observe.Item) error {
		if item.Record != nil {
			records = append(records, item.Record)
		}
		return nil
	})
	return records
}
