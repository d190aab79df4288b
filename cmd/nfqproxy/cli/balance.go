package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// balanceFlags are the flags of nfqproxy balance.
type balanceFlags struct {
	server    serverFlags
	namespace string
	reset     bool
	shadows   bool
	output    string
}

func newBalanceCommand(connect connector) *cobra.Command {
	var f balanceFlags
	cmd := &cobra.Command{
		Use:   "balance [SERVICE [ALGORITHM]]",
		Short: "Show balancing algorithms, or change that of a Service",
		Long: `Change the algorithm that selects endpoints for new connections to a Service, on a daemon
or in a running lab. Established connections stay where they are. The change overrides the
annotation nfqproxy.io/balance and --balance. It lasts until the daemon or the lab stops,
or until --reset.

SERVICE is NAMESPACE/NAME, or NAME in --namespace. Without ALGORITHM, the command prints
the Service's algorithm; without SERVICE, all algorithms, and the Services that are not
balanced at random. A change requires the flow API's token; for a lab it is known.

--shadows compares the algorithms of the daemon's flag --shadow, or of proxy.shadow in a
lab. SAME is the share of flows that the algorithm would have sent to the endpoint they
went to. The imbalance is the fullest endpoint's load divided by the mean, for flows and
for open connections.`,
		Example: `  nfqproxy balance
  nfqproxy balance my-nginx-service lc
  nfqproxy balance my-nginx-service --reset
  nfqproxy balance my-nginx-service --shadows
  nfqproxy balance shop/web maglev --cluster --token-file token`,
		Annotations: ending(),
		Args:        atMost(2, "SERVICE and ALGORITHM"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return unlessClosed(cmd.Context(), blameFlag(cmd.Flags(), f.run(cmd, connect, args)))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&f.reset, "reset", false, "undo the change: the annotation and --balance apply again")
	flags.BoolVar(&f.shadows, "shadows", false, "compare the shadow algorithms, which decide too, but without effect")
	serviceNamespaceFlag(cmd, &f.namespace)
	f.server.add(cmd)
	outputFlag(cmd, &f.output)
	return cmd
}

func (f *balanceFlags) run(cmd *cobra.Command, connect connector, args []string) error {
	change := observe.BalanceChange{}
	if len(args) > 0 {
		change.Service = f.server.serviceName(f.namespace, args[0])
		if _, err := change.Name(); err != nil {
			return err
		}
	}
	switch {
	case f.shadows && (f.reset || len(args) == 2):
		return errors.New("--shadows does not change an algorithm: give only SERVICE, or nothing")
	case f.reset && len(args) != 1:
		return errors.New("--reset requires SERVICE, and no ALGORITHM")
	case len(args) == 2 && args[1] == "":
		return errors.New("ALGORITHM is empty: give its name, or --reset")
	case len(args) == 2:
		change.Algorithm = args[1]
	}
	o, err := f.server.observer(cmd.Context(), connect, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	balancing, ok := o.(observe.Balancing)
	if !ok {
		return errors.New("the algorithms of this server cannot be switched")
	}
	if len(args) == 2 || f.reset {
		return balancing.Balance(cmd.Context(), change)
	}
	if f.shadows {
		return f.compare(cmd.Context(), cmd.OutOrStdout(), balancing, change.Service)
	}
	return f.show(cmd.Context(), cmd.OutOrStdout(), balancing, change.Service)
}

// show prints the algorithm of a service; without one, all algorithms.
func (f *balanceFlags) show(ctx context.Context, w io.Writer, balancing observe.Balancing, service string) error {
	all, err := balancing.Algorithms(ctx)
	if err != nil {
		return err
	}
	if service != "" {
		one := observe.ServiceAlgorithm{Service: service, Algorithm: balance.Name("")}
		if i := slices.IndexFunc(all.Services, func(s observe.ServiceAlgorithm) bool { return s.Service == service }); i >= 0 {
			one = all.Services[i]
		} else if o, ok := balancing.(observe.Observer); ok {
			if err := checkNames(ctx, o, observe.FlowQuery{Service: service}); err != nil {
				return errors.New(strings.TrimPrefix(err.Error(), "--")) // the service is no flag here
			}
		}
		if f.output != "text" {
			return writeValue(w, f.output, one)
		}
		_, err := fmt.Fprintln(w, one.Algorithm)
		return err
	}
	if f.output != "text" {
		return writeValue(w, f.output, all)
	}
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "ALGORITHM\tSELECTS")
	for _, a := range all.Algorithms {
		fmt.Fprintf(table, "%s\t%s\n", a.Usage, a.Summary)
	}
	if len(all.Services) > 0 {
		fmt.Fprintln(table, "\nSERVICE\tALGORITHM")
		for _, s := range all.Services {
			fmt.Fprintf(table, "%s\t%s\n", s.Service, s.Algorithm)
		}
	}
	return table.Flush()
}

// compare prints the comparison of shadows.
func (f *balanceFlags) compare(ctx context.Context, w io.Writer, balancing observe.Balancing, service string) error {
	s, err := balancing.Shadows(ctx, service)
	if err != nil {
		return err
	}
	switch {
	case f.output != "text":
		return writeValue(w, f.output, s)
	case len(s.Algorithms) == 0:
		return errors.New("no shadow algorithm: start the daemon with --shadow, or a lab with proxy.shadow")
	case len(s.Services) == 0:
		_, err := fmt.Fprintln(w, "No flows yet.")
		return err
	}
	for i := range s.Services {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := compareService(w, &s.Services[i]); err != nil {
			return err
		}
	}
	return nil
}

func compareService(w io.Writer, s *observe.ServiceShadows) error {
	fmt.Fprintf(w, "%s (%s, %s): %s with a choice\n", s.Service, s.Protocol, s.Family, quantity.Count(s.Flows, "flow"))
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "ENDPOINT\tFLOWS\tOPEN\t")
	for _, l := range s.Shadows {
		fmt.Fprintf(table, "%s: FLOWS\tOPEN\t", l.Algorithm)
	}
	fmt.Fprintln(table)
	for _, e := range s.Actual.Endpoints {
		fmt.Fprintf(table, "%s\t%d\t%d\t", e.Endpoint, e.Flows, e.Open)
		for _, l := range s.Shadows {
			at := slices.IndexFunc(l.Endpoints, func(o observe.ShadowEndpoint) bool { return o.Endpoint == e.Endpoint })
			if at < 0 {
				fmt.Fprint(table, "-\t-\t")
				continue
			}
			fmt.Fprintf(table, "%d\t%d\t", l.Endpoints[at].Flows, l.Endpoints[at].Open)
		}
		fmt.Fprintln(table)
	}
	fmt.Fprintf(table, "imbalance\t%.2f\t%.2f\t", s.Actual.FlowImbalance, s.Actual.OpenImbalance)
	for _, l := range s.Shadows {
		fmt.Fprintf(table, "%.2f\t%.2f\t", l.FlowImbalance, l.OpenImbalance)
	}
	fmt.Fprint(table, "\nsame\t\t")
	for _, l := range s.Shadows { // a cell is ended by what follows it
		fmt.Fprintf(table, "\t%s\t", share(l.Same, s.Flows))
	}
	fmt.Fprintln(table)
	return table.Flush()
}

// share formats a part of a whole.
func share[N int | uint64](part, whole N) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(part)/float64(whole))
}
