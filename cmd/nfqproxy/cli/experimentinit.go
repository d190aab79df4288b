package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/yamlfile"
	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

func newExperimentInitCommand() *cobra.Command {
	var d experiment.Draft
	cmd := &cobra.Command{
		Use:   "init FILE",
		Short: "Write the file of a new experiment",
		Long: `Write the file of a new experiment: one service, flows to it, and the algorithms to
compare. Comments show what else an experiment can have. On a terminal, the command asks
for values not given by flags; otherwise it uses the defaults. It does not overwrite a
file.`,
		Example: `  nfqproxy experiment init my.yaml
  nfqproxy experiment init my.yaml --endpoints 100 --load 0.9 --algorithms random,p2c,ring`,
		Args: exactly(1, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if isTerminal(cmd.InOrStdin()) {
				if err := askDraft(cmd.Flags(), cmd.InOrStdin(), cmd.OutOrStdout()); err != nil {
					return err
				}
			}
			text, err := d.Write(args[0])
			if err != nil {
				return ofFlags(err)
			}
			if err := createFile(args[0], text); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n\nRun it:  nfqproxy experiment run %[1]s\n", args[0])
			return err
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&d.Endpoints, "endpoints", 10, "number of endpoints of the service")
	flags.Float64Var(&d.Load, "load", 0.7, "offered load, as a share of the endpoints' capacity")
	flags.DurationVar(&d.Work, "work", 10*time.Millisecond, "mean service time of a flow at an endpoint")
	flags.StringSliceVar(&d.Algorithms, "algorithms", []string{"random", "p2c"}, "balancing algorithms to compare")
	flags.StringVar(&d.Distribution, "distribution", "exponential", "distribution of the service times: constant, exponential, uniform, lognormal or pareto")
	flags.IntVar(&d.Nodes, "nodes", 1, "number of nodes; each decides on its own")
	return cmd
}

// draftFlags are the flags that set the fields of a draft.
var draftFlags = map[string]string{
	"cluster.nodes": "nodes", "cluster.services[0].endpoints": "endpoints", "workload.arrivals.load": "load", "workload.work.mean": "work",
	"workload.work.distribution": "distribution",
}

// ofFlags names the flags of mistakes in a file that is not written: a user knows them, and not its lines.
func ofFlags(err error) error {
	mistakes, ok := errors.AsType[yamlfile.Mistakes](err)
	if !ok {
		return err
	}
	var all []error
	for _, m := range mistakes {
		field, _, _ := strings.Cut(m.Field, "[")
		switch flag := draftFlags[m.Field]; {
		case m.Field == "workload.work.mean" && m.Err.Error() == "missing": // 0s, which a file leaves out
			all = append(all, errors.New("--work: want a time above 0"))
		case m.Field == "metadata.name":
			all = append(all, fmt.Errorf("%s: without its extension it is the experiment's name: %w", m.File, m.Err))
		case flag != "":
			all = append(all, fmt.Errorf("--%s: %w", flag, m.Err))
		case field == "algorithms":
			all = append(all, fmt.Errorf("--algorithms: %w", m.Err))
		default:
			all = append(all, m)
		}
	}
	return errors.Join(all...)
}

// askDraft asks for what no flag says, until each answer is one. No answer is the default.
func askDraft(flags *pflag.FlagSet, from io.Reader, to io.Writer) error {
	lines := bufio.NewScanner(from)
	for _, q := range []struct{ flag, question string }{
		{"endpoints", "How many endpoints does the service have?"},
		{"load", "What is the load, as a share of their capacity?"},
		{"work", "How long does an endpoint take for a flow, on average?"},
		{"algorithms", "Which algorithms should be compared?"},
	} {
		usual := strings.Trim(flags.Lookup(q.flag).DefValue, "[]")
		for !flags.Changed(q.flag) {
			fmt.Fprintf(to, "%s [%s] ", q.question, usual)
			if !lines.Scan() {
				return fmt.Errorf("no answer for --%s", q.flag)
			}
			answer := strings.ReplaceAll(strings.TrimSpace(lines.Text()), ", ", ",")
			if answer == "" {
				break
			}
			if err := flags.Set(q.flag, answer); err != nil {
				fmt.Fprintf(to, "%q cannot be read; an example is %s\n", answer, usual)
			}
		}
	}
	return nil
}
