package cli

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control"
	"github.com/nfqproxy/nfqproxy/control/flows/findings"
	"github.com/nfqproxy/nfqproxy/control/flows/noderules"
	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/control/source/manifest"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// clusterFlags select the cluster that a question is about: a running lab, that of an API server, or files.
type clusterFlags struct {
	table      tableFlags
	kubeconfig string
	lab        string
	server     string
	tokenFile  string
	daemons    daemonsFlags
}

func (f *clusterFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.table.addOptional(flags)
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "read the objects from the API server of this kubeconfig (with --cluster: default: $KUBECONFIG, ~/.kube/config or, in a pod, its ServiceAccount)")
	labFlag(cmd, &f.lab)
	flags.StringVar(&f.server, "server", "", "flow API of nodes, whose flows count too: unix:PATH, URL or HOST:PORT; with a unix: socket the firewall rules of this machine, as root")
	flags.StringVar(&f.tokenFile, "token-file", "", "file with the token of the flow API at --server or of --cluster")
	f.daemons.add(cmd)
}

// doctor is that of the cluster: of its objects, and of what is observed if it is a lab.
func (f *clusterFlags) doctor(ctx context.Context, connect connector, stdin io.Reader, stderr io.Writer) (*findings.Doctor, error) {
	cluster, err := f.daemons.wanted("server", "lab", "objects")
	if err != nil {
		return nil, err
	}
	if cluster {
		return f.ofDaemons(ctx, stderr)
	}
	if f.daemons.context != "" && f.kubeconfig == "" {
		return nil, errors.New("--context requires --cluster or --kubeconfig")
	}
	d := &findings.Doctor{Objects: func(ctx context.Context) (*manifest.Objects, control.NodeConfig, error) {
		objects, err := f.objects(ctx, stdin)
		if err != nil {
			return nil, control.NodeConfig{}, err
		}
		config, err := f.table.configure(objects)
		return objects, config, err
	}}
	if f.server != "" {
		return d, f.observeServer(ctx, d, connect)
	}
	if f.tokenFile != "" {
		return nil, errors.New("--token-file requires --server")
	}
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

// ofDaemons is the doctor of a cluster: of its objects, and of what all its nodes observe.
func (f *clusterFlags) ofDaemons(ctx context.Context, stderr io.Writer) (*findings.Doctor, error) {
	token, err := (&serverFlags{tokenFile: f.tokenFile}).token()
	if err != nil {
		return nil, err
	}
	fleet, err := f.daemons.open(ctx, f.kubeconfig, token, observe.FleetOptions{}, stderr)
	if err != nil {
		return nil, err
	}
	return &findings.Doctor{Observer: fleet, Objects: func(ctx context.Context) (*manifest.Objects, control.NodeConfig, error) {
		objects, err := f.daemons.connection(f.kubeconfig).List(ctx)
		if err != nil {
			return nil, control.NodeConfig{}, err
		}
		config, err := f.table.configure(objects)
		return objects, config, err
	}}, nil
}

// observeServer has a doctor observe the flow API at --server. Without flags for objects, these are not known.
func (f *clusterFlags) observeServer(ctx context.Context, d *findings.Doctor, connect connector) (err error) {
	if f.lab != "" {
		return errors.New("--server and --lab exclude each other: give one of them")
	}
	if f.ofLab() {
		d.Objects = nil
	}
	flags := serverFlags{server: f.server, tokenFile: f.tokenFile}
	if d.Observer, err = flags.observer(ctx, connect, nil); err != nil {
		return err
	}
	if strings.HasPrefix(f.server, "unix:") {
		d.Firewall = firewallHere(d.Observer)
	}
	return nil
}

// firewallHere reads the rules of this machine, which is the node that the observer is of. Those of other nodes are not
// known.
func firewallHere(o observe.Observer) findings.Firewall {
	return func(ctx context.Context, node string, to []netip.Addr) (*noderules.Rules, error) {
		status, err := o.Status(ctx)
		if err != nil {
			return nil, err
		}
		if len(status) != 1 || status[0].Node != node {
			return nil, nil
		}
		return noderules.Read(ctx, to)
	}
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
		return f.daemons.connection(f.kubeconfig).List(ctx)
	case f.lab == "" && len(lab.RunningLabs()) == 0:
		return nil, errors.New("no lab is running: give --objects or --kubeconfig, or start a lab")
	}
	return lab.ObjectsOf(f.lab)
}
