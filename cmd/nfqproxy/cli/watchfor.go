package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/bundle"
	"github.com/nfqproxy/nfqproxy/control/exitcode"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/collect"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// watchFlags are the flags of nfqproxy watch-for.
type watchFlags struct {
	flowsFlags
	file    string
	capture time.Duration
	timeout time.Duration
}

// failing are the states that watch-for waits for by default.
var failing = spelled([]flow.State{flow.Refused, flow.Unanswered, flow.Reset, flow.Rejected, flow.Dropped, flow.Failed})

func newWatchForCommand(connect connector) *cobra.Command {
	var f watchFlags
	cmd := &cobra.Command{
		Use:   "watch-for [--service NAME] [--state STATES]",
		Short: "Wait for a flow to fail, and save all that is known about it",
		Long: `Wait for the next flow that fails, or that matches the filters, and write a bundle: the
flow's record with the decision step by step, the service and the service tables, the
daemons' status, and the node's connection entries, its rules, and the flow's packets from
then on. nfqproxy show opens a bundle anywhere. Flows to no service count only with --all.

Rules, connection entries and packets come from a node of your lab, or from this machine
(as root) if the flow API is one of its sockets. With a remote flow API they are left out.`,
		Example: `  nfqproxy watch-for
  nfqproxy watch-for --service web --state refused,unanswered --timeout 10m
  nfqproxy show nfqproxy-node-a-1f.tgz`,
		Args:        noArgs,
		Annotations: ending(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := f.run(cmd.Context(), connect, cmd.OutOrStdout(), cmd.ErrOrStderr())
			if err != nil && cmd.Context().Err() != nil {
				return answerNo // interrupted: there is no bundle
			}
			return blameFlag(cmd.Flags(), err)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.addFilters(cmd)
	flags.Lookup("state").Usage += " (default: those of failures)"
	flags.BoolVar(&f.all, "all", false, "also wait for flows to no service")
	flags.StringVar(&f.file, "write", "", "file to write (default: nfqproxy-ID.tgz)")
	flags.DurationVar(&f.capture, "capture", 5*time.Second, "how long to capture packets; 0: not at all")
	flags.DurationVar(&f.timeout, "timeout", 0, "give up after this time, with exit code 1 (default: never)")
	f.server.add(cmd)
	return cmd
}

func (f *watchFlags) run(ctx context.Context, connect connector, stdout, stderr io.Writer) error {
	if f.capture < 0 || f.timeout < 0 {
		return errors.New("--capture and --timeout cannot be negative")
	}
	if f.file != "" {
		if err := canBeNew(f.file); err != nil {
			return err
		}
	}
	style := f.server.style(stdout)
	observer, err := f.server.observer(ctx, connect, stderr)
	if err != nil {
		return err
	}
	q := f.query
	q.Follow, q.ServicesOnly, q.Namespace = true, f.servicesOnly(), f.namespaces.selected()
	if q.State == "" && q.Verdict == "" && q.Reason == "" && q.Event == "" {
		q.State = strings.Join(failing, ",")
	}
	if err := checkNames(ctx, observer, observe.FlowQuery{Service: q.Service}); err != nil {
		fmt.Fprintln(stderr, "nfqproxy: warning:", err)
	}
	fmt.Fprintln(stderr, "waiting for a flow: "+cmp.Or(q.State, "any state"))
	r, err := first(ctx, observer, q, f.timeout)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s %s %s -> %s, decided on %s\n", style.Paint(text.Bold, stateOf(r)), r.Protocol, text.Source(r), text.Destination(r), r.Node)
	b := f.collect(ctx, r, stderr)
	b.Created, b.Program, b.Node, b.Flow = time.Now(), version, r.Node, r.ID
	observed(ctx, b, observer, r)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	file := cmp.Or(f.file, "nfqproxy-"+fileNameOf(r.ID)+".tgz")
	if err := writeBundle(file, b); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "wrote %s: nfqproxy show %[1]s\n", file)
	return nil
}

func stateOf(r *flow.Record) string {
	if r.Life != nil {
		return r.Life.State.String()
	}
	return r.Verdict
}

// first waits for the first flow of a stream; timeout 0: for ever.
func first(ctx context.Context, o observe.Observer, q observe.FlowQuery, timeout time.Duration) (*flow.Record, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, exitcode.Negative(fmt.Errorf("no such flow within %s", timeout)))
		defer cancel()
	}
	return remote.First(ctx, o, q)
}

// observed adds the flow API's observations.
func observed(ctx context.Context, b *bundle.Bundle, o observe.Observer, r *flow.Record) {
	add := func(name, about string, value any, err error) {
		if err == nil {
			err = b.AddJSON(name, about, value)
		}
		if err != nil {
			b.Note("%s: %v", name, err)
		}
	}
	latest, err := o.Flow(ctx, r.ID)
	if err != nil { // it was evicted: the record of the event has no steps
		b.Note("the flow's latest record: %v", err)
		latest = r
	}
	add(bundle.FlowFile, "the flow's record", latest, nil)
	if r.Service != "" {
		services, err := o.Services(ctx, observe.ServiceQuery{Service: r.Service})
		if err == nil {
			for i := range services.Services {
				if s := &services.Services[i]; s.Service == r.Service && s.Protocol == r.Protocol && (s.Family == "IPv6") == isIPv6(r.Destination) {
					add(bundle.ServiceFile, "the service port, its endpoints and counts", s, nil)
				}
			}
		} else {
			b.Note("%s: %v", bundle.ServiceFile, err)
		}
	}
	tables, err := o.Tables(ctx)
	add(bundle.TablesFile, "the service table of each node", observe.TableList{Tables: tables}, err)
	status, err := o.Status(ctx)
	add(bundle.StatusFile, "the daemon of each node", observe.StatusList{Nodes: status}, err)
}

func isIPv6(at string) bool {
	a, err := netip.ParseAddrPort(at)
	return err == nil && a.Addr().Is6()
}

// collect collects on the flow's node.
func (f *watchFlags) collect(ctx context.Context, r *flow.Record, stderr io.Writer) *bundle.Bundle {
	s := collect.Source{Pairs: pairsOf(r), Capture: f.capture}
	announce := func() { fmt.Fprintf(stderr, "collecting for %s\n", f.capture) }
	server := f.server.server
	cluster, _ := f.server.ofCluster()
	if server == "" && !cluster {
		l, err := lab.FlowAPIOf(f.server.lab)
		if err == nil && l.URL != "" {
			announce()
			return collectInLab(f.server.lab, r.Node, s)
		}
		server = localServer(flowapi.DefaultSocket)
	}
	if strings.HasPrefix(server, "unix:") {
		announce()
		return collect.Collect(ctx, s)
	}
	b := &bundle.Bundle{}
	b.Note("rules, connection entries and packets: the flow API is remote; run nfqproxy watch-for on node %s", r.Node)
	return b
}

// pairsOf returns the address pairs of a flow, before and after translation.
func pairsOf(r *flow.Record) (pairs []collect.Pair) {
	add := func(a, b string) {
		var p collect.Pair
		for _, end := range []struct {
			text string
			into *netip.Addr
		}{{a, &p.A}, {b, &p.B}} {
			if at, err := netip.ParseAddrPort(end.text); err == nil {
				*end.into = at.Addr()
			} else if *end.into, err = netip.ParseAddr(end.text); err != nil {
				return
			}
		}
		if !slices.Contains(pairs, p) {
			pairs = append(pairs, p)
		}
	}
	add(r.Source, r.Destination)
	add(r.Source, r.Endpoint)
	add(r.MasqueradeAddress, r.Endpoint)
	if r.Life != nil {
		add(r.Life.SeenSource, r.Endpoint)
	}
	return pairs
}

// fileNameOf makes an ID usable in a file's name.
func fileNameOf(id string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, id)
}

// canBeNew finds out before the work whether there is a file already, or no directory for it.
func canBeNew(file string) error {
	if _, err := os.Lstat(file); err == nil {
		return fmt.Errorf("%s exists: remove it or give another name with --write", file)
	}
	if _, err := os.Stat(filepath.Dir(file)); err != nil {
		return fmt.Errorf("--write %s: %w", file, err)
	}
	return nil
}

// writeBundle writes a file that does not exist yet, or none at all.
func writeBundle(file string, b *bundle.Bundle) (err error) {
	if err := canBeNew(file); err != nil {
		return err
	}
	w, err := os.CreateTemp(filepath.Dir(file), ".nfqproxy-bundle-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ignoreMissing(os.Remove(w.Name()))) }()
	if err := errors.Join(b.Write(w), w.Close()); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.Link(w.Name(), file) // unlike Rename, it keeps a file that exists
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
