package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/terminal"
	"github.com/nfqproxy/nfqproxy/control/view/top"
)

// topFlags are the flags of nfqproxy top.
type topFlags struct {
	server serverFlags
	query  observe.ServiceQuery
	zone   zoneFlags

	namespaces namespaceFlags
}

func newTopCommand(connect connector) *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show services, endpoints and flows live, full screen",
		Long: `Show services live, full screen: new flows per second, their distribution over the
endpoints, unanswered flows, and refused flows with the reason. Enter opens the endpoints
of a service with expected and actual shares, then their recent flows, then the details of
a flow. ? lists the keys. Hubble does not count the flows of Services, so --server takes no
hubble:// here.`,
		Example: `  nfqproxy top
  nfqproxy top --namespace shop --active`,
		Args:        noArgs,
		Annotations: ending(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return unlessClosed(cmd.Context(), blameFlag(cmd.Flags(), f.run(cmd, connect)))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.query.Service, "service", "", "NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT; a list, separated by commas")
	f.namespaces.add(cmd, "the service; a list", "all")
	flags.BoolVar(&f.query.Active, "active", false, "omit services without flows")
	f.zone.add(flags)
	f.server.add(cmd)
	return cmd
}

func (f *topFlags) run(cmd *cobra.Command, connect connector) error {
	style := f.server.style(cmd.OutOrStdout())
	zone, err := f.zone.location()
	if err != nil {
		return err
	}
	if err := f.server.notHubble("top", "counts of Services"); err != nil {
		return err
	}
	if !isTerminal(cmd.InOrStdin()) || width(cmd.OutOrStdout()) == nil {
		return errors.New("top requires a terminal; without one use nfqproxy flows --follow or nfqproxy flows -o json")
	}
	observer, err := f.server.observer(cmd.Context(), connect, nil) // a full screen has no place for warnings
	if err != nil {
		return err
	}
	f.query.Namespace = f.namespaces.selected()
	// An invalid filter is an error before the screen is drawn.
	if _, err := observer.Services(cmd.Context(), f.query); err != nil {
		return err
	}
	if err := checkNames(cmd.Context(), observer, observe.FlowQuery{Service: f.query.Service}); err != nil {
		return err
	}
	return top.Run(cmd.Context(), observer, cmd.InOrStdin(), terminal.Raw(cmd.OutOrStdout()), top.Options{Style: style, Query: f.query, Zone: zone})
}
