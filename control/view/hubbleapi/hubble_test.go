package hubbleapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/hubble"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// fakeObserver gives the flows of package hubble's tests, which have everything.
type fakeObserver struct {
	observe.Observer // nil: no other query is made
	items            []observe.Item
	queries          chan observe.FlowQuery
	ended            chan struct{} // closed when a follower has gone
	err              error
}

func newObserver(t testing.TB) *fakeObserver {
	t.Helper()
	data, err := os.ReadFile("../hubble/testdata/records.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	o := &fakeObserver{queries: make(chan observe.FlowQuery, 1), ended: make(chan struct{})}
	for line := range bytes.Lines(data) {
		r := new(flow.Record)
		if err := json.Unmarshal(line, r); err != nil {
			t.Fatal(err)
		}
		o.items = append(o.items, observe.Item{Record: r})
	}
	return o
}

func (o *fakeObserver) Flows(ctx context.Context, q observe.FlowQuery, each func(observe.Item) error) error {
	select {
	case o.queries <- q:
	default:
	}
	for _, i := range o.items {
		if err := each(i); err != nil {
			return err
		}
	}
	if q.Follow {
		<-ctx.Done()
		close(o.ended)
	}
	return o.err
}

func (o *fakeObserver) Stats(context.Context) ([]observe.Stats, error) {
	started := time.Now().Add(-time.Hour)
	return []observe.Stats{
		{Node: "node-a", Version: "v1.2.3", Started: started, Verdicts: map[string]uint64{"dnat": 1000, "accept": 234}, Known: observe.Known{Flows: 100, Capacity: 16384}},
		{Node: "node-b", Version: "v1.2.3", Started: started, Verdicts: map[string]uint64{"dnat": 1}, Known: observe.Known{Flows: 1, Capacity: 16384}},
	}, o.err
}

func (o *fakeObserver) Services(_ context.Context, q observe.ServiceQuery) (*observe.Services, error) {
	if !q.Active {
		return nil, &observe.Error{Message: "want those that had flows"}
	}
	return &observe.Services{Services: []observe.Service{{Namespace: "shop"}, {Namespace: "default"}, {Namespace: "shop"}}}, o.err
}

// serve gives the address of a server that runs for as long as the test.
func serve(t *testing.T, o observe.Observer) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		done <- Serve(ctx, l, Config{Observer: o, Limits: new(limit.Set), Log: slog.New(slog.DiscardHandler)})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return l.Addr().String()
}

// command is the real hubble, without configuration of who runs the test.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), clustertest.RequireProgram(t, cluster.Hubble), args...)
	c.Env = []string{"HOME=" + t.TempDir()}
	return c
}

func run(t *testing.T, input string, args ...string) string {
	t.Helper()
	c := command(t, args...)
	c.Stdin = strings.NewReader(input)
	var complaints strings.Builder
	c.Stderr = &complaints
	out, err := c.Output()
	if err != nil || complaints.Len() > 0 {
		t.Fatalf("%v: %v\n%s", c.Args, err, &complaints)
	}
	return string(out)
}

// export is what --input-file reads of the same flows.
func export(t *testing.T, o *fakeObserver) string {
	t.Helper()
	var b strings.Builder
	e := hubble.NewEncoder(&b)
	for _, i := range o.items {
		if err := e.Encode(i); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func lines(s string) []string { return strings.Split(strings.TrimSuffix(s, "\n"), "\n") }

// TestHubbleObserves: with every filter that there is, hubble shows the same of a server and
// of a file, which it filters itself.
func TestHubbleObserves(t *testing.T) {
	o := newObserver(t)
	address := serve(t, o)
	for _, args := range []string{
		"--all -o jsonpb", "--all -o dict", "--first 3", "--last 4", "--first 1 --verdict DROPPED", "--last 2 --protocol udp",
		"--all --verdict DROPPED --verdict TRANSLATED", "--all --not --verdict FORWARDED",
		"--all --to-service kube-system/kube-dns", "--all --from-service kube-system/", "--all --service default/",
		"--all --from-pod shell", "--all --pod default/web-2", "--all --pod /web", "--all --namespace kube-system", "--all --not --namespace default",
		"--all --ip 10.244.1.2", "--all --from-ip 10.244.0.0/16", "--all --to-ip fd00:10:96::/64", "--all --snat-ip 10.244.1.1",
		"--all --port 8080", "--all --from-port 5000 --protocol SCTP", "--all --to-port 53 --to-port 5353",
		"--all --tcp-flags SYN", "--all --tcp-flags SYN,ACK", "--all --tcp-flags RST --tcp-flags FIN", "--all --not --tcp-flags SYN",
		"--all --type drop", "--all --type trace-sock", "--all --type trace:to-stack", "--all --type trace-sock --type drop",
		"--all --drop-reason-desc SERVICE_BACKEND_NOT_FOUND", "--all --traffic-direction ingress", "--all --traffic-direction egress",
		"--all --identity host", "--all --from-identity world", "--all -4", "--all -6", "--all --node-name node-a", "--all --node-name node-*", "--all --node-name node-b",
		"--until 2026-11-21T10:00:04Z", "--all --uuid bf6335cf-b55b-820a-b501-fe21a7d897df",
		`--all --allowlist {"reply":[false]}`, `--all --allowlist {"reply":[true]}`, `--all --denylist {"reply":[true,false]}`,
		`--all --allowlist {"source_pod":["default/"],"verdict":["FORWARDED"]} --allowlist {"protocol":["sctp"]} --denylist {"tcp_flags":[{"ACK":true}]}`,
	} {
		words := append([]string{"observe"}, strings.Fields(args)...)
		file := run(t, export(t, o), append(words, "--input-file", "-")...)
		server := run(t, "", append(words, "--server", address)...)
		if diff := cmp.Diff(lines(file), lines(server)); diff != "" {
			t.Errorf("%s: -file +server:\n%s", args, diff)
		}
		if none := args == "--all --node-name node-b"; (file == "") != none {
			t.Errorf("%s: shows\n%s", args, file)
		}
	}
}

// TestHubbleObservesLosses: they are reported in their place, whatever the query is.
func TestHubbleObservesLosses(t *testing.T) {
	o := newObserver(t)
	o.items = append(o.items[:1], observe.Item{Missed: &observe.Missed{Node: "node-a", Missed: 300, Why: observe.MissedSlow}})
	address := serve(t, o)
	if diff := cmp.Diff(lines(run(t, export(t, o), "observe", "--input-file", "-", "-o", "jsonpb")), lines(run(t, "", "observe", "-o", "jsonpb", "--server", address))); diff != "" {
		t.Errorf("-file +server:\n%s", diff)
	}
	if got := lines(run(t, "", "observe", "--last", "2", "--server", address)); len(got) != 3 {
		t.Errorf("the last two flows and what is missing: %q", got)
	}
	unreachable := newObserver(t)
	unreachable.items = []observe.Item{{Missed: &observe.Missed{Node: "node-c", Why: "unreachable"}}}
	if out, err := command(t, "observe", "--server", serve(t, unreachable)).CombinedOutput(); err != nil || string(out) != "N/A [node-c]: 1 nodes are unavailable: node-c\n" {
		t.Errorf("of an unreachable node: %v, %s", err, out)
	}
	want := "Nov 21 10:00:00.100 EVENTS LOST: HUBBLE_RING_BUFFER CPU(0) 300\n"
	if got := run(t, "", "observe", "--verdict", "DROPPED", "--server", address); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// TestHubbleFollows: the query that the options make, and that the observer notices when the
// reader goes.
func TestHubbleFollows(t *testing.T) {
	for args, want := range map[string]observe.FlowQuery{
		"-f":                               {Follow: true},
		"-f --last 7":                      {Follow: true, Limit: "7"},
		"-f --since 2026-11-21T10:00:00Z":  {Follow: true, Since: "2026-11-21T10:00:00Z"},
		"-f --all":                         {Follow: true, Limit: "0"},
		"--last 7":                         {Limit: "0"},
		"--since 2026-11-21T10:00:00.001Z": {Limit: "0", Since: "2026-11-21T10:00:00.001Z"},
	} {
		o := newObserver(t)
		c := command(t, append(strings.Fields("observe -o jsonpb --server "+serve(t, o)), strings.Fields(args)...)...)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		got := netnstest.Receive(t, o.queries, "hubble's query")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", args, diff)
		}
		if !want.Follow {
			io.Copy(io.Discard, out)
			c.Wait()
			continue
		}
		r := bufio.NewReader(out)
		for _, expect := range lines(export(t, o)) {
			if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, `"flow":`) {
				t.Fatalf("%s: %s, %v; want %s", args, line, err, expect)
			}
		}
		c.Process.Kill()
		netnstest.Receive(t, o.ended, "the end of hubble's query")
		c.Wait()
	}
}

// TestHubbleOtherRequests: nodes, namespaces and the status.
func TestHubbleOtherRequests(t *testing.T) {
	address := serve(t, newObserver(t))
	for command, want := range map[string]string{
		"status -o dict": ` *NUM FLOWS: 101
 *MAX FLOWS: 32,768
 *SEEN FLOWS: 1,235
 *FLOWS PER SECOND: N/A
 *UPTIME: 1h0m[0-9.]+s
 *NUM CONNECTED NODES: 2
 *NUM UNAVAIL. NODES: 0
 *VERSION: v1.2.3
`,
		"list nodes -o wide": `NAME +STATUS +AGE +FLOWS/S +CURRENT/MAX-FLOWS.*
node-a +Connected +1h0m[0-9]*s? +0.34 +100/16384.*
node-b +Connected +1h0m[0-9]*s? +0.00 +1/16384.*
`,
		"list namespaces": `NAMESPACE
default
shop
`,
	} {
		got := run(t, "", append(strings.Fields(command), "--server", address)...)
		if !regexp.MustCompile("^" + want + "$").MatchString(got) {
			t.Errorf("%s:\n%s\nwant\n%s", command, got, want)
		}
	}
}

// TestHubbleErrors: what cannot be answered, and why.
func TestHubbleErrors(t *testing.T) {
	fails := func(o *fakeObserver, args, want string) {
		t.Helper()
		out, err := command(t, append(strings.Fields(args), "--server", serve(t, o))...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v: %s\nwant %s", args, err, out, want)
		}
	}
	o := newObserver(t)
	fails(o, "observe --from-fqdn example.com", "filter field 7 (see flow.FlowFilter in Cilium's flow.proto) is not supported by nfqproxy; supported are destination_identity, destination_ip, ")
	fails(o, "observe agent-events", "not supported by nfqproxy: events of Cilium's agent")
	fails(o, "observe debug-events", "not supported by nfqproxy: events of Cilium's datapath")
	fails(o, `observe --allowlist {"source_ip":["10.0.0"]}`, `filter source_ip: "10.0.0": want an address or a prefix`)
	invalid := newObserver(t)
	invalid.err = &observe.Error{Status: 400, Message: "since 0: want a time"}
	fails(invalid, "observe", "code = InvalidArgument desc = since 0: want a time")
	fails(invalid, "list nodes", "since 0: want a time")
	broken := newObserver(t)
	broken.err = io.ErrUnexpectedEOF
	fails(broken, "observe", "code = Internal desc = unexpected EOF")
	odd := newObserver(t)
	odd.items[0].Record.Source = "nobody"
	fails(odd, "observe", `flow record a1: field source is "nobody": want an address and a port`)
}
