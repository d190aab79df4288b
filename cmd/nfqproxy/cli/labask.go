package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/nodepath"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// maxAsks bounds --count.
const maxAsks = 10_000

// askFlags are the flags of nfqproxy lab ask.
type askFlags struct {
	lab       string
	namespace string
	count     int
}

func newLabAskCommand() *cobra.Command {
	var f askFlags
	cmd := &cobra.Command{
		Use:   "ask POD|NODE|CLIENT URL",
		Short: "Send a real request from a host of a running lab, and show its flow",
		Long: `Send a real request from a pod, node or client of a running lab: look up the name as
programs on that host do, connect, send the request, and print who answered and which
client address the server saw. Then print the flow, as nfqproxy flows ID does.

URL is http://NAME/PATH, tcp://NAME:PORT, udp://NAME:PORT, or NAME[:PORT]. NAME may be an
address. Pods use the lab's DNS, with the search domains of their namespace; nodes and
clients know only the names of nodes and clients. The default port is that of the only
service port at the address, or else 80 over TCP.

With --count, print how many requests each endpoint answered. The exit code is 1 if a
request got no answer.`,
		Example: `  nfqproxy lab ask shell http://my-nginx-service/
  nfqproxy lab ask shell udp://kube-dns.kube-system:53
  nfqproxy lab ask outside http://kind-worker:30080/
  nfqproxy lab ask shell my-nginx-service --count 100`,
		Annotations: ending(),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("%s needs a host and a URL, for example: nfqproxy lab ask shell http://my-nginx-service/", cmd.CommandPath())
			}
			return nil
		},
		ValidArgsFunction: f.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			return unlessClosed(cmd.Context(), f.run(cmd.Context(), cmd.OutOrStdout(), text.StyleFor(cmd.OutOrStdout()), args[0], args[1]))
		},
	}
	labFlag(cmd, &f.lab)
	podNamespaceFlag(cmd, &f.namespace)
	cmd.Flags().IntVar(&f.count, "count", 1, "number of requests, one after the other")
	return cmd
}

// complete completes first hosts, then Services.
func (f *askFlags) complete(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return labHosts(&f.lab)(cmd, args, begun)
	}
	if len(args) > 1 {
		return nothing(cmd, args, begun)
	}
	return soon(func(ctx context.Context) []string {
		client, err := f.client()
		if err != nil {
			return nil
		}
		known, err := namesAt(ctx, client)
		if err != nil {
			return nil
		}
		for i, s := range known.services {
			namespace, name, _ := strings.Cut(s, "/")
			known.services[i] = name + "." + namespace
		}
		return known.services
	}), cobra.ShellCompDirectiveNoFileComp
}

// client connects to the flow API of the lab.
func (f *askFlags) client() (*remote.Client, error) {
	s, err := lab.StatusOf(f.lab)
	if err != nil {
		return nil, err
	}
	return remote.NewClient(s.FlowAPI.URL, remote.ClientOptions{Token: s.FlowAPI.Token})
}

func (f *askFlags) run(ctx context.Context, stdout io.Writer, style text.Style, from, to string) error {
	if f.count < 1 || f.count > maxAsks {
		return fmt.Errorf("--count %d: want 1 to %d", f.count, maxAsks)
	}
	client, err := f.client()
	if err != nil {
		return err
	}
	from = hostIn(f.lab, f.namespace, from)
	q := labapi.Request{From: from, To: to}
	if f.count > 1 {
		return f.many(ctx, stdout, client, q)
	}
	began := time.Now()
	r, err := request(ctx, client, q)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(stdout, answerText(r)); err != nil {
		return err
	}
	if r.Destination != "" {
		of := observe.FlowQuery{Source: r.Source, Destination: r.Destination}
		if r.Source == "" { // no connection: only the host is known
			of.Source, of.Since = from, began.Format(time.RFC3339Nano)
		}
		if err := printStory(ctx, stdout, client, r, of, text.Options{Style: style}); err != nil {
			return err
		}
	}
	if r.Error != "" {
		return answerNo
	}
	return nil
}

// request is Request with an error that names the argument.
func request(ctx context.Context, client labapi.Requester, q labapi.Request) (*labapi.Response, error) {
	r, err := client.Request(ctx, q)
	if e, ok := errors.AsType[*observe.Error](err); ok && e.Status == http.StatusBadRequest && e.Field == "to" {
		return nil, fmt.Errorf("URL %w", err)
	}
	return r, err
}

// unnamed are programs that do not answer with their names, as the servers of a lab do.
const unnamed = "a program that is not the lab's"

// answerText is the lookup, the request and the answer, a line each.
func answerText(r *labapi.Response) string {
	var b strings.Builder
	line := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "%-8s "+format+"\n", append([]any{label}, args...)...)
	}
	if r.Lookup != nil {
		line("lookup", "%s", lookupText(r.Lookup))
	}
	if r.Source != "" {
		line("request", "%s -> %s", r.Source, r.Destination)
	}
	if r.Error != "" {
		line("failed", "%s", failureText(r))
		return b.String()
	}
	text := cmp.Or(r.By, r.Status, unnamed)
	if r.By != "" && r.Status != "" {
		text += ", " + r.Status
	}
	text += fmt.Sprintf(", after %s", durationOf(r))
	if r.Client != "" {
		text += fmt.Sprintf("; the server saw the client address %s", r.Client)
	}
	line("answer", "%s", text)
	return b.String()
}

// failureText is why a request got no answer and, if it was sent, how long that took.
func failureText(r *labapi.Response) string {
	if r.Destination == "" {
		return r.Error
	}
	return fmt.Sprintf("%s, after %s", r.Error, durationOf(r))
}

// lookupText is a lookup in one line.
func lookupText(l *labapi.Lookup) string {
	if len(l.Queries) == 0 {
		if len(l.Addresses) == 0 {
			return l.Name
		}
		return fmt.Sprintf("%s %s, of /etc/hosts", l.Name, l.Addresses[0])
	}
	var all []string
	for _, q := range l.Queries {
		all = append(all, q.Name+" "+q.Type+" "+q.Answer)
	}
	return fmt.Sprintf("%s, by %s", strings.Join(all, ", "), l.Queries[len(l.Queries)-1].Server)
}

// many sends requests, prints those that fail and, even if it is interrupted, the distribution of all answers.
func (f *askFlags) many(ctx context.Context, stdout io.Writer, client *remote.Client, q labapi.Request) error {
	counts := make(map[string]int)
	sent, failed, looked, unsent := 0, 0, false, ""
	var broken error
	for sent < f.count {
		r, err := request(ctx, client, q)
		if err != nil {
			broken = err
			break
		}
		sent++
		if r.Lookup != nil && !looked {
			looked = true
			if _, err := fmt.Fprintf(stdout, "lookup   %s\n", lookupText(r.Lookup)); err != nil {
				return err
			}
		}
		if r.Error != "" {
			failed++
		}
		// A name that is not found is not found again and again.
		if r.Error != "" && (r.Destination != "" || r.Error != unsent) {
			if r.Destination == "" {
				unsent = r.Error
			}
			if _, err := fmt.Fprintf(stdout, "failed   request %d: %s\n", sent, failureText(r)); err != nil {
				return err
			}
		}
		counts[cmp.Or(r.By, r.Error, r.Status, unnamed)]++
	}
	if sent > 0 {
		if _, err := io.WriteString(stdout, distribution(counts, sent)); err != nil {
			return err
		}
	}
	switch {
	case broken != nil && sent > 0:
		return fmt.Errorf("stopped after %d of %d requests: %w", sent, f.count, broken)
	case broken != nil:
		return broken
	case failed > 0:
		return answerNo
	}
	return nil
}

// durationOf returns how long a request took.
func durationOf(r *labapi.Response) time.Duration {
	return time.Duration(r.Seconds * float64(time.Second)).Round(10 * time.Microsecond)
}

// distribution is a table of answers, the most frequent first.
func distribution(counts map[string]int, all int) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ANSWER\tREQUESTS\tSHARE")
	for _, by := range slices.SortedFunc(maps.Keys(counts), func(x, y string) int {
		return cmp.Or(cmp.Compare(counts[y], counts[x]), cmp.Compare(x, y))
	}) {
		fmt.Fprintf(t, "%s\t%d\t%s\n", by, counts[by], share(counts[by], all))
	}
	_ = t.Flush() // a Builder takes everything
	return b.String()
}

// How long the flow of a request may take to be recorded, and then to be complete: by all nodes that it passed.
const (
	recordTimeout  = 5 * time.Second
	storyGrace     = time.Second
	recordInterval = 50 * time.Millisecond
)

// printStory prints the flow of a request, which the query finds.
func printStory(ctx context.Context, stdout io.Writer, client *remote.Client, r *labapi.Response, q observe.FlowQuery, o text.Options) error {
	record, err := recordOf(ctx, client, r, q)
	if err != nil {
		return err
	}
	if record == nil {
		_, err := fmt.Fprintln(stdout, "flow     not recorded: no node of the lab decided it")
		return err
	}
	o.Observed = observedNodes(ctx, client)
	_, err = io.WriteString(stdout, "\n"+text.Story(record, o))
	return err
}

// recordOf finds the record of a request; nil: there is none.
func recordOf(ctx context.Context, client *remote.Client, r *labapi.Response, q observe.FlowQuery) (*flow.Record, error) {
	waiting, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	q.Follow, q.Limit = true, "1"
	first, err := remote.First(waiting, client, q)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case first == nil && waiting.Err() != nil:
		return nil, nil
	case first == nil:
		return nil, err
	}
	complete, cancel := context.WithTimeout(ctx, storyGrace)
	defer cancel()
	for {
		record, err := client.Flow(ctx, first.ID)
		if err != nil || isComplete(record, r) {
			return record, err
		}
		select {
		case <-complete.Done():
			return record, ctx.Err()
		case <-time.After(recordInterval):
		}
	}
}

// isComplete reports whether a record has the nodes that the request passed, and its end: that of the connection, or the
// answer to the datagram.
func isComplete(record *flow.Record, r *labapi.Response) bool {
	ended := r.Error != "" || record.Life == nil || !record.Life.Open() || record.Life.Answered && record.Protocol == "UDP"
	return ended && !slices.ContainsFunc(nodepath.Of(record), func(h nodepath.Hop) bool { return h.Record == nil })
}
