package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/view/flowtext"
	"github.com/nfqproxy/nfqproxy/control/view/whytext"
	"github.com/nfqproxy/nfqproxy/datapath/sim/diagnose"
	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// doctorFlags are the flags of nfqproxy doctor.
type doctorFlags struct {
	clusterFlags
	rules   []string
	ignore  []string
	notes   bool
	explain bool
	output  string
}

func newDoctorCommand(connect connector) *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor [--objects PATH | --kubeconfig FILE | --rules FILE] [--server ADDRESS]",
		Short: "Find what is wrong with all services",
		Long: `Find what is wrong with all services: selectors, target ports, endpoints, traffic policies
and addresses. The findings are listed with the worst first, each with what to do. The
objects come from your running lab, from an API server (--kubeconfig) or from files
(--objects). In a lab, what its nodes observe counts too: flows, service tables, daemons,
and firewall rules that drop flows. On a node, as root, --server unix:/run/nfqproxy/flows.sock
does that for the node, with or without objects.

With --rules it looks at a node's iptables rules instead: whether kube-proxy's are
consistent, and whether other rules drop connections to services.

The exit code is 0 if there are no errors and warnings, 1 if there are, and 2 if the
objects cannot be read.`,
		Example: `  nfqproxy doctor
  nfqproxy doctor --kubeconfig ~/.kube/config --ignore NFQ034
  kubectl get svc,endpointslices,nodes,pods,networkpolicies,namespaces -A -o yaml | nfqproxy doctor --objects -
  iptables-save | nfqproxy doctor --rules -`,
		Annotations: ending(),
		Args:        noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := f.findings(cmd, connect)
			if err == nil {
				err = f.write(cmd.OutOrStdout(), found)
			}
			if err != nil {
				return exitWith(exitTrouble, err)
			}
			if len(found) > 0 && found[0].Code.Severity() != diagnose.Note {
				return exitCode(1)
			}
			return nil
		},
	}
	exitsWithTrouble(cmd)
	flags := cmd.Flags()
	flags.SortFlags = false
	f.add(cmd)
	flags.StringArrayVar(&f.rules, "rules", nil, "look at iptables rules instead: output of iptables-save or ip6tables-save; one per family, - for standard input")
	flags.StringSliceVar(&f.ignore, "ignore", nil, "leave out findings with these codes, such as NFQ034")
	flags.BoolVar(&f.notes, "notes", false, "list notes, too: what is worth knowing, and not wrong")
	flags.BoolVar(&f.explain, "explain", false, "with -o text: print the decision about each example step by step, as nfqproxy explain does")
	flags.StringVarP(&f.output, "output", "o", "text", "text or json")
	complete(cmd, "output", []string{"text", "json"})
	return cmd
}

// findings are those that the flags ask for, the worst first.
func (f *doctorFlags) findings(cmd *cobra.Command, connect connector) ([]diagnose.Finding, error) {
	if f.output != "text" && f.output != "json" {
		return nil, fmt.Errorf("--output %q: want text or json", f.output)
	}
	for _, code := range f.ignore {
		if !slices.Contains(diagnose.Codes(), diagnose.Code(code)) {
			return nil, fmt.Errorf("--ignore %s: no such code; docs/findings.md lists all", code)
		}
	}
	var found []diagnose.Finding
	var err error
	if len(f.rules) > 0 {
		found, err = f.ofRules(cmd.InOrStdin())
	} else {
		found, err = f.ofCluster(cmd.Context(), connect, cmd.InOrStdin(), cmd.ErrOrStderr())
	}
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(found, func(d diagnose.Finding) bool {
		return slices.Contains(f.ignore, string(d.Code)) || !f.notes && d.Code.Severity() == diagnose.Note
	}), nil
}

func (f *doctorFlags) ofCluster(ctx context.Context, connect connector, stdin io.Reader, stderr io.Writer) ([]diagnose.Finding, error) {
	d, err := f.doctor(ctx, connect, stdin, stderr)
	if err != nil {
		return nil, err
	}
	list, err := d.Findings(ctx)
	if err != nil {
		return nil, err
	}
	return list.Findings, nil
}

// ofRules are the findings of dumps.
func (f *doctorFlags) ofRules(stdin io.Reader) (found []diagnose.Finding, err error) {
	if len(f.table.objects) > 0 || f.kubeconfig != "" || f.lab != "" || f.server != "" || f.daemons.flags.Changed("cluster") {
		return nil, errors.New("--rules excludes --objects, --kubeconfig, --lab, --server and --cluster: give one of them")
	}
	for _, path := range f.rules {
		d, err := readRules(stdin, path, iptables.FamilyUnknown)
		if err != nil {
			return nil, fmt.Errorf("--rules: %w", err)
		}
		of, err := diagnose.ExamineRules([]*iptables.Dump{d})
		if err != nil {
			return nil, fmt.Errorf("--rules %s: %w", path, err)
		}
		for i := range of {
			of[i].Object = rulesName(path)
		}
		found = append(found, of...)
	}
	diagnose.Sort(found)
	return found, nil
}

func (f *doctorFlags) write(w io.Writer, found []diagnose.Finding) error {
	if f.output == "json" {
		return writeJSON(w, struct {
			Version  int                `json:"version"`
			Findings []diagnose.Finding `json:"findings"`
		}{diagnose.Version, append([]diagnose.Finding{}, found...)})
	}
	_, err := io.WriteString(w, whytext.Findings(flowtext.StyleFor(w), found, f.explain))
	return err
}
