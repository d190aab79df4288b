package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/view/findings"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/nodepath"
)

// flowsFlags are the flags of nfqproxy flows.
type flowsFlags struct {
	server    serverFlags
	query     observe.FlowQuery
	all       bool
	join      bool
	output    string
	noHeaders bool
	walk      text.Walk
	zone      zoneFlags
	history   string

	namespaces namespaceFlags
}

func newFlowsCommand(connect connector) *cobra.Command {
	var f flowsFlags
	cmd := &cobra.Command{
		Use:   "flows [ID]",
		Short: "Show flows, their endpoints and their states",
		Long: `Show flows, their endpoints and their states: one line per flow, the newest last.
With --follow: one line per new event. With an ID: the details of that flow.

Flows to no service that pass unchanged are left out, and counted on standard error. Use
--all, or a --verdict or --reason that selects them, to show them. In a lab most of them
are connections that another node has already translated. The formats for programs, json,
jsonl and hubble, leave nothing out.

If several nodes are observed, a connection is one line, with the nodes that its first
packet passed: node-a → node-b. --join=false prints a line for each node's decision, as
the formats for programs do without --join. Decisions up to 10 s apart are joined. With
--follow, an event that arrives late from a node gets a line of its own.

A flow is shown if it matches all filters. A list has values separated by commas; a flow
must match one of them.

--history shows recorded flows instead, in their latest state, without the walk. Gaps in
the history are reported on standard error.

-o wide adds columns. STAGES has four times of the first packet: in the queue, until the
decision, until the connection entry was written, and until the verdict was sent. -o json
and -o jsonl print records as described in datapath/flow/SCHEMA.md, with unchanged times.
custom-columns has kubectl's syntax.`,
		Example: `  nfqproxy flows --follow --service default/web
  nfqproxy flows --state refused,unanswered --since 5m
  nfqproxy flows --all                                  # include flows to no service
  nfqproxy flows --verdict accept                       # only flows that pass unchanged
  nfqproxy flows --history DIR --since 3h --until 2h    # recorded by nfqproxy record
  nfqproxy flows -o custom-columns=ID:.id,TO:.endpoint,STATE:.life.state
  nfqproxy flows $(nfqproxy flows -o name --limit 1)`,
		Args:        atMost(1, "one ID"),
		Annotations: ending(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return unlessClosed(cmd.Context(), f.run(cmd, connect, args, cmd.OutOrStdout()))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	q := &f.query
	flags.BoolVarP(&q.Follow, "follow", "f", false, "show events as they happen, until interrupted")
	f.addFilters(cmd)
	flags.BoolVar(&f.all, "all", false, "include flows to no service")
	flags.BoolVar(&f.join, "join", true, "show each connection once, with all nodes that decided it; formats other than tables need the flag")
	flags.StringVar(&q.Since, "since", "", "only flows decided since this time: a duration (5m) or a time (RFC 3339); with --follow: print the events since then first")
	flags.StringVar(&q.Until, "until", "", "only flows decided before this time: a duration (5m) or a time (RFC 3339)")
	historyFlag(cmd, &f.history, "show recorded flows,")
	flags.StringVar(&q.Limit, "limit", "", "number of newest flows to show; 0: all (default 100); with --follow: number of earlier flows to print first")
	flags.StringVarP(&f.output, "output", "o", "", strings.Join(text.Formats(), ", ")+" (default: a table)")
	walkFlag(cmd, &f.walk, "; in JSON: as steps (of one flow: words by default)", text.WalkNone)
	flags.BoolVar(&f.noHeaders, "no-headers", false, "omit the column headers")
	f.zone.add(flags)
	f.server.add(cmd)
	_ = cmd.RegisterFlagCompletionFunc("output", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var names []string
		for _, name := range text.Formats() {
			before, argument, _ := strings.Cut(name, "=")
			if argument != "" {
				before += "="
			}
			names = append(names, before)
		}
		return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	})
	return cmd
}

func (f *flowsFlags) addFilters(cmd *cobra.Command) {
	flags, q := cmd.Flags(), &f.query
	flags.StringVar(&q.Service, "service", "", "NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT; a list")
	f.namespaces.add(cmd, "the service, of the source pod or of the endpoint's pod; a list", "all")
	flags.StringVar(&q.Pod, "pod", "", "NAME or NAMESPACE/NAME of the source pod or the endpoint's pod; a list")
	flags.StringVar(&q.Node, "node", "", "node that decided the flow; a list")
	flags.StringVar(&q.Source, "source", "", "ADDRESS, PREFIX or NAME (of a pod, a node or, in a lab, a client), or either with :PORT; a list")
	flags.StringVar(&q.Destination, "destination", "", "ADDRESS, PREFIX or ADDRESS:PORT, before translation; a list")
	flags.StringVar(&q.Endpoint, "endpoint", "", "destination after translation, in the same form as --source; a list")
	flags.StringVar(&q.Port, "port", "", "destination port, before translation; a list")
	flags.StringVar(&q.Protocol, "protocol", "", "tcp, udp or sctp; a list")
	flags.StringVar(&q.Verdict, "verdict", "", strings.Join(verdicts, ", ")+"; a list")
	flags.StringVar(&q.Reason, "reason", "", "reason of the verdict: "+strings.Join(reasons, ", ")+"; a list")
	flags.StringVar(&q.State, "state", "", strings.Join(states, ", ")+"; a list")
	flags.StringVar(&q.Event, "event", "", "with --follow: a state, repeated or gone; a list")
}

var (
	verdicts = spelled(flow.Verdicts())
	reasons  = spelled(flow.Reasons())
	states   = spelled(flow.States())
	events   = spelled(flow.Events())
)

// spelled are the codes of values, as records have them.
func spelled[T fmt.Stringer](values []T) []string {
	var all []string
	for _, v := range values {
		all = append(all, v.String())
	}
	return all
}

func (f *flowsFlags) run(cmd *cobra.Command, connect connector, args []string, stdout io.Writer) error {
	if err := f.check(cmd.Flags(), args); err != nil {
		return err
	}
	style := f.server.style(cmd.OutOrStdout())
	zone, err := f.zone.location()
	if err != nil {
		return err
	}
	o := text.Options{Style: style, Follow: f.query.Follow, Recorded: f.history != "", NoHeaders: f.noHeaders, Walk: f.walk, Zone: zone}
	if _, err := text.NewPrinter(io.Discard, f.output, o); err != nil { // before the request
		return fmt.Errorf("--output %w", err)
	}
	observer, nodes, err := f.observer(cmd, connect)
	if err != nil {
		return err
	}
	if len(args) == 1 {
		if !cmd.Flags().Changed("walk") {
			o.Walk = "" // a story has a default of its own
		}
		return f.printOne(cmd.Context(), stdout, observer, args[0], o)
	}
	if f.join && (f.table() || cmd.Flags().Changed("join")) {
		f.query.Joined = nodes() > 1
		o.Nodes = f.query.Joined
	}
	p, err := text.NewPrinter(stdout, f.output, o)
	if err != nil {
		return err
	}
	if f.query.Follow {
		// The service may be created later.
		if err := checkNames(cmd.Context(), observer, observe.FlowQuery{Service: f.query.Service}); err != nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "nfqproxy: warning:", err)
		}
	}
	return blameFlag(cmd.Flags(), f.list(cmd.Context(), observer, p, cmd.ErrOrStderr()))
}

// observer returns what shows the flows, and what returns the number of its nodes.
func (f *flowsFlags) observer(cmd *cobra.Command, connect connector) (observe.Observer, func() int, error) {
	if f.history != "" {
		h, err := openHistory(f.history, cmd.ErrOrStderr())
		return h, func() int {
			nodes, _ := h.Nodes() // without an answer, the list reports why
			return len(nodes)
		}, err
	}
	o, err := f.server.observer(cmd.Context(), connect, cmd.ErrOrStderr())
	return o, func() int {
		nodes, _ := o.Stats(cmd.Context())
		return len(nodes)
	}, err
}

// table reports whether the output is a table with the usual columns.
func (f *flowsFlags) table() bool { return f.output == "" || f.output == "wide" }

// check finds flags that contradict each other.
func (f *flowsFlags) check(flags *pflag.FlagSet, args []string) error {
	if len(args) == 1 {
		if args[0] == "" {
			return errors.New("the flow ID is empty")
		}
		// Filters do not apply to one flow: only flags of the output and the connection do.
		how := []string{"output", "no-headers", "walk", "utc", "time-zone", "history", "server", "lab", "token-file", "cluster", "kubeconfig", "context", "daemonset", "color"}
		var err error
		flags.Visit(func(flag *pflag.Flag) {
			if err == nil && !slices.Contains(how, flag.Name) {
				err = fmt.Errorf("%s and --%s cannot be used together: give a flow ID or filters", args[0], flag.Name)
			}
		})
		if err != nil {
			return err
		}
	}
	if f.history != "" {
		if err := excludeHistory(flags, "follow", "walk", "server", "lab", "cluster", "daemonset", "kubeconfig", "context", "token-file"); err != nil {
			return err
		}
	}
	f.query.Namespace, f.query.Steps = f.namespaces.selected(), f.walk != text.WalkNone
	f.query.ServicesOnly = f.servicesOnly() && !text.ForPrograms(f.output)
	if f.query.Event != "" && !f.query.Follow {
		return errors.New("--event requires --follow (without it use --state)")
	}
	return nil
}

// servicesOnly reports whether flows for no service are left out. A filter that names such flows includes them, and with one
// that they cannot pass there are none to leave out.
func (f *flowsFlags) servicesOnly() bool {
	q := &f.query
	return !f.all && q.Verdict == "" && q.Reason == "" && q.Service == "" && q.Endpoint == ""
}

// printOne prints the details of one flow.
func (f *flowsFlags) printOne(ctx context.Context, stdout io.Writer, observer observe.Observer, id string, o text.Options) error {
	r, err := observer.Flow(ctx, id)
	if err != nil {
		return err
	}
	if f.output != "" {
		p, err := text.NewPrinter(stdout, f.output, o)
		if err != nil {
			return err
		}
		return errors.Join(p.Print(r), p.Close())
	}
	if slices.ContainsFunc(nodepath.Of(r), func(h nodepath.Hop) bool { return h.Record == nil }) {
		o.Observed = observedNodes(ctx, observer)
	}
	o.DroppedBy = droppedBy(ctx, observer, nodepath.Decider(r))
	_, err = io.WriteString(stdout, text.Story(r, o))
	return err
}

// droppedBy describes the rule or route of a node that drops an unanswered flow; empty: none is known.
func droppedBy(ctx context.Context, observer observe.Observer, r *flow.Record) string {
	if r.Life == nil || r.Life.State != flow.Unanswered {
		return ""
	}
	doctor, err := findings.Of(ctx, observer)
	if err != nil {
		return ""
	}
	answer, err := doctor.Why(ctx, diagnose.Question{From: r.Source, To: r.Destination, Protocol: strings.ToLower(r.Protocol), Node: r.Node, Decided: true})
	if err != nil {
		return "" // a node's daemon does not know the objects, for example
	}
	why := answer.Cause
	for i := range answer.Endpoints {
		if e := &answer.Endpoints[i]; e.Address == r.Endpoint {
			why = e.Problem
		}
	}
	if why == nil || !diagnose.OfNode(why.Code) {
		return ""
	}
	return fmt.Sprintf("%s (%s)", why.Text, why.Code)
}

// observedNodes are the nodes whose flows are observed; nil: not known.
func observedNodes(ctx context.Context, observer observe.Observer) map[string]bool {
	t, err := observer.Topology(ctx)
	if err != nil {
		return nil
	}
	nodes := make(map[string]bool)
	for _, n := range t.Nodes {
		nodes[n.Name] = n.Observed
	}
	return nodes
}

// flushDelay is how long a stream has to be quiet before its records are written, so that records
// that arrive together are laid out together.
const flushDelay = 50 * time.Millisecond

// list writes flows until there are no more or, following, until the context ends.
func (f *flowsFlags) list(ctx context.Context, observer observe.Observer, p text.Printer, stderr io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := &rows{flowsFlags: f, printer: p, stderr: stderr}
	l.location, _ = f.zone.location() // checked
	query := f.query
	if query.Limit == "" && !query.Follow && f.table() {
		l.most = observe.DefaultLimit
		query.Limit = strconv.Itoa(l.most + 1)
	}
	items, end := make(chan observe.Item, 64), make(chan error, 1)
	go func() {
		defer close(items)
		end <- observer.Flows(ctx, query, func(item observe.Item) error {
			select {
			case items <- item:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	var quiet <-chan time.Time
	for {
		select {
		case <-quiet:
			if err := l.flush(); err != nil {
				return err
			}
			quiet = nil
		case item, open := <-items:
			if !open {
				return l.finish(ctx, observer, <-end)
			}
			if err := l.take(item); err != nil {
				return err
			}
			if f.query.Follow {
				quiet = time.After(flushDelay)
			}
		}
	}
}

// leftOutInWords is the message with the number of omitted flows.
func leftOutInWords(flows uint64) string {
	if flows == 1 {
		return "1 flow for no service is omitted (--all shows it)."
	}
	return fmt.Sprintf("%d flows for no service are omitted (--all shows them).", flows)
}

// printMissed prints that records are missing, in the list itself if its format allows.
func printMissed(m *observe.Missed, p text.Printer, zone *time.Location, stderr io.Writer) error {
	if p, ok := p.(text.MissedPrinter); ok {
		return p.PrintMissed(m)
	}
	_, err := fmt.Fprintln(stderr, text.Missed(m, zone))
	return err
}
