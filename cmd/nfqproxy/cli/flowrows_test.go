package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// twoNodes are records of one connection: node-a sends it to an endpoint on node-b, which passes it.
func twoNodes() (translated, passed *flow.Record) {
	at := observetest.Now
	later := at.Add(time.Millisecond)
	life := &flow.Life{State: flow.Decided, SeenSource: "172.20.0.2:40000"}
	translated = &flow.Record{Version: 1, ID: "a-1", Time: &at, Node: "node-a", Verdict: "dnat", Reason: "balanced", Protocol: "TCP", Source: "192.0.2.10:40000", Destination: "172.20.0.2:30080",
		Service: "default/web", Endpoint: "10.244.2.2:8080", EndpointNode: "node-b", Masquerade: true, Life: life}
	passed = &flow.Record{Version: 1, ID: "b-1", Time: &later, Node: "node-b", Verdict: "accept", Reason: "not-a-service", Protocol: "TCP", Source: "172.20.0.2:40000", Destination: "10.244.2.2:8080"}
	return translated, passed
}

// flowsOf runs nfqproxy flows with several nodes; one without items is unreachable.
func flowsOf(t *testing.T, nodes map[string][]observe.Item, args ...string) (stdout, stderr string) {
	t.Helper()
	var members []remote.Member
	for _, name := range []string{"node-a", "node-b", "node-c"} {
		fake := observetest.New(name)
		fake.List = nodes[name]
		fake.TopologyAnswer = observe.Topology{Nodes: []observe.TopologyNode{{Name: name, Observed: true}}}
		if fake.List == nil {
			fake.Fail(errors.New("on fire"))
		}
		members = append(members, remote.Member{Name: name, Observer: fake})
	}
	f, err := remote.NewRelay(members, remote.RelayOptions{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out, messages bytes.Buffer
	root := newRootCommand(func(string, string) (observe.Observer, error) { return f, nil })
	if code := execute(t.Context(), root, append([]string{"flows"}, args...), strings.NewReader(""), &out, &messages); code != 0 {
		t.Fatalf("exit code %d: %s", code, &messages)
	}
	return out.String(), messages.String()
}

// TestOneRowForEachConnection: a table has the nodes of each connection, and each node's rows where
// that is wanted; formats for programs stay as they are.
func TestOneRowForEachConnection(t *testing.T) {
	a, b := twoNodes()
	none := []observe.Item{}
	leftOut := observe.Item{Missed: &observe.Missed{Node: "node-b", Missed: 1, Why: observe.MissedLeftOut}}
	services := map[string][]observe.Item{"node-a": {{Record: a}}, "node-b": {leftOut}, "node-c": none}
	all := map[string][]observe.Item{"node-a": {{Record: a}}, "node-b": {{Record: b}}, "node-c": none}
	for _, tt := range []struct {
		args       string
		nodes      map[string][]observe.Item
		lines      int
		has, lacks string
	}{
		{"", services, 2, "   node-a\n", "→"}, // the fake of node-b has no record to join
		{"--all", all, 2, "   node-a → node-b\n", "b-1"},
		{"--all -o wide", all, 2, "   node-a → node-b   ", "b-1"},
		{"--all --join=false", all, 3, "", "NODE"},
		{"--all --join=false -o wide", all, 3, "b-1", "→"},
		{"--all -o jsonl", all, 2, `"id":"b-1"`, `"others"`},
		{"--all -o jsonl --join", all, 1, `"others":[{"version":1,"id":"b-1"`, `joined`},
		{"--all -o name", all, 2, "b-1\n", ""},
		{"--all -o name --join", all, 1, "a-1\n", "b-1"},
		{"--all -o custom-columns=ID:.id,ON:.others[*].node --join", all, 2, "a-1   node-b\n", "b-1"},
	} {
		stdout, _ := flowsOf(t, tt.nodes, strings.Fields(tt.args)...)
		if strings.Count(stdout, "\n") != tt.lines || !strings.Contains(stdout, tt.has) || tt.lacks != "" && strings.Contains(stdout, tt.lacks) {
			t.Errorf("flows %s: want %d lines with %q, without %q:\n%s", tt.args, tt.lines, tt.has, tt.lacks, stdout)
		}
	}
	// What is in the row of another flow is not omitted.
	if _, stderr := flowsOf(t, map[string][]observe.Item{"node-a": {{Record: a}}, "node-b": {leftOut, {Record: b}}, "node-c": none}); stderr != "" {
		t.Errorf("stderr %q", stderr)
	}
	if _, stderr := flowsOf(t, map[string][]observe.Item{"node-a": {{Record: a}}, "node-b": {leftOut, {Record: b}}, "node-c": none}, "--join=false"); stderr != "1 flow for no service is omitted (--all shows it).\n" {
		t.Errorf("stderr %q", stderr)
	}
}

// TestNewestFlows: a list that nobody limited names the limit if there are more flows.
func TestNewestFlows(t *testing.T) {
	for n, want := range map[int]string{observe.DefaultLimit: "", observe.DefaultLimit + 1: "Only the newest 100 flows are shown (--limit 0 shows all).\n"} {
		var items []observe.Item
		for i := range n {
			r, _ := twoNodes()
			r.ID, r.Time = fmt.Sprintf("a-%d", i), new(r.Time.Add(time.Duration(i)*time.Second))
			items = append(items, observe.Item{Record: r})
		}
		stdout, stderr := flowsOf(t, map[string][]observe.Item{"node-a": items, "node-b": {}, "node-c": {}}, "--all")
		if lines := strings.Count(stdout, "\n"); lines != 1+observe.DefaultLimit || stderr != want || n > observe.DefaultLimit && strings.Contains(stdout, observetest.Now.Local().Format(" 15:04:05.000 ")) {
			t.Errorf("%d flows: %d lines, %q\n%s", n, lines, stderr, stdout)
		}
		if stdout, stderr := flowsOf(t, map[string][]observe.Item{"node-a": items, "node-b": {}, "node-c": {}}, "--all", "--limit", "0"); strings.Count(stdout, "\n") != 1+n || stderr != "" {
			t.Errorf("all %d flows: %q\n%s", n, stderr, stdout)
		}
	}
}

// TestStoryOnNodes: the story of one flow has the nodes that have no record of it, and why.
func TestStoryOnNodes(t *testing.T) {
	a, b := twoNodes()
	none := []observe.Item{}
	for _, tt := range []struct {
		nodes    map[string][]observe.Item
		id, want string
	}{
		{map[string][]observe.Item{"node-a": {{Record: a}}, "node-b": {{Record: b}}}, "a-1", "through node-a, then node-b\n"},
		{map[string][]observe.Item{"node-a": {{Record: a}}, "node-b": {{Record: b}}}, "b-1", "through node-a, then node-b\n"},
		{map[string][]observe.Item{"node-a": {{Record: a}}, "node-b": none}, "a-1", "┆ no record of this packet within 10 s\n"},
		{map[string][]observe.Item{"node-a": {{Record: a}}, "node-c": none}, "a-1", "┆ not observed: its decision is not known\n"},
		{map[string][]observe.Item{"node-b": {{Record: b}}}, "b-1", "TCP 172.20.0.2:40000 -> 10.244.2.2:8080, on node node-b\n"}, // nothing shows that node-a translated it
	} {
		if text, _ := flowsOf(t, tt.nodes, tt.id); !strings.Contains(text, tt.want) {
			t.Errorf("%s: want %q:\n%s", tt.id, tt.want, text)
		}
	}
	o := observetest.NewCluster() // with the topology of a node's daemon
	var out, stderr bytes.Buffer
	root := newRootCommand(func(string, string) (observe.Observer, error) { return o, nil })
	if code := execute(t.Context(), root, []string{"flows", "f00002-node-a"}, strings.NewReader(""), &out, &stderr); code != 0 {
		t.Fatal(code, &stderr)
	}
	if want := "  ┌┄▼┄ node-b\n  ┆ not observed: its decision is not known\n"; !strings.Contains(out.String(), want) {
		t.Errorf("want %q:\n%s", want, &out)
	}
}

// TestRowsOfAStream: what another node decided is in the rows that are still to be printed, else in those
// of later events. No row is lost.
func TestRowsOfAStream(t *testing.T) {
	a, b := twoNodes()
	answered := *a
	answered.Event = flow.Answered
	expired := *b
	expired.Event = flow.Expired
	joined := observe.Item{Joined: &observe.Joined{Flow: a.ID, Other: b}}
	var flush observe.Item // the stream is quiet
	for _, tt := range []struct {
		name  string
		items []observe.Item
		want  string
	}{
		{"in time", []observe.Item{{Record: a}, joined, flush}, "node-a → node-b"},
		{"for all rows", []observe.Item{{Record: a}, {Record: &answered}, joined}, "node-a → node-b, node-a → node-b"},
		{"each event of the other one", []observe.Item{{Record: a}, joined, joined, flush, joined, {Record: &answered}}, "node-a → node-b, node-a → node-b"},
		{"late", []observe.Item{{Record: a}, flush, joined, {Record: &answered}}, "node-a, node-a → node-b"},
		{"the other one's row first", []observe.Item{{Record: b}, {Record: a}, joined}, "node-a → node-b"},
		{"the other one's row is printed", []observe.Item{{Record: b}, flush, {Record: a}, joined}, "node-b, node-a → node-b"},
		{"the flow's row is printed", []observe.Item{{Record: a}, flush, {Record: b}, joined, flush}, "node-a, node-b"},
		{"later events of the other one", []observe.Item{{Record: a}, {Record: b}, joined, flush, {Record: &expired}}, "node-a → node-b"},
		{"it is shown later", []observe.Item{{Record: a}, flush, {Record: b}, joined, flush, {Record: &answered}, {Record: &expired}}, "node-a, node-b, node-a → node-b"},
		{"missed in between", []observe.Item{{Record: a}, {Missed: &observe.Missed{Missed: 1, Why: observe.MissedSlow}}, joined, {Record: &answered}}, "node-a, node-a → node-b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			p, err := text.NewPrinter(&out, "", text.Options{Follow: true, Nodes: true, NoHeaders: true})
			if err != nil {
				t.Fatal(err)
			}
			l := &rows{flowsFlags: &flowsFlags{query: observe.FlowQuery{Follow: true}}, printer: p, stderr: io.Discard}
			for _, i := range append(tt.items, flush) {
				if i.Record == nil && i.Missed == nil && i.Joined == nil { // flush
					err = l.flush()
				} else {
					err = l.take(i)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			var got []string
			for line := range strings.Lines(out.String()) {
				got = append(got, strings.TrimSpace(line[strings.Index(line, "   node-"):]))
			}
			if got := strings.Join(got, ", "); got != tt.want || l.printed != len(strings.Split(tt.want, ", ")) {
				t.Errorf("rows of %s, %d printed; want %s:\n%s", got, l.printed, tt.want, &out)
			}
		})
	}
}

// TestRowsAreBounded: rows do not wait without end, nor are joined records kept without end.
func TestRowsAreBounded(t *testing.T) {
	a, b := twoNodes()
	p, err := text.NewPrinter(io.Discard, "jsonl", text.Options{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	l := &rows{flowsFlags: &flowsFlags{query: observe.FlowQuery{Follow: true}}, printer: p, stderr: io.Discard}
	for i := range 2 * joinsKept {
		r, b := *a, *b
		r.ID += string(rune(i + 1000))
		b.ID += string(rune(i + 1000))
		if err := l.take(observe.Item{Record: &r}); err != nil {
			t.Fatal(err)
		}
		if err := l.take(observe.Item{Joined: &observe.Joined{Flow: r.ID, Other: &b}}); err != nil {
			t.Fatal(err)
		}
	}
	if len(l.waiting) > maxWaiting || len(l.others) != joinsKept || len(l.order) != joinsKept || len(l.shown) != joinsKept || l.printed < joinsKept {
		t.Errorf("%d rows wait, %d and %d joined records are kept, %d rows are printed", len(l.waiting), len(l.others), len(l.order), l.printed)
	}
}
