package cli

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/view/flowtext"
	"github.com/nfqproxy/nfqproxy/control/view/whytext"
	"github.com/nfqproxy/nfqproxy/datapath/sim/diagnose"
)

// doctorFlags are the flags of nfqproxy doctor.
type doctorFlags struct {
	clusterFlags
	ignore []string
	notes  bool
	output string
}

func newDoctorCommand(connect connector) *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor [--objects PATH | --kubeconfig FILE]",
		Short: "Find what is wrong with all services",
		Long: `Find what is wrong with all services: selectors, target ports, endpoints, traffic policies
and addresses. The findings are listed with the worst first, each with what to do. The
objects come from your running lab, from an API server (--kubeconfig) or from files
(--objects). In a lab, recent flows count too.

The exit code is 0 if there are no errors and warnings, 1 if there are, and 2 if the
objects cannot be read.`,
		Example: `  nfqproxy doctor
  nfqproxy doctor --kubeconfig ~/.kube/config --ignore NFQ034
  kubectl get svc,endpointslices,nodes,pods -A -o yaml | nfqproxy doctor --objects -`,
		Annotations: ending(),
		Args:        noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			findings, err := f.findings(cmd, connect)
			if err == nil {
				err = f.write(cmd.OutOrStdout(), findings)
			}
			if err != nil {
				return exitWith(exitTrouble, err)
			}
			if len(findings) > 0 && findings[0].Code.Severity() != diagnose.Note {
				return exitCode(1)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.add(cmd)
	flags.StringSliceVar(&f.ignore, "ignore", nil, "leave out findings with these codes, such as NFQ034")
	flags.BoolVar(&f.notes, "notes", false, "list notes, too: what is worth knowing, and not wrong")
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
	c, err := f.cluster(cmd.Context(), connect, cmd.InOrStdin())
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(c.Examine(), func(d diagnose.Finding) bool {
		return slices.Contains(f.ignore, string(d.Code)) || !f.notes && d.Code.Severity() == diagnose.Note
	}), nil
}

func (f *doctorFlags) write(w io.Writer, findings []diagnose.Finding) error {
	if f.output == "json" {
		return writeJSON(w, struct {
			Version  int                `json:"version"`
			Findings []diagnose.Finding `json:"findings"`
		}{diagnose.Version, append([]diagnose.Finding{}, findings...)})
	}
	_, err := io.WriteString(w, whytext.Findings(flowtext.StyleFor(w), findings))
	return err
}
