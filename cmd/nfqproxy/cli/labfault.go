package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

func newLabFaultCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fault",
		Short: "Break something in a running lab, and fix it again",
		Example: `  nfqproxy lab fault add firewall kind-worker --to 10.244.2.2 --port 80
  nfqproxy lab fault add loss kind-worker2 --percent 20
  nfqproxy lab fault list
  nfqproxy lab fault rm 1`,
	}
	cmd.AddCommand(newLabFaultAddCommand(), newLabFaultListCommand(), newLabFaultRemoveCommand())
	group(cmd)
	return cmd
}

// faultFlag is a parameter of a fault as a flag.
type faultFlag struct {
	fault *labapi.Fault
	name  string
	kind  string // see the Parameter constants of observe
	text  string
}

// String returns the text as given.
func (f *faultFlag) String() string { return f.text }

// Set sets the parameter.
func (f *faultFlag) Set(text string) error {
	f.text = text
	return f.fault.Set(f.name, text)
}

// Type is the type in the help.
func (f *faultFlag) Type() string {
	switch f.kind {
	case labapi.ParameterFlag:
		return "bool"
	case labapi.ParameterNumber:
		return "number"
	}
	return "string"
}

// addFaultFlags adds the parameters of all kinds.
func addFaultFlags(cmd *cobra.Command, fault *labapi.Fault) {
	for _, name := range labapi.FaultParameterNames() {
		// What it means for some kinds, and for others.
		var meanings []string
		kinds := make(map[string][]string)
		var last labapi.FaultParameter
		for _, k := range labapi.FaultKinds {
			for _, p := range k.Parameters {
				if p.Name != name {
					continue
				}
				if kinds[p.What] == nil {
					meanings = append(meanings, p.What)
				}
				kinds[p.What], last = append(kinds[p.What], k.Name), p
			}
		}
		for i, what := range meanings {
			meanings[i] = strings.Join(kinds[what], ", ") + ": " + what
			if len(last.Options) > 0 {
				meanings[i] += fmt.Sprintf(" (%s; default: %s)", strings.Join(last.Options, ", "), last.Options[0])
			}
		}
		flag := cmd.Flags().VarPF(&faultFlag{fault: fault, name: name, kind: last.Type}, name, "", strings.Join(meanings, "; "))
		if last.Type == labapi.ParameterFlag {
			flag.NoOptDefVal = "true"
		}
		if len(last.Options) > 0 {
			complete(cmd, name, last.Options)
		}
	}
}

func newLabFaultAddCommand() *cobra.Command {
	var name string
	var fault lab.Fault
	var kinds strings.Builder
	t := tabwriter.NewWriter(&kinds, 0, 0, 2, ' ', 0)
	for _, k := range labapi.FaultKinds {
		what := k.What
		if len(k.Parameters) > 0 {
			var flags []string
			for _, p := range k.Parameters {
				flags = append(flags, "--"+p.Name)
			}
			what += " (" + strings.Join(flags, ", ") + ")"
		}
		fmt.Fprintf(t, "  %s\t%s\n", k.Name, what)
	}
	_ = t.Flush() // a Builder takes everything
	cmd := &cobra.Command{
		Use:   "add KIND HOST",
		Short: "Break something on a node, pod or client",
		Long:  "Break something on a node, pod or client of a running lab, until \"fault rm\", the lab's end, or until you undo it by hand:\n\n" + strings.TrimRight(kinds.String(), "\n"),
		Args:  exactly(2, "a kind and a host"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return labapi.FaultKindNames(), cobra.ShellCompDirectiveNoFileComp
			}
			return labHosts(&name)(cmd, args[1:], word)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			fault.Kind, fault.Host = args[0], args[1]
			if err := fault.Check(); err != nil {
				return asFlag(err)
			}
			added, err := lab.AddFaultOf(name, fault)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "fault %d: %s\n", added.ID, added.Text)
			return err
		},
	}
	addFaultFlags(cmd, &fault)
	labFlag(cmd, &name)
	return cmd
}

// asFlag turns an error about a parameter into one about the flag.
func asFlag(err error) error {
	if e, ok := errors.AsType[*observe.Error](err); ok && slices.Contains(labapi.FaultParameterNames(), e.Field) {
		return fmt.Errorf("--%w", err)
	}
	return err
}

func newLabFaultListCommand() *cobra.Command {
	var name, output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the faults of a running lab",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			faults, err := lab.FaultsOf(name)
			if err != nil {
				return err
			}
			if output != "text" {
				return writeValue(cmd.OutOrStdout(), output, append([]lab.Fault{}, faults...))
			}
			return writeFaults(cmd.OutOrStdout(), faults)
		},
	}
	labFlag(cmd, &name)
	outputFlag(cmd, &output)
	return cmd
}

func writeFaults(w io.Writer, faults []lab.Fault) error {
	for _, f := range faults {
		if _, err := fmt.Fprintf(w, "%d  %s\n", f.ID, f.Text); err != nil {
			return err
		}
	}
	if len(faults) == 0 {
		_, err := fmt.Fprintln(w, "no faults")
		return err
	}
	return nil
}

func newLabFaultRemoveCommand() *cobra.Command {
	var name string
	var all bool
	cmd := &cobra.Command{
		Use:   "rm NUMBER | --all",
		Short: "Mend a fault",
		Args:  atMost(1, "a fault's number"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := 0
			switch {
			case all == (len(args) == 1):
				return fmt.Errorf("give a fault's number or --all")
			case !all:
				n, err := strconv.Atoi(args[0])
				if err != nil || n < 1 {
					return fmt.Errorf("%q: want a fault's number (nfqproxy lab fault list)", args[0])
				}
				id = n
			}
			ended, err := lab.RemoveFaultOf(name, id)
			if err != nil {
				return err
			}
			for _, f := range ended {
				cmd.Printf("fault %d is over: %s\n", f.ID, f.Text)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all faults")
	labFlag(cmd, &name)
	return cmd
}
