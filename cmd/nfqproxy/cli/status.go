package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// statusTimeout is how long the daemon may take: it compares the kernel rules.
const statusTimeout = 30 * time.Second

// statusFlags are the flags of nfqproxy status.
type statusFlags struct {
	server serverFlags
	output string
}

func newStatusCommand(connect connector) *cobra.Command {
	var f statusFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of the daemon and of its kernel rules",
		Long: `Show the state of the daemon, or of all daemons of a lab: the service table, the queues
and their workers, the kernel rules, losses by reason, the host's own rules, and the
confinement in force. The kernel rules and all elements of their sets are compared with
the service table, at most every 5 seconds.

The exit code is 0 if all is well, 1 if a node has a problem, and 2 on an error, such as a
daemon that does not respond. Problems are: a lab node is unreachable, a daemon does not
serve, a change of objects is late, the kernel rules are damaged or differ from the
service table, the kernel's copy of the service table decides new flows instead of the
daemon, a worker makes no progress, or rules are missing in the host's firewall. Lost
packets and records are not a problem here.`,
		Example: `  nfqproxy status
  nfqproxy status -o json | jq '.nodes[].problems'`,
		// Without ending(): a status that is interrupted is not all right.
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return blameFlag(cmd.Flags(), f.run(cmd, connect, cmd.OutOrStdout()))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	outputFlag(cmd, &f.output)
	f.server.add(cmd)
	return cmd
}

func (f *statusFlags) run(cmd *cobra.Command, connect connector, stdout io.Writer) error {
	style := f.server.style(cmd.OutOrStdout())
	observer, err := f.server.observer(cmd.Context(), connect, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), statusTimeout, fmt.Errorf("no status within %s: check whether the daemon is frozen (until it runs again, the kernel's copy of the service table decides new flows)", statusTimeout))
	defer cancel()
	nodes, err := observer.Status(ctx)
	if err != nil {
		return err
	}
	if len(nodes) == 0 {
		return errors.New("the flow API returned no nodes: not an nfqproxy of this version?")
	}
	if f.output != "text" {
		err = writeValue(stdout, f.output, observe.StatusList{Nodes: nodes})
	} else {
		_, err = io.WriteString(stdout, style.Status(nodes))
	}
	if err = unlessClosed(ctx, err); err == nil && slices.ContainsFunc(nodes, func(s observe.Status) bool { return len(s.Problems) > 0 }) {
		return answerNo
	}
	return err
}
