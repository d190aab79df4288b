package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// timelineFlags are the flags of nfqproxy timeline.
type timelineFlags struct {
	server    serverFlags
	namespace string
	zone      zoneFlags
	since     time.Duration
	output    string
}

func newTimelineCommand(connect connector) *cobra.Command {
	var f timelineFlags
	cmd := &cobra.Command{
		Use:   "timeline SERVICE",
		Short: "Show how long each change to a service took, from the API to the last old flow",
		Long: `Show the newest changes to a service, and for each change and node:

  received    the daemon received the changed object
  built       the daemon built the service table
  in force    all workers and the kernel's rules used the table
  first flow  the earliest flow by this or a later table

and for each endpoint that

  gets new flows since  the first flow to it
  gets none since       the last flow to it, and its open connections

If nfqproxyd --observe observes another proxy, there is no time in force. Instead, each
endpoint shows when the rules had the change, if the kernel notifies: for kube-proxy's
mode nftables, and for iptables with the back end nf_tables.

Times are in milliseconds after the change, by the node's clock. A change of endpoints
starts at the trigger time in its EndpointSlice, often in whole seconds; other changes
start with the first object received. A node keeps the newest 20 changes of a service port
since its start.`,
		Example: `  nfqproxy timeline web
  nfqproxy timeline shop/web --since 10m --cluster`,
		Args:        serviceArg,
		Annotations: ending(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return blameFlag(cmd.Flags(), f.run(cmd, connect, f.server.serviceName(f.namespace, args[0])))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.DurationVar(&f.since, "since", 0, "show only the changes of the last 10m, for example (default: all)")
	outputFlag(cmd, &f.output)
	serviceNamespaceFlag(cmd, &f.namespace)
	f.zone.add(flags)
	f.server.add(cmd)
	return cmd
}

// serviceArg takes one SERVICE.
func serviceArg(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0 || args[0] == "":
		return fmt.Errorf("%s needs SERVICE: NAME, NAMESPACE/NAME or either with :PORT (see %[1]s --help)", cmd.CommandPath())
	case len(args) > 1:
		return fmt.Errorf("%s takes SERVICE: unexpected argument %q (see %[1]s --help)", cmd.CommandPath(), args[1])
	}
	return nil
}

// serviceChanges are the changes of a service port.
type serviceChanges struct {
	Service string           `json:"service"`
	Family  string           `json:"family"`
	Changes []observe.Change `json:"changes"`
}

func (f *timelineFlags) run(cmd *cobra.Command, connect connector, service string) error {
	ctx, w := cmd.Context(), cmd.OutOrStdout()
	zone, err := f.zone.location()
	switch {
	case err != nil:
		return err
	case f.since < 0:
		return fmt.Errorf("--since %s: want a positive duration, for example 10m", f.since)
	}
	observer, err := f.server.observer(ctx, connect, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	list, err := f.changes(ctx, observer, service)
	if err != nil {
		return err
	}
	if f.output != "text" {
		return writeValue(w, f.output, struct {
			Services []serviceChanges `json:"services"`
		}{list})
	}
	for i := range list {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := writeTimeline(w, &list[i], cmp.Or(zone, time.Local)); err != nil {
			return err
		}
	}
	return nil
}

func (f *timelineFlags) changes(ctx context.Context, observer observe.Observer, service string) ([]serviceChanges, error) {
	services, err := observer.Services(ctx, observe.ServiceQuery{Service: service, Changes: true})
	if err != nil {
		return nil, err
	}
	if len(services.Services) == 0 {
		if err := checkNames(ctx, observer, observe.FlowQuery{Service: service}); err != nil {
			return nil, errors.New(strings.Replace(err.Error(), "--service ", "SERVICE ", 1))
		}
		return nil, errors.New("service " + service + " not found in the service table")
	}
	list := []serviceChanges{}
	for i := range services.Services {
		s := &services.Services[i]
		of := serviceChanges{s.Service, s.Family, []observe.Change{}}
		for _, c := range s.Changes {
			if f.since == 0 || time.Since(c.Time) <= f.since {
				of.Changes = append(of.Changes, c)
			}
		}
		list = append(list, of)
	}
	return list, nil
}

// writeTimeline writes the changes of a service port: a block for each change, and in it a row for each node.
func writeTimeline(w io.Writer, s *serviceChanges, zone *time.Location) error {
	fmt.Fprintf(w, "%s (%s)\n", s.Service, s.Family)
	if len(s.Changes) == 0 {
		_, err := fmt.Fprintln(w, "No changes since the daemons started, or within --since.")
		return err
	}
	for _, nodes := range groupChanges(s.Changes) {
		start := startOf(&nodes[0])
		for i := range nodes {
			if at := startOf(&nodes[i]); at.Before(start) {
				start = at
			}
		}
		fmt.Fprintf(w, "\n%s  %s\n", start.In(zone).Format("2006-01-02 15:04:05.000"), changeText(&nodes[0]))
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "  NODE\tGENERATION\tRECEIVED\tBUILT\tIN FORCE\tFIRST FLOW")
		for i := range nodes {
			c := &nodes[i]
			fmt.Fprintf(table, "  %s\t%d\t%s\t%s\t%s\t%s\n", c.Node, c.Generation, offset(start, c.Received), offset(start, &c.Time), offset(start, c.InForce), firstFlow(start, c))
		}
		if err := table.Flush(); err != nil {
			return err
		}
		for i := range nodes {
			writeEndpoints(w, &nodes[i], start)
		}
	}
	return nil
}

// startOf is the earliest known time of the change: Changed, Received or Time.
func startOf(c *observe.Change) time.Time {
	for _, t := range []*time.Time{c.Changed, c.Received} {
		if t != nil {
			return *t
		}
	}
	return c.Time
}

// writeEndpoints writes the times of each endpoint: of the rules, of the first flow or, if it gets no new flows, of the last
// one, and its open connections.
func writeEndpoints(w io.Writer, c *observe.Change, start time.Time) {
	for _, e := range c.Endpoints {
		ends := e.Change == observe.EndpointRemoved || e.Change == observe.EndpointExcluded
		if !ends && e.Excluded != "" {
			continue
		}
		var parts []string
		switch {
		case e.Rules != nil:
			parts = append(parts, "rules "+offset(start, e.Rules))
		case e.RulesAwaited:
			parts = append(parts, "rules not yet")
		}
		switch {
		case !ends && e.FirstFlow == nil:
			parts = append(parts, "no flow yet")
		case !ends:
			parts = append(parts, "first flow "+offset(start, &e.FirstFlow.Time)+" "+e.FirstFlow.ID)
		case e.LastFlow == nil:
			parts = append(parts, "no flow")
		default:
			parts = append(parts, "last flow "+offset(start, &e.LastFlow.Time)+" "+e.LastFlow.ID)
		}
		switch {
		case e.Closed != nil:
			parts = append(parts, "last connection closed "+offset(start, e.Closed))
		case e.Open != nil:
			parts = append(parts, fmt.Sprintf("%d open", *e.Open))
		}
		fmt.Fprintf(w, "  %s: %s: %s\n", c.Node, e.Endpoint, strings.Join(parts, ", "))
	}
}

// groupChanges groups changes of several nodes that are the same: of each node one, with the same trigger or, without
// one, at most a minute apart. Changes are sorted by their time.
func groupChanges(changes []observe.Change) (groups [][]observe.Change) {
	for _, c := range changes {
		i := slices.IndexFunc(groups, func(g []observe.Change) bool {
			first := &g[0]
			near := c.Time.Sub(first.Time) <= time.Minute
			if c.Changed != nil && first.Changed != nil {
				near = c.Changed.Equal(*first.Changed)
			}
			return near && changeText(first) == changeText(&c) && !slices.ContainsFunc(g, func(o observe.Change) bool { return o.Node == c.Node })
		})
		if i < 0 {
			groups = append(groups, []observe.Change{c})
			continue
		}
		groups[i] = append(groups[i], c)
	}
	return groups
}

// changeText describes a change.
func changeText(c *observe.Change) string {
	var parts []string
	if c.Created {
		parts = append(parts, "service created")
	}
	if c.Settings {
		parts = append(parts, "settings changed")
	}
	for _, e := range c.Endpoints {
		part := e.Change + " " + e.Endpoint
		if e.Pod != "" {
			part += " (" + e.Pod + ")"
		}
		if e.Excluded != "" {
			part += ": " + e.Excluded
		}
		parts = append(parts, part)
	}
	if c.More > 0 {
		parts = append(parts, fmt.Sprintf("%d more endpoints changed", c.More))
	}
	return strings.Join(parts, ", ")
}

// offset is a time after the start of a change: in milliseconds, or as 2m3.5s once it is far from the start.
func offset(start time.Time, at *time.Time) string {
	if at == nil {
		return "-"
	}
	const far = 10 * time.Second
	switch d := at.Sub(start); {
	case d >= far:
		return "+" + d.Round(100*time.Millisecond).String()
	case d <= -far:
		return d.Round(100 * time.Millisecond).String()
	default:
		return fmt.Sprintf("%+.1f ms", float64(d.Microseconds())/1000)
	}
}

// firstFlow is the first flow by a table; of an observed proxy it is not known by which table it decided.
func firstFlow(start time.Time, c *observe.Change) string {
	f := c.FirstFlow
	switch {
	case f == nil && c.InForce == nil:
		return "-"
	case f == nil:
		return "none yet"
	}
	return offset(start, &f.Time) + " " + f.ID + " " + cmp.Or(f.Endpoint, f.Verdict)
}
