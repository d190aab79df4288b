package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
	"github.com/nfqproxy/nfqproxy/deploy/lab/derivation"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

func newLabCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Run a multi-node lab in network namespaces, without root",
		Long: `Run a multi-node lab in network namespaces: nodes, pods and external clients on this
machine, with real routes between them and an nfqproxy on each node. An ordinary user runs
it in a user namespace. A lab exists only in memory and leaves no files behind.`,
		Example: `  nfqproxy lab demo
  nfqproxy lab up kind
  nfqproxy lab ask shell http://my-nginx-service/
  nfqproxy lab exec shell -- curl -s http://10.96.118.136/`,
	}
	cmd.AddCommand(newLabUpCommand(), newLabDemoCommand(), newLabExecCommand(), newLabAskCommand(), newLabGetCommand(), newLabApplyCommand(), newLabDeleteCommand(), newLabScaleCommand(), newLabPodCommand(), newLabNodeCommand(), newLabFaultCommand(), newLabStatusCommand(), newLabDownCommand(), newLabInitCommand(), newLabListCommand())
	group(cmd)
	return cmd
}

func builtInLabs(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return labs.Names(), cobra.ShellCompDirectiveDefault
}

// labFlags describe a lab besides its file or name.
type labFlags struct {
	objects      []string
	clusterCIDRs []string
	namespaces   []string
	services     []string
	hairpin      bool
	observe      bool
	kubeProxy    string
}

// addObjects adds the flags of a lab that is derived from objects.
func (f *labFlags) addObjects(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.objects, "objects", nil, "derive the lab from Kubernetes objects: file or directory with Services, EndpointSlices, Nodes and Pods (YAML or JSON); may be repeated")
	flags.StringSliceVar(&f.clusterCIDRs, "cluster-cidr", nil, "with --objects: pod CIDRs of the cluster, one per family (default: the smallest prefix with all pods)")
	flags.StringSliceVarP(&f.namespaces, "namespace", "n", nil, "with --objects: only the Pods and Services of these namespaces, and the objects they depend on (default: all)")
	flags.StringSliceVar(&f.services, "service", nil, "with --objects: only these Services, NAMESPACE/NAME, and the objects they depend on (default: all)")
}

// add adds all flags that change what a lab is.
func (f *labFlags) add(flags *pflag.FlagSet) {
	f.addObjects(flags)
	flags.StringVar(&f.kubeProxy, "kube-proxy", "", "program to run on nodes with \"proxy: kube-proxy\" (default: $NFQPROXY_KUBE_PROXY, bench/peers/bin/kube-proxy, or kube-proxy in PATH)")
	flags.BoolVar(&f.observe, "observe", false, "kube-proxy serves all nodes that have nfqproxy in the lab file, and nfqproxyd only observes, on every node")
	flags.BoolVar(&f.hairpin, "masquerade-hairpin", true, "masquerade traffic from a pod to itself through a service; false is for teaching: it shows the failure")
}

// options are the options from the flags and the command's arguments: the lab's name, if the
// command takes one.
func (f *labFlags) options(args []string) (o lab.RunOptions, err error) {
	switch {
	case len(f.objects) > 0 && len(args) > 0:
		return o, fmt.Errorf("%s and --objects cannot be used together: give a lab or objects", args[0])
	case len(f.objects) == 0 && len(f.clusterCIDRs)+len(f.namespaces)+len(f.services) > 0:
		return o, errors.New("--cluster-cidr, --namespace and --service require --objects; a lab file has its own settings")
	case len(args) > 0:
		o.Lab = args[0]
	}
	o.Objects, o.NoHairpinMasquerade, o.KubeProxy = f.objects, !f.hairpin, f.kubeProxy
	o.Observe = f.observe
	o.Derive, err = f.derive()
	return o, err
}

// derive returns the options for labs derived from objects.
func (f *labFlags) derive() (o derivation.Options, err error) {
	o.Namespaces = f.namespaces
	for _, s := range f.services {
		namespace, name, ok := strings.Cut(s, "/")
		if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return o, fmt.Errorf("--service %q: want NAMESPACE/NAME", s)
		}
		o.Services = append(o.Services, decision.ServiceName{Namespace: namespace, Name: name})
	}
	o.ClusterCIDRs, err = proxyconfig.ParsePrefixes("--cluster-cidr", f.clusterCIDRs)
	return o, err
}

func newLabUpCommand() *cobra.Command {
	var f labFlags
	var all, logs bool
	var walk text.Walk
	var page string
	cmd := &cobra.Command{
		Use:   "up FILE|NAME | --objects PATH...",
		Short: "Start a lab and show its decisions until interrupted",
		Long: `Start a lab and show its decisions until interrupted. The lab is a file, a built-in lab
or, with --objects, derived from the objects of a real cluster, as printed by kubectl or
nfqproxy services. nfqproxy guesses what the objects do not say, and prints its guesses at
the start. Changes to the Kubernetes objects in the files apply while the lab runs.`,
		Example: `  nfqproxy lab up kind
  nfqproxy lab up ./my-lab.yaml --walk words
  kubectl get svc,endpointslices,nodes,pods -A -o yaml > cluster.yaml
  nfqproxy lab up --objects cluster.yaml --namespace shop`,
		Args:              atMost(1, "one lab"),
		ValidArgsFunction: builtInLabs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && len(f.objects) == 0 {
				return fmt.Errorf("a lab is required: give a file, --objects, or a built-in lab: %s", strings.Join(labs.Names(), ", "))
			}
			o, err := f.options(args)
			if err != nil {
				return err
			}
			o.Stdout, o.Stderr, o.All, o.Walk, o.Logs, o.Page = cmd.OutOrStdout(), cmd.ErrOrStderr(), all, walk, logs, page
			return exitWith(lab.RunUp(o))
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&all, "all", false, "include flows to no service")
	walkFlag(cmd, &walk, ", below each decision", text.WalkNone)
	flags.BoolVar(&logs, "logs", false, "include the logs of the nodes' daemons")
	flags.StringVar(&page, "page", "", "loopback address and port of the web page (default "+lab.DefaultPage+" or, if it is in use, any port)")
	f.add(flags)
	return cmd
}

func newLabDemoCommand() *cobra.Command {
	var f labFlags
	cmd := &cobra.Command{
		Use:   "demo [FILE|NAME | --objects PATH...]",
		Short: "Start a lab, show requests with their decisions, and stop it",
		Long: `Start a lab (by default the built-in lab kind), send real requests in it, and show for
each the decision, its reason and the kernel's connection entry. Then stop the lab. The
exit code is 1 if a result is not the expected one.`,
		Args:              atMost(1, "one lab"),
		ValidArgsFunction: builtInLabs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := f.options(args)
			if err != nil {
				return err
			}
			o.Lab, o.Stdout, o.Stderr = cmp.Or(o.Lab, "kind"), cmd.OutOrStdout(), cmd.ErrOrStderr()
			return exitWith(lab.RunDemo(o))
		},
	}
	f.add(cmd.Flags())
	return cmd
}

// labFlag adds the flag that selects a running lab.
func labFlag(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "lab", "", "name of the running lab (default: the only one)")
}

// labByName is for commands that take the name of a running lab as an argument or as a flag.
func labByName(name *string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := atMost(1, "one lab")(cmd, args); err != nil || len(args) == 0 {
			return err
		}
		if cmd.Flags().Changed("lab") && *name != args[0] {
			return fmt.Errorf("%s and --lab %s: name one lab", args[0], *name)
		}
		*name = args[0]
		return nil
	}
}

func newLabExecCommand() *cobra.Command {
	var name, namespace string
	cmd := &cobra.Command{
		Use:   "exec POD|NODE|CLIENT -- COMMAND...",
		Short: "Run a local command in a pod, node or client of a running lab",
		Example: `  nfqproxy lab exec shell -- curl -s http://10.96.118.136/
  nfqproxy lab exec kind-worker -- tcpdump -ni any port 80
  nfqproxy lab exec kind-worker -- bash`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return errors.New("lab exec requires a host and a command, for example: nfqproxy lab exec shell -- ip address")
			case len(commandAfter(args)) == 0:
				return fmt.Errorf("lab exec requires a command after the host, for example: nfqproxy lab exec %s -- ip address", args[0])
			}
			return nil
		},
		ValidArgsFunction: labHosts(&name),
		RunE: func(_ *cobra.Command, args []string) error {
			return exitWith(lab.Exec(name, hostIn(name, namespace, args[0]), commandAfter(args)))
		},
	}
	labFlag(cmd, &name)
	podNamespaceFlag(cmd, &namespace)
	// Flags after the host are the command's, with or without "--".
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// podNamespaceFlag adds the --namespace of a pod's name in a running lab.
func podNamespaceFlag(cmd *cobra.Command, namespace *string) {
	namespaceFlag(cmd, namespace, "a POD without one", "none; a name that is unique in the lab needs no namespace")
}

// hostIn returns the name of a host in a running lab: a pod's with its namespace, and those of nodes and clients as they are.
func hostIn(labName, namespace, host string) string {
	pod := inNamespace(namespace, host)
	if pod == host {
		return host
	}
	if s, err := lab.StatusOf(labName); err == nil && !slices.Contains(s.Hosts(), pod) && slices.Contains(s.Hosts(), host) {
		return host
	}
	return pod
}

// commandAfter returns the arguments after the host, with or without a "--" between.
func commandAfter(args []string) []string {
	switch {
	case len(args) < 2:
		return nil
	case args[1] == "--":
		return args[2:]
	}
	return args[1:]
}

func newLabStatusCommand() *cobra.Command {
	var name, output string
	cmd := &cobra.Command{
		Use:   "status [LAB]",
		Short: "Show the hosts of a running lab, with their addresses and daemons",
		Args:  labByName(&name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := lab.StatusOf(name)
			if err != nil {
				return err
			}
			if output == "text" {
				return s.WriteText(cmd.OutOrStdout())
			}
			return writeValue(cmd.OutOrStdout(), output, s)
		},
	}
	labFlag(cmd, &name)
	outputFlag(cmd, &output)
	return cmd
}

func newLabDownCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "down [LAB]",
		Short: "Stop a running lab, and wait until it has ended",
		Args:  labByName(&name),
		RunE:  func(*cobra.Command, []string) error { return lab.Down(name) },
	}
	labFlag(cmd, &name)
	return cmd
}

func newLabInitCommand() *cobra.Command {
	var f labFlags
	cmd := &cobra.Command{
		Use:   "init NAME [DIR] | --objects PATH... [DIR]",
		Short: "Write the file of a built-in lab, or of a lab derived from objects, for editing",
		Example: `  nfqproxy lab init kind my-lab
  nfqproxy lab init --objects cluster.yaml my-lab`,
		Args:              atMost(2, "a lab and a directory"),
		ValidArgsFunction: builtInLabs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(f.objects) > 0 {
				return f.initObjects(cmd.OutOrStdout(), args)
			}
			if len(args) == 0 {
				return fmt.Errorf("a lab is required: give --objects or a built-in lab: %s", strings.Join(labs.Names(), ", "))
			}
			if _, err := f.options(nil); err != nil {
				return err
			}
			data, err := labs.File(args[0])
			if err != nil {
				return err
			}
			return writeLab(cmd.OutOrStdout(), directory(args[1:]), args[0], data)
		},
	}
	f.addObjects(cmd.Flags())
	return cmd
}

// directory returns the directory in the arguments, or the current one.
func directory(args []string) string {
	if len(args) == 0 {
		return "."
	}
	return args[0]
}

// initObjects writes a lab that is derived from objects.
func (f *labFlags) initObjects(stdout io.Writer, args []string) error {
	if len(args) > 1 {
		return fmt.Errorf("%s: with --objects, give only the directory", strings.Join(args, " "))
	}
	o, err := f.derive()
	if err != nil {
		return err
	}
	dir := directory(args)
	file, err := lab.FromObjects(f.objects, dir, o)
	if err != nil {
		return err
	}
	return writeLab(stdout, dir, file.Spec.Name+"-lab", file.Data)
}

// writeLab writes a lab's file and prints the command that starts it.
func writeLab(stdout io.Writer, dir, name string, data []byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	path := filepath.Join(dir, name+".yaml")
	if err := createFile(path, data); err != nil {
		return err
	}
	if !strings.ContainsRune(path, filepath.Separator) {
		path = "./" + path
	}
	_, err := fmt.Fprintf(stdout, "%s\n\nStart it:  nfqproxy lab up %[1]s\n", path)
	return err
}

// createFile writes a file, and replaces none: the user may have edited it.
func createFile(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists: remove it or give another name", path)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

func newLabListCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the built-in labs",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var all []shipped
			for _, name := range labs.Names() {
				data, err := labs.File(name)
				if err != nil {
					return err
				}
				// The first line is the title, up to a colon.
				comment, _, _ := strings.Cut(strings.TrimPrefix(string(data), "# "), "\n")
				comment, _, _ = strings.Cut(comment, ":")
				all = append(all, shipped{name, strings.TrimSuffix(comment, ".")})
			}
			return writeShipped(cmd.OutOrStdout(), output, "", all)
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

// shipped is a lab or an experiment of this program.
type shipped struct {
	Name  string `json:"name"`
	Title string `json:"title"`
}

// writeShipped lists labs or experiments. As text it begins with the heading, if there is one.
func writeShipped(w io.Writer, output, heading string, all []shipped) error {
	if output != "text" {
		return writeValue(w, output, all)
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprint(t, heading)
	for _, s := range all {
		fmt.Fprintf(t, "%s\t%s\n", s.Name, s.Title)
	}
	return t.Flush()
}
