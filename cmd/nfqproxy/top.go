package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/control/view/flowtext"
	"github.com/nfqproxy/nfqproxy/control/view/top"
	"github.com/nfqproxy/nfqproxy/control/view/visible"
)

// topFlags are the flags of nfqproxy top.
type topFlags struct {
	server serverFlags
	query  observe.ServiceQuery
	zone   zoneFlags
}

func newTopCommand(connect connector) *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show services, their endpoints and flows full screen, as they change",
		Long: `Show services full screen, as they change: new flows in a second, how they spread over
the endpoints, how many nobody answered, and how many were refused, and why. Enter
goes on to the endpoints of a service, with the shares they should have and have; to
their recent flows; and to a flow's story. ? tells the keys.`,
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
	flags.StringVarP(&f.query.Namespace, "namespace", "n", "", "of the service; a list")
	flags.BoolVar(&f.query.Active, "active", false, "leave out services that had no flow")
	f.zone.add(flags)
	f.server.add(cmd)
	return cmd
}

func (f *topFlags) run(cmd *cobra.Command, connect connector) error {
	style, err := f.server.style(flowtext.StyleFor(cmd.OutOrStdout()))
	if err != nil {
		return err
	}
	zone, err := f.zone.location()
	if err != nil {
		return err
	}
	if !terminal(cmd.InOrStdin()) || width(cmd.OutOrStdout()) == nil {
		return errors.New("top needs a terminal; nfqproxy flows --follow and nfqproxy flows -o json need none")
	}
	observer, err := f.server.observer(connect)
	if err != nil {
		return err
	}
	// What the server does not understand is said at once, and not on the screen.
	if _, err := observer.Services(cmd.Context(), f.query); err != nil {
		return err
	}
	if err := checkNames(cmd.Context(), observer, observe.FlowQuery{Service: f.query.Service}); err != nil {
		return err
	}
	return top.Run(cmd.Context(), observer, cmd.InOrStdin(), visible.Raw(cmd.OutOrStdout()), top.Options{Style: style, Query: f.query, Zone: zone})
}
