package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(newLabUpCommand(), newLabDemoCommand(), newLabExecCommand(), newLabStatusCommand(), newLabDownCommand(), newLabInitCommand(), newLabListCommand())
	return cmd
}

// exitCode is the exit code of what a command ran. It says nothing by itself: what was
// run has said what there is to say.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// exitWith makes an exit code that is not 0 an error.
func exitWith(code int, err error) error {
	if err == nil && code != 0 {
		return exitCode(code)
	}
	return err
}

func builtInLabs(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return labs.Names(), cobra.ShellCompDirectiveDefault
}

func newLabUpCommand() *cobra.Command {
	var o lab.RunOptions
	cmd := &cobra.Command{
		Use:   "up FILE|NAME",
		Short: "Bring a lab up and show decisions as they are made, until interrupted",
		Long: `Bring a lab up and show decisions as they are made, until interrupted. The lab is
a file or one of the built-in labs. Changes of the Kubernetes objects in the file
apply while the lab runs.`,
		Example:           "  nfqproxy lab up kind\n  nfqproxy lab up ./my-lab.yaml --walk",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: builtInLabs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Lab, o.Stdout, o.Stderr = args[0], cmd.OutOrStdout(), cmd.ErrOrStderr()
			return exitWith(lab.RunUp(o))
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.All, "all", false, "show flows that are for no service, too")
	flags.BoolVar(&o.Walk, "walk", false, "show the walk through kube-proxy's chains below each decision")
	flags.BoolVar(&o.Logs, "logs", false, "show the logs of the nodes' daemons, too")
	hairpin := hairpinFlag(flags)
	cmd.PreRun = func(*cobra.Command, []string) { o.NoHairpinMasquerade = !*hairpin }
	return cmd
}

// hairpinFlag is nfqproxy run's own, for all nodes of a lab.
func hairpinFlag(flags *pflag.FlagSet) *bool {
	return flags.Bool("masquerade-hairpin", true, "masquerade what pods send to themselves; false shows what breaks without")
}

func newLabDemoCommand() *cobra.Command {
	var o lab.RunOptions
	cmd := &cobra.Command{
		Use:   "demo [FILE|NAME]",
		Short: "Bring a lab up, show requests and what became of them, and take it down",
		Long: `Bring a lab up (by default the built-in lab kind), make real requests in it, and
show for each what was decided and why, and the kernel's entry for it. The exit
code is not 0 if anything was not as it should be.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: builtInLabs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Lab, o.Stdout, o.Stderr = "kind", cmd.OutOrStdout(), cmd.ErrOrStderr()
			if len(args) > 0 {
				o.Lab = args[0]
			}
			return exitWith(lab.RunDemo(o))
		},
	}
	hairpin := hairpinFlag(cmd.Flags())
	cmd.PreRun = func(*cobra.Command, []string) { o.NoHairpinMasquerade = !*hairpin }
	return cmd
}

// labFlag is the flag of commands that speak to a running lab.
func labFlag(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "lab", "", "name of the lab (not needed where only one is running)")
}

func newLabExecCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "exec POD|NODE|CLIENT -- COMMAND...",
		Short: "Run a command of this machine inside a host of a running lab",
		Example: `  nfqproxy lab exec shell -- curl -s http://10.96.118.136/
  nfqproxy lab exec kind-worker -- tcpdump -ni any port 80
  nfqproxy lab exec kind-worker -- bash`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(commandAfter(args)) == 0 {
				return errors.New("want a host and a command: nfqproxy lab exec shell -- ip address")
			}
			return nil
		},
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
		Use:   "status",
		Short: "Show the hosts of a running lab, their addresses and daemons",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"text", "json"}, output) {
				return fmt.Errorf("--output %s: want text or json", output)
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
	return cmd
}

func newLabDownCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "down",
		Short: "End a running lab and wait until it is gone",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return lab.Down(name) },
	}
	labFlag(cmd, &name)
	return cmd
}

func newLabInitCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "init NAME [DIR]",
		Short:             "Write the file of a built-in lab, to be changed",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: builtInLabs,
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := labs.File(args[0])
			if err != nil {
				return err
			}
			dir := "."
			if len(args) == 2 {
				dir = args[1]
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			path := filepath.Join(dir, args[0]+".yaml")
			// What is there already may have been changed.
			f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
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
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n\nStart it:  nfqproxy lab up %[1]s\n", path)
			return err
		},
	}
}

func newLabListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the built-in labs",
		Args:  cobra.NoArgs,
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
