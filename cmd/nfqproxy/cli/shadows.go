package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

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
