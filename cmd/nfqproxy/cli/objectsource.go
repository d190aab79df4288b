package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/view/clusterobjects"
	"github.com/nfqproxy/nfqproxy/control/view/kubeconfig"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// objectSource selects where the objects of a question come from.
type objectSource struct {
	table      tableFlags
	kubeconfig string
	lab        string
	context    *string // of the kubeconfig
	cmd        *cobra.Command
}

// addTo adds the flags but --context, which other flags may have, too.
func (f *objectSource) addTo(cmd *cobra.Command) {
	f.cmd = cmd
	flags := cmd.Flags()
	f.table.addOptional(flags)
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "read the objects from the API server of this kubeconfig (default: if no lab is running, $KUBECONFIG if it is set; as kubectl plugin and with --context: as kubectl finds it)")
	labFlag(cmd, &f.lab)
}

// origin is a kind of source of objects.
type origin int

const (
	ofFiles origin = iota
	ofServer
	ofLab
)

// kubeconfigVariable is the list of files that kubectl reads.
const kubeconfigVariable = "KUBECONFIG"

// origin is where the objects come from: what flags name, or else a running lab, or else the API server of $KUBECONFIG.
// A kubectl plugin asks the API server of kubectl instead.
func (f *objectSource) origin() (origin, error) {
	server := f.kubeconfig != "" || *f.context != ""
	switch {
	case len(f.table.objects) > 0 && server:
		return 0, fmt.Errorf("--objects and --%s cannot be used together: give one of them", f.serverFlag())
	case f.lab != "" && (server || len(f.table.objects) > 0):
		return 0, errors.New("--lab cannot be used with --objects, --kubeconfig and --context: give one of them")
	case len(f.table.objects) > 0:
		return ofFiles, nil
	case server:
		return ofServer, nil
	case f.lab != "":
		return ofLab, nil
	case isPlugin(f.cmd.Root().Name()):
		return ofServer, nil
	case len(lab.RunningLabs()) > 0:
		return ofLab, nil
	case os.Getenv(kubeconfigVariable) != "":
		return ofServer, nil
	}
	return 0, errors.New("no lab is running, and KUBECONFIG is not set: give --objects or --kubeconfig (kubectl reads ~/.kube/config by default), or start a lab")
}

// serverFlag is the flag that selects an API server.
func (f *objectSource) serverFlag() string {
	if f.kubeconfig != "" {
		return "kubeconfig"
	}
	return "context"
}

// read reads the objects. A note about where they come from goes to stderr; those about the objects are theirs.
func (f *objectSource) read(ctx context.Context, stdin io.Reader, stderr io.Writer) (*manifest.Objects, error) {
	from, err := f.origin()
	switch {
	case err != nil:
		return nil, err
	case from == ofFiles:
		return f.table.readComplete(stdin)
	case from == ofServer:
		o, err := listObjects(ctx, f.kubeconfig, *f.context)
		if err != nil {
			return nil, err
		}
		return &manifest.Objects{Objects: *o}, nil
	}
	if f.lab == "" && os.Getenv(kubeconfigVariable) != "" {
		fmt.Fprintf(stderr, "nfqproxy: note: the objects come from your running lab, %s, not from %s: give --context or --kubeconfig for the latter\n", strings.Join(lab.RunningLabs(), ", "), kubeconfigVariable)
	}
	return lab.ObjectsOf(f.lab)
}

// namespace is the one of names without one, as kubectl has it; "" if the objects come from elsewhere.
func (f *objectSource) namespace() string {
	if from, err := f.origin(); err != nil || from != ofServer {
		return ""
	}
	return connectionTo(f.kubeconfig, *f.context).Namespace()
}

// listObjects lists the objects of an API server.
func listObjects(ctx context.Context, kubeconfig, kubeContext string) (*kube.Objects, error) {
	config, err := connectionTo(kubeconfig, kubeContext).REST()
	if err != nil {
		return nil, err
	}
	return clusterobjects.List(ctx, config)
}

// connectionTo is the connection to an API server, as kubectl finds it.
func connectionTo(path, context string) *kubeconfig.Source {
	return &kubeconfig.Source{Path: path, Context: context, UserAgent: "nfqproxy/" + version}
}
