package cli

import (
	"context"
	"errors"
	"io"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control"
	"github.com/nfqproxy/nfqproxy/control/flows/findings"
	"github.com/nfqproxy/nfqproxy/control/flows/noderules"
	"github.com/nfqproxy/nfqproxy/control/source/apiserver"
	"github.com/nfqproxy/nfqproxy/control/source/manifest"
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

// doctor is that of the cluster: of its objects, and of what is observed if it is a lab.
func (f *clusterFlags) doctor(connect connector, stdin io.Reader) (*findings.Doctor, error) {
	d := &findings.Doctor{Objects: func(ctx context.Context) (*manifest.Objects, control.NodeConfig, error) {
		objects, err := f.objects(ctx, stdin)
		if err != nil {
			return nil, control.NodeConfig{}, err
		}
		config, err := f.table.configure(objects)
		return objects, config, err
	}}
	if !f.ofLab() {
		return d, nil
	}
	server, token, err := defaultServer(f.lab)
	if err != nil || server == "" {
		return d, nil // a lab without a flow API
	}
	d.Firewall = func(_ context.Context, node string, to []netip.Addr) (*noderules.Rules, error) {
		return lab.FirewallOf(f.lab, node, to)
	}
	d.Observer, err = connect(server, token)
	return d, err
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
