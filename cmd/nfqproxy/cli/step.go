package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/stepper"
	"github.com/nfqproxy/nfqproxy/control/view/terminal"
)

// stepFlags are the flags of nfqproxy step.
type stepFlags struct {
	server serverFlags
	query  observe.HoldQuery
}

func newStepCommand(connect connector) *cobra.Command {
	var f stepFlags
	cmd := &cobra.Command{
		Use:   "step FILTER...",
		Short: "Hold the next matching flow and step it through the chains",
		Long: `Hold the next new flow that matches all filters at the queue, show its walk through
kube-proxy's chains, and execute the walk step by step. At the end, show the flow's state.
Other flows do not wait.

At a terminal, type a command and Enter. Otherwise nfqproxy reads commands as lines from
standard input, and releases the flow when the input ends:

  n, or nothing   next step; after the last one the flow is released
  b               previous step
  c N             choose candidate N instead of the selected one
  g, q            release the flow as decided
  d               drop the flow`,
		Example: `  nfqproxy step --service default/web
  printf 'n\nn\nc 2\ng\n' | nfqproxy step --service default/web --seconds 10`,
		Args:        noArgs,
		Annotations: ending(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return unlessClosed(cmd.Context(), blameFlag(cmd.Flags(), f.run(cmd, connect)))
		},
	}
	flags, q := cmd.Flags(), &f.query.Flow
	flags.SortFlags = false
	flags.StringVar(&q.Service, "service", "", "NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT; a list, separated by commas")
	namespaceFlag(cmd, &q.Namespace, "the service, of the source pod or of the endpoint's pod; a list", "all")
	flags.StringVar(&q.Pod, "pod", "", "NAME or NAMESPACE/NAME of the source pod or the endpoint's pod; a list")
	flags.StringVar(&q.Node, "node", "", "node that decides the flow; a list")
	flags.StringVar(&q.Source, "source", "", "ADDRESS, PREFIX or NAME (of a pod, a node or, in a lab, a client), or either with :PORT; a list")
	flags.StringVar(&q.Destination, "destination", "", "ADDRESS, PREFIX or ADDRESS:PORT, before translation; a list")
	flags.StringVar(&q.Port, "port", "", "destination port, before translation; a list")
	flags.StringVar(&q.Protocol, "protocol", "", "tcp, udp or sctp; a list")
	flags.IntVar(&f.query.Seconds, "seconds", 60, "how long to wait for a flow, and then how long to hold it, in seconds; at most 600")
	f.server.add(cmd)
	return cmd
}

func (f *stepFlags) run(cmd *cobra.Command, connect connector) error {
	if f.query.Flow == (observe.HoldFilter{}) {
		return errors.New("a filter is required: give at least one of --service, --namespace, --pod, --node, --source, --destination, --port and --protocol")
	}
	if f.query.Seconds < 1 || f.query.Seconds > 600 {
		return errors.New("--seconds: want a number from 1 to 600")
	}
	style := f.server.style(cmd.OutOrStdout())
	observer, err := f.server.observer(cmd.Context(), connect, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if err := checkNames(cmd.Context(), observer, observe.FlowQuery{Service: f.query.Flow.Service, Pod: f.query.Flow.Pod, Source: f.query.Flow.Source}); err != nil {
		return err
	}
	s := stepper.Session{
		Observer: observer, Query: f.query, Lines: lines(cmd.Context(), cmd.InOrStdin()),
		Screen: stepper.Screen{W: cmd.OutOrStdout(), Style: style, Messages: cmd.ErrOrStderr()},
	}
	s.Screen.Width = width(cmd.OutOrStdout())
	s.Screen.Prompt = s.Screen.Width != nil && isTerminal(cmd.InOrStdin())
	return s.Run(cmd.Context())
}

// isTerminal reports whether the input is a terminal.
func isTerminal(in io.Reader) bool {
	f, ok := in.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// width returns the width of an output that is a terminal; nil: it is not one.
func width(out io.Writer) func() int {
	f, ok := terminal.File(out)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return func() int {
		columns, _, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 0
		}
		return columns
	}
}

// lines yields the lines of an input, until it or the context ends.
func lines(ctx context.Context, in io.Reader) <-chan string {
	c := make(chan string)
	go func() {
		defer close(c)
		for s := bufio.NewScanner(in); s.Scan(); {
			select {
			case c <- s.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return c
}
