package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

func newLabCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Clusters out of network namespaces, for one machine and any user",
		Long: `Clusters out of network namespaces: nodes, pods and outside hosts on this machine,
with real routes between them and an nfqproxy on each node. An ordinary user can
run them, in a user namespace. Everything is in memory: nothing is left behind.`,
		Example: `  nfqproxy lab demo
  nfqproxy lab up kind
  nfqproxy lab exec shell -- curl -s http://10.96.118.136/`,
	}
	cmd.AddCommand(newLabUpCommand(), newLabDemoCommand(), newLabExecCommand(), newLabStatusCommand(), newLabDownCommand(), newLabInitCommand(), newLabListCommand())
	group(cmd)
	return cmd
}

// exitCode is the exit code of what a command ran. It says nothing by itself: what was
// run has said what there is to say.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// failure is an error with an exit code of its own.
type failure struct {
	error
	code exitCode
}

func (f failure) Unwrap() []error { return []error{f.error, f.code} }

// exitWith makes an exit code that is not 0 an error.
func exitWith(code int, err error) error {
	switch {
	case err != nil && code > 1:
		return failure{err, exitCode(code)}
	case err == nil && code != 0:
		return exitCode(code)
	}
	return err
}

func builtInLabs(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return labs.Names(), cobra.ShellCompDirectiveDefault
}

// labFlags say what a lab is made of, besides a file or a name.
type labFlags struct {
	objects      []string
	clusterCIDRs []string
	namespaces   []string
	services     []string
	hairpin      bool
}

// addObjects adds the flags of a lab that is made of objects.
func (f *labFlags) addObjects(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.objects, "objects", nil, "make the lab of Kubernetes objects alone: file or directory with Services, EndpointSlices, Nodes and Pods (YAML or JSON); may be repeated")
	flags.StringSliceVar(&f.clusterCIDRs, "cluster-cidr", nil, "with --objects: prefixes of all pods, one of each family (default: the least that has those there are)")
	flags.StringSliceVar(&f.namespaces, "namespace", nil, "with --objects: only the Pods and Services of these namespaces, and what they need (default: all)")
	flags.StringSliceVar(&f.services, "service", nil, "with --objects: only these Services, NAMESPACE/NAME, and what they need (default: all)")
}

// add adds all flags that change what a lab is.
func (f *labFlags) add(flags *pflag.FlagSet) {
	f.addObjects(flags)
	flags.BoolVar(&f.hairpin, "masquerade-hairpin", true, "masquerade what pods send to themselves; false is for teaching: it shows what breaks without")
}

// options are what the flags say; args are the command's: the lab's name, where it can
// have one.
func (f *labFlags) options(args []string) (o lab.RunOptions, err error) {
	switch {
	case len(f.objects) > 0 && len(args) > 0:
		return o, fmt.Errorf("%s and --objects: give a lab, or objects to make one of", args[0])
	case len(f.objects) == 0 && len(f.clusterCIDRs)+len(f.namespaces)+len(f.services) > 0:
		return o, errors.New("--cluster-cidr, --namespace and --service are for labs made of --objects; a lab file says such things itself")
	case len(args) > 0:
		o.Lab = args[0]
	}
	o.Objects, o.NoHairpinMasquerade = f.objects, !f.hairpin
	o.Derive, err = f.derive()
	return o, err
}

// derive is how the objects are to be understood.
func (f *labFlags) derive() (o lab.DeriveOptions, err error) {
	o.Namespaces = f.namespaces
	for _, s := range f.services {
		namespace, name, ok := strings.Cut(s, "/")
		if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return o, fmt.Errorf("--service %q: want NAMESPACE/NAME", s)
		}
		o.Services = append(o.Services, decision.ServiceName{Namespace: namespace, Name: name})
	}
	if o.ClusterCIDRs, err = parsePrefixes("--cluster-cidr", f.clusterCIDRs); err != nil {
		return o, err
	}
	var families []netip.Addr
	for _, p := range o.ClusterCIDRs {
		families = append(families, p.Addr())
	}
	if family, ok := twice(families); ok {
		return o, fmt.Errorf("--cluster-cidr: %s prefix given twice: there is one of each family", family)
	}
	return o, nil
}

func newLabUpCommand() *cobra.Command {
	var f labFlags
	var all, walk, logs bool
	var page string
	cmd := &cobra.Command{
		Use:   "up FILE|NAME | --objects PATH...",
		Short: "Bring a lab up and show decisions as they are made, until interrupted",
		Long: `Bring a lab up and show decisions as they are made, until interrupted. The lab is
a file, one of the built-in labs or, with --objects, made of what kubectl or nfqproxy
services print of a real cluster; what they do not say is guessed, and said at the
start. Changes of the Kubernetes objects in the files apply while the lab runs.`,
		Example: `  nfqproxy lab up kind
  nfqproxy lab up ./my-lab.yaml --walk
  kubectl get svc,endpointslices,nodes,pods -A -o yaml > cluster.yaml
  nfqproxy lab up --objects cluster.yaml --namespace shop`,
		Args:              atMost(1, "one lab"),
		ValidArgsFunction: builtInLabs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && len(f.objects) == 0 {
				return fmt.Errorf("which lab? give a file, objects to make one of (--objects), or one of these: %s", strings.Join(labs.Names(), ", "))
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
	flags.BoolVar(&all, "all", false, "show flows that are for no service, too")
	flags.BoolVar(&walk, "walk", false, "show the walk through kube-proxy's chains below each decision")
	flags.BoolVar(&logs, "logs", false, "show the logs of the nodes' daemons, too")
	flags.StringVar(&page, "page", "", "loopback address and port of the web page (default "+lab.DefaultPage+" or, where that is taken, any port)")
	f.add(flags)
	return cmd
}

func newLabDemoCommand() *cobra.Command {
	var f labFlags
	cmd := &cobra.Command{
		Use:   "demo [FILE|NAME | --objects PATH...]",
		Short: "Bring a lab up, show requests and what became of them, and take it down",
		Long: `Bring a lab up (by default the built-in lab kind), make real requests in it, and
show for each what was decided and why, and the kernel's entry for it. The exit
code is not 0 if anything was not as it should be.`,
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

// labFlag is the flag of commands that speak to a running lab.
func labFlag(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "lab", "", "name of the lab (not needed where only one is running)")
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
	var name string
	cmd := &cobra.Command{
		Use:   "exec POD|NODE|CLIENT -- COMMAND...",
		Short: "Run a command of this machine inside a host of a running lab",
		Example: `  nfqproxy lab exec shell -- curl -s http://10.96.118.136/
  nfqproxy lab exec kind-worker -- tcpdump -ni any port 80
  nfqproxy lab exec kind-worker -- bash`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return errors.New("lab exec needs a host and a command, for example: nfqproxy lab exec shell -- ip address")
			case len(commandAfter(args)) == 0:
				return fmt.Errorf("lab exec needs a command after the host, for example: nfqproxy lab exec %s -- ip address", args[0])
			}
			return nil
		},
		ValidArgsFunction: labHosts(&name),
		RunE: func(_ *cobra.Command, args []string) error {
			return exitWith(lab.Exec(name, args[0], commandAfter(args)))
		},
	}
	labFlag(cmd, &name)
	// Flags after the host are the command's, with or without "--".
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// commandAfter gives what follows the host, with or without a "--" between.
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
		Use:               "status [LAB]",
		Short:             "Show the hosts of a running lab, their addresses and daemons",
		Args:              labByName(&name),
		ValidArgsFunction: runningLabs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"text", "json"}, output) {
				return fmt.Errorf("--output %q: want text or json", output)
			}
			s, err := lab.StatusOf(name)
			if err != nil {
				return err
			}
			if output == "text" {
				return s.WriteText(cmd.OutOrStdout())
			}
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			return e.Encode(s)
		},
	}
	labFlag(cmd, &name)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	complete(cmd, "output", []string{"text", "json"})
	return cmd
}

func newLabDownCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:               "down [LAB]",
		Short:             "End a running lab and wait until it is gone",
		Args:              labByName(&name),
		ValidArgsFunction: runningLabs,
		RunE:              func(*cobra.Command, []string) error { return lab.Down(name) },
	}
	labFlag(cmd, &name)
	return cmd
}

func newLabInitCommand() *cobra.Command {
	var f labFlags
	cmd := &cobra.Command{
		Use:   "init NAME [DIR] | --objects PATH... [DIR]",
		Short: "Write the file of a built-in lab, or of one made of objects, to be changed",
		Example: `  nfqproxy lab init kind my-lab
  nfqproxy lab init --objects cluster.yaml my-lab`,
		Args:              atMost(2, "a lab and a directory"),
		ValidArgsFunction: builtInLabs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(f.objects) > 0 {
				return f.initObjects(cmd.OutOrStdout(), args)
			}
			if len(args) == 0 {
				return fmt.Errorf("which lab? give objects to make one of (--objects), or one of these: %s", strings.Join(labs.Names(), ", "))
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

// directory is the one in the arguments, or the current one.
func directory(args []string) string {
	if len(args) == 0 {
		return "."
	}
	return args[0]
}

// initObjects writes a lab that is made of objects.
func (f *labFlags) initObjects(stdout io.Writer, args []string) error {
	if len(args) > 1 {
		return fmt.Errorf("%s: with --objects give only the directory", strings.Join(args, " "))
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

// writeLab writes a lab's file and says how to start it.
func writeLab(stdout io.Writer, dir, name string, data []byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	path := filepath.Join(dir, name+".yaml")
	// What is there already may have been changed.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists, and is not overwritten: remove it, or name another directory", path)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if !strings.ContainsRune(path, filepath.Separator) {
		path = "./" + path
	}
	_, err = fmt.Fprintf(stdout, "%s\n\nStart it:  nfqproxy lab up %[1]s\n", path)
	return err
}

func newLabListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the built-in labs",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, name := range labs.Names() {
				data, err := labs.File(name)
				if err != nil {
					return err
				}
				// The first line says what it is, up to a colon.
				comment, _, _ := strings.Cut(strings.TrimPrefix(string(data), "# "), "\n")
				comment, _, _ = strings.Cut(comment, ":")
				fmt.Fprintf(t, "%s\t%s\n", name, strings.TrimSuffix(comment, "."))
			}
			return t.Flush()
		},
	}
}
