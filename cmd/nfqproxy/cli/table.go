package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/algorithms"
	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/paper/kubeproxyconfig"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// tableFlags make a service table from manifests, for a node that need not be this machine.
type tableFlags struct {
	objects    []string
	name       string
	node       proxyconfig.NodeFlags
	algorithms algorithms.Flags          // not all commands have them
	further    []func(*balance.Registry) // add algorithms that the daemon does not have
	// primaryNodePorts opens node ports on the node's primary addresses by default, as kube-proxy does in nftables mode.
	primaryNodePorts bool
	// podsSuffice: a question about Pods needs no Services.
	podsSuffice bool
}

func (f *tableFlags) add(cmd *cobra.Command, flags *pflag.FlagSet) {
	f.addOptional(flags)
	_ = cmd.MarkFlagRequired("objects")
}

// addOptional is add for commands that do not require --objects.
func (f *tableFlags) addOptional(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.objects, "objects", nil, "file or directory with Services, EndpointSlices, Nodes and Pods (YAML or JSON), or - for standard input; may be repeated")
	flags.Var(nodeValue{name: &f.name}, "node", "name of the node that decides (default: the only Node object)")
	f.node.Add(flags)
}

// read reads the objects from the files.
func (f *tableFlags) read(stdin io.Reader) (*manifest.Objects, error) {
	objects, err := labfile.LoadOnce(stdin, f.objects)
	if err != nil {
		return nil, cmp.Or(foreignFile(f.objects, "--objects"), err)
	}
	if len(objects.Services) == 0 && !(f.podsSuffice && len(objects.Pods) > 0) {
		return objects, noServices(f.objects, objects)
	}
	return objects, nil
}

// readComplete is read, and completes the objects with what manifests lack.
func (f *tableFlags) readComplete(stdin io.Reader) (*manifest.Objects, error) {
	objects, err := f.read(stdin)
	if err != nil {
		return nil, err
	}
	config, err := f.configure(objects)
	if err != nil {
		return nil, err
	}
	return objects, objects.Complete(config.ClusterCIDRs)
}

// note prints the notes that are not empty.
func note(stderr io.Writer, notes ...string) {
	for _, n := range notes {
		if n != "" {
			fmt.Fprintln(stderr, "nfqproxy: note:", n)
		}
	}
}

// configure returns the configuration of the node that decides.
func (f *tableFlags) configure(objects *manifest.Objects) (config servicetable.NodeConfig, err error) {
	config = proxyconfig.Default().Node
	if config.Name, err = f.nodeName(objects); err != nil {
		return config, err
	}
	file := labfile.Of(objects)
	file.Configure(&config)
	kubeproxyconfig.Of(&objects.Objects).Complete(&config)
	var scripts []string
	if file != nil {
		scripts = file.Proxy.Scripts
	}
	a, err := f.algorithms.Load(scripts, f.further...)
	if err != nil {
		return config, err
	}
	config.Algorithms = a.Registry
	if f.algorithms.Given() {
		config.Balance = a.Chosen
	}
	err = f.node.Apply(&config)
	if f.primaryNodePorts && len(config.NodePortAddresses) == 0 {
		config.PrimaryNodePorts = true
	}
	return config, err
}

// input has the objects that tableFlags name, and their table.
type input struct {
	objects *manifest.Objects
	config  servicetable.NodeConfig
	table   *decision.Table
}

// load makes the table. Warnings go to stderr.
func (f *tableFlags) load(stdin io.Reader, stderr io.Writer) (in input, err error) {
	objects, err := f.read(stdin)
	if err != nil {
		return in, err
	}
	return f.build(objects, stderr)
}

// build makes the table of objects. Warnings go to stderr.
func (f *tableFlags) build(objects *manifest.Objects, stderr io.Writer) (in input, err error) {
	in.objects = objects
	if in.config, err = f.configure(in.objects); err != nil {
		return in, err
	}
	table, warnings := servicetable.Table(&in.objects.Objects, in.config)
	for _, w := range warnings {
		fmt.Fprintln(stderr, "nfqproxy: warning:", w)
	}
	in.table = table
	return in, nil
}

// readsStdin reports whether objects come from standard input.
func (f *tableFlags) readsStdin() bool { return slices.Contains(f.objects, "-") }

// nodeName is the node that decides. An unknown name is an error: with a misspelt one no
// endpoint would be local, and every result would be wrong.
func (f *tableFlags) nodeName(objects *manifest.Objects) (string, error) {
	if bundleIn(f.name) != "" {
		return "", fmt.Errorf("--node %s: want the name of a node, and not a bundle: trace, services, doctor, why, explain, replay and diff read bundles", f.name)
	}
	var names []string
	for _, n := range objects.Nodes {
		names = append(names, n.Name)
	}
	switch {
	case f.name == "" && len(names) == 1:
		return names[0], nil
	case f.name == "" || len(names) == 0 || slices.Contains(names, f.name) || hasEndpoints(objects, f.name):
		return f.name, nil
	}
	return "", fmt.Errorf("--node %s: no such Node among the objects%s; known: %s", f.name, nearest.Hint(f.name, names), nearest.Few(names))
}

// hasEndpoints reports whether an endpoint is on the node.
func hasEndpoints(objects *manifest.Objects, node string) bool {
	for _, s := range objects.EndpointSlices {
		for i := range s.Endpoints {
			if name := s.Endpoints[i].NodeName; name != nil && *name == node {
				return true
			}
		}
	}
	return false
}

// noServices is the error for objects without Services. It lists what the files contain.
func noServices(paths []string, objects *manifest.Objects) error {
	const want = "give files or directories with Services and EndpointSlices, such as the output of kubectl get svc,endpointslices,nodes,pods -A -o yaml"
	if objects.Empty() && len(objects.Skipped) == 0 {
		return fmt.Errorf("no Kubernetes objects in %s: %s", rulesNames(paths), want)
	}
	var others []string
	count := func(n int, kind string) {
		if n > 0 {
			others = append(others, fmt.Sprintf("%d %s", n, kind))
		}
	}
	count(len(objects.EndpointSlices), "EndpointSlice")
	count(len(objects.Endpoints), "Endpoints")
	count(len(objects.Nodes), "Node")
	count(len(objects.Pods), "Pod")
	for _, s := range append(objects.CountTemplates(), objects.Skipped...) {
		count(s.Count, s.Kind)
	}
	return fmt.Errorf("no Services in %s, only %s: %s", rulesNames(paths), strings.Join(others, ", "), want)
}
