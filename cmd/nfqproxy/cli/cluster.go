package cli

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/flows/findings"
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

// cluster is what a question is about.
type cluster struct {
	*diagnose.Cluster
	observer observe.Observer // nil: nothing observes it
	records  []*flow.Record   // recent flows
}

// cluster reads the objects, and recent flows if it is a lab.
func (f *clusterFlags) cluster(ctx context.Context, connect connector, stdin io.Reader) (*cluster, error) {
	objects, err := f.objects(ctx, stdin)
	if err != nil {
		return nil, err
	}
	config, err := f.table.configure(objects)
	if err != nil {
		return nil, err
	}
	c := &cluster{Cluster: diagnose.New(objects, config)}
	if !f.ofLab() {
		return c, nil
	}
	server, token, err := defaultServer(f.lab)
	if err != nil || server == "" {
		return c, nil // a lab without a flow API
	}
	if c.observer, err = connect(server, token); err != nil {
		return nil, err
	}
	if c.records, err = findings.Recent(ctx, c.observer); err != nil {
		return nil, err
	}
	c.Observe(c.records)
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
