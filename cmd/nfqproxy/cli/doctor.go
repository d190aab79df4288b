package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/view/text"
)

// doctorFlags are the flags of nfqproxy doctor.
type doctorFlags struct {
	clusterFlags
	rules  []string
	node   nodeFiles
	ignore []string
	notes  bool
	walk   text.Walk
	output string

	namespaces namespaceFlags
}

func newDoctorCommand(connect connector) *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor [--objects PATH | --kubeconfig FILE | --rules FILE | --node BUNDLE] [--server ADDRESS]",
		Short: "Find what is wrong with all services",
		Long: `Find what is wrong with all services: selectors, target ports, endpoints, traffic policies
and addresses. The findings are listed with the worst first, each with what to do. The
objects come from files (--objects), from an API server (--kubeconfig, --context), or else
from your running lab, or else from the API server of $KUBECONFIG. As kubectl plugin it
looks at the cluster of kubectl; nothing has to be installed there. In a lab, what its nodes
observe counts too: flows, service tables, daemons, and firewall rules that drop flows. On a node, as root, --server unix:/run/nfqproxy/flows.sock
does that for the node, with or without objects.

With --rules it looks at a node's iptables rules instead: it follows a connection to every
service from pods, from the node and from outside through all rules, in simulation, and
names those that drop it or keep it from being translated; and whether kube-proxy's own
rules are consistent. The last lines are what was examined, what not, and what was assumed.

With --ipvs it looks at a node's virtual servers of IPVS, alone or beside its rules: then it
follows connections to them, too, as documented for IPVS. --host and --sets are the node's
addresses, routes and ipsets. With --conntrack it compares a node's connection
entries with the Services, and names those that contradict them: with --objects or
--kubeconfig, and --node for the name of the node.

With --node it does the same for a bundle of nfqproxy collect, with the node's addresses,
routes, sysctls, virtual servers and connection entries; or for a directory with the bundles of several nodes:
then each cause is listed once, with the nodes that have it. With --objects beside --rules or
--node it also compares the node's rules or virtual servers with what the objects ask for.

The exit code is 0 if there are no errors and warnings, 1 if there are, and 2 if the
command fails.`,
		Example: `  nfqproxy doctor
  nfqproxy doctor --kubeconfig ~/.kube/config --ignore NFQ034
  kubectl get svc,endpointslices,nodes,pods,networkpolicies,namespaces -A -o yaml | nfqproxy doctor --objects -
  iptables-save | nfqproxy doctor --rules -
  ipvsadm -Sn > ipvs.txt; ip -j addr > addr.json; nfqproxy doctor --ipvs ipvs.txt --host addr.json
  conntrack -L > entries.txt; nfqproxy doctor --conntrack entries.txt --objects cluster.yaml --node node-a

  nfqproxy doctor --node node-a.tar.gz`,
		Annotations: ending(),
		Args:        noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, examined, err := f.findings(cmd, connect)
			if err == nil {
				err = f.write(cmd.OutOrStdout(), found, examined)
			}
			if err != nil {
				return err
			}
			if len(found) > 0 && found[0].Wrong() {
				return answerNo
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.clusterFlags.add(cmd)
	flags.Lookup("node").Usage += orBundle + ", or a directory with those of several nodes"
	flags.StringArrayVar(&f.rules, "rules", nil, "look at the rules of a node instead: output of iptables-save, ip6tables-save or nft list ruleset, - for standard input; may be repeated")
	f.node.add(flags)
	flags.StringSliceVar(&f.ignore, "ignore", nil, "findings with these codes, such as NFQ034, are intended: do not count them")
	flags.BoolVar(&f.notes, "notes", false, "list notes, too: what is worth knowing, and not wrong; and what is ignored")
	walkFlag(cmd, &f.walk, "; prints the decision about each example as nfqproxy explain does", text.WalkNone)
	outputFlag(cmd, &f.output)
	f.namespaces.add(cmd, "the objects with findings", "all")
	return cmd
}

// findings returns the findings that the flags ask for, the worst first, and the scope of the examination of rules.
func (f *doctorFlags) findings(cmd *cobra.Command, connect connector) (found []diagnose.Finding, examined []*diagnose.Examined, err error) {
	for _, code := range f.ignore {
		if !slices.Contains(diagnose.Codes(), diagnose.Code(code)) {
			return nil, nil, fmt.Errorf("--ignore %s: no such code; docs/reference/findings.md lists all", code)
		}
	}
	switch {
	case f.node.conntrack != "":
		found, err = f.ofEntries(cmd.Context(), cmd.InOrStdin(), cmd.ErrOrStderr())
	case bundleIn(f.table.name) != "" || len(f.rules) > 0 || f.node.given():
		found, examined, err = f.ofRules(cmd.InOrStdin(), cmd.ErrOrStderr())
	default:
		found, err = f.ofCluster(cmd.Context(), connect, cmd.InOrStdin(), cmd.ErrOrStderr())
	}
	if err != nil {
		return nil, nil, err
	}
	for i := range found {
		if slices.Contains(f.ignore, string(found[i].Code)) {
			found[i].Ignored = "--ignore " + string(found[i].Code)
		}
	}
	diagnose.Sort(found)
	namespace := f.namespaces.selected()
	return slices.DeleteFunc(found, func(d diagnose.Finding) bool {
		if namespace != "" && !strings.Contains(d.Object, " "+namespace+"/") {
			return true
		}
		// What is not known is said: "nothing is wrong" would be about less than it seems.
		return !f.notes && d.Code.Severity() == diagnose.Note && d.Code != diagnose.NotShown
	}), examined, nil
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

func (f *doctorFlags) write(w io.Writer, found []diagnose.Finding, examined []*diagnose.Examined) error {
	if f.output != "text" {
		found = slices.DeleteFunc(found, func(d diagnose.Finding) bool { return d.Ignored != "" && !f.notes })
		return writeValue(w, f.output, struct {
			Version  int                  `json:"version"`
			Findings []diagnose.Finding   `json:"findings"`
			Examined []*diagnose.Examined `json:"examined,omitempty"`
		}{diagnose.Version, append([]diagnose.Finding{}, found...), examined})
	}
	_, err := io.WriteString(w, text.StyleFor(w).Findings(found, examined, text.FindingOptions{Walk: f.walk, Ignored: f.notes}))
	return err
}
