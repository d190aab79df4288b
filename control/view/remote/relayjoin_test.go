package remote_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

const (
	client   = "192.0.2.1:40000"
	nodePort = "10.0.0.1:30080"
	endpoint = "10.244.2.2:8080"
)

// decidedBy is a record of a TCP flow. With an endpoint it is translated.
func decidedBy(node, id string, seconds int, source, destination, endpoint, seen string) observe.Item {
	i := at(id, seconds)
	r := i.Record
	r.Node, r.Protocol, r.Source, r.Destination, r.Endpoint, r.Verdict = node, "TCP", source, destination, endpoint, "accept"
	if endpoint != "" {
		r.Verdict, r.Masquerade = "dnat", seen != source
	}
	if seen != "" {
		r.Life = &flow.Life{SeenSource: seen}
	}
	return i
}

// stream follows a relay's flows and returns each item as a line.
func stream(t *testing.T, f *remote.Relay, q observe.FlowQuery) <-chan string {
	ctx, cancel := context.WithCancel(t.Context())
	lines, ended := make(chan string), make(chan error, 1)
	go func() {
		ended <- f.Flows(ctx, q, func(i observe.Item) error {
			line := ""
			if i.Joined != nil {
				line = fmt.Sprintf("%s with %s of %s", i.Joined.Flow, i.Joined.Other.ID, i.Joined.Other.Node)
			} else {
				line = i.Record.ID
			}
			select {
			case lines <- line:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return lines
}

// TestJoined: what the second node decides comes after the record of the node that translates, in
// whichever order the nodes report.
func TestJoined(t *testing.T) {
	const masqueraded = "10.0.0.1:61000"
	translated := decidedBy("node-a", "a/1", 0, client, nodePort, endpoint, masqueraded)
	passed := decidedBy("node-b", "b/1", 1, masqueraded, endpoint, "", "")
	early := decidedBy("node-a", "a/1", 0, client, nodePort, endpoint, "") // its source's port is not known yet
	early.Record.Masquerade = true
	for _, tt := range []struct {
		name  string
		items []observe.Item
		want  []string
	}{
		{"the translation first", []observe.Item{translated, passed}, []string{"a/1", "a/1 with b/1 of node-b"}},
		{"the other one first", []observe.Item{passed, translated}, []string{"a/1", "a/1 with b/1 of node-b"}},
		{"the source's port later", []observe.Item{early, passed, translated}, []string{"a/1", "a/1", "a/1 with b/1 of node-b"}},
		{"once", []observe.Item{passed, translated, translated}, []string{"a/1", "a/1 with b/1 of node-b", "a/1"}},
		{"before the translation", []observe.Item{decidedBy("node-b", "b/2", 0, client, nodePort, "", ""), translated}, []string{"a/1", "a/1 with b/2 of node-b"}},
		{"not masqueraded", []observe.Item{decidedBy("node-a", "a/2", 0, client, nodePort, endpoint, client), decidedBy("node-b", "b/3", 0, client, endpoint, "", "")}, []string{"a/2", "a/2 with b/3 of node-b"}},
		{"another time", []observe.Item{translated, decidedBy("node-b", "b/4", 11, masqueraded, endpoint, "", ""), translated}, []string{"a/1", "a/1"}},
		{"the same node", []observe.Item{translated, decidedBy("node-a", "a/3", 1, masqueraded, endpoint, "", ""), translated}, []string{"a/1", "a/1"}},
		{"another port", []observe.Item{translated, decidedBy("node-b", "b/5", 1, "10.0.0.1:61001", endpoint, "", ""), translated}, []string{"a/1", "a/1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, fakes := newRelay(t, 2, remote.RelayOptions{})
			lines := stream(t, f, observe.FlowQuery{Follow: true, Joined: true, ServicesOnly: true, Verdict: "dnat"})
			for _, fake := range fakes {
				if !fake.AwaitReaders(t.Context(), 2) {
					t.Fatal("no readers")
				}
			}
			var got []string
			for _, i := range tt.items {
				fake := fakes[i.Record.Node[len("node-")]-'a']
				published := make(chan struct{})
				go func() { fake.Publish(i); close(published) }()
				for done := false; !done; {
					select {
					case line := <-lines:
						got = append(got, line)
					case <-published:
						done = true
					}
				}
			}
			for len(got) < len(tt.want) {
				got = append(got, <-lines)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestJoinedPairs: with flows for no service, the first of two nodes that pass a packet has the record.
func TestJoinedPairs(t *testing.T) {
	f, fakes := newRelay(t, 2, remote.RelayOptions{})
	second, first := decidedBy("node-b", "b/1", 1, client, endpoint, "", ""), decidedBy("node-a", "a/1", 0, client, endpoint, "", "")
	lines := stream(t, f, observe.FlowQuery{Follow: true, Joined: true})
	for _, fake := range fakes {
		if !fake.AwaitReaders(t.Context(), 2) {
			t.Fatal("no readers")
		}
	}
	go func() { fakes[1].Publish(second); fakes[0].Publish(first) }()
	got := map[string]bool{}
	for range 3 {
		got[<-lines] = true
	}
	if diff := cmp.Diff(map[string]bool{"a/1": true, "b/1": true, "a/1 with b/1 of node-b": true}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestFlowWithOthers: a single flow has the other nodes' records, whichever of them it is.
func TestFlowWithOthers(t *testing.T) {
	const masqueraded = "10.0.0.1:61000"
	f, fakes := newRelay(t, 3, remote.RelayOptions{})
	fakes[0].List = []observe.Item{decidedBy("node-a", "a/0", -3, client, nodePort, endpoint, masqueraded), decidedBy("node-a", "a/1", 0, client, nodePort, endpoint, masqueraded)}
	fakes[1].List = []observe.Item{decidedBy("node-b", "b/1", 1, masqueraded, endpoint, "", ""), decidedBy("node-b", "b/2", 1, client, endpoint, "", "")}
	fakes[2].Fail(errors.New("on fire"))
	for id, want := range map[string]string{"a/1": "b/1", "b/1": "a/1", "a/0": "b/1", "b/2": ""} {
		r, err := f.Flow(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, o := range r.Others {
			got += o.ID
		}
		if got != want {
			t.Errorf("%s: others %q, want %q", id, got, want)
		}
	}
	for _, request := range fakes[2].Requests() {
		if q, ok := request.(observe.FlowQuery); ok && q.Since == now.Add(-10*time.Second).Format(time.RFC3339Nano) {
			return // a/1's and not earlier flows
		}
	}
	t.Error("the queries have no time")
}

// TestFlowOnThreeNodes: a flow that passes a node, is translated at the next one and returns to the
// first has all records, whichever of them it is; also if the first node masquerades it.
func TestFlowOnThreeNodes(t *testing.T) {
	const pod, masqueraded = "10.244.1.2:40000", "10.0.0.2:61000"
	f, fakes := newRelay(t, 3, remote.RelayOptions{})
	fakes[0].List = []observe.Item{decidedBy("node-a", "a/1", 0, pod, nodePort, "", ""), decidedBy("node-a", "a/2", 2, masqueraded, endpoint, "", "")}
	fakes[1].List = []observe.Item{decidedBy("node-b", "b/1", 1, pod, nodePort, endpoint, masqueraded), decidedBy("node-b", "b/2", 30, client, nodePort, endpoint, "10.0.0.2:61001")}
	fakes[2].List = []observe.Item{decidedBy("node-c", "c/1", 30, pod, nodePort, "", client), decidedBy("node-c", "c/2", 30, "10.244.1.2:40001", nodePort, "", "")}
	for id, want := range map[string]string{"a/1": "b/1 a/2", "b/1": "a/1 a/2", "a/2": "a/1 b/1", "b/2": "c/1", "c/1": "b/2", "c/2": ""} {
		r, err := f.Flow(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, o := range r.Others {
			got = append(got, o.ID)
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%s: others %q, want %q", id, got, want)
		}
	}
}

// TestFlowOfManyNodes: of many nodes, only those on the path of the connection are queried, if they are known.
func TestFlowOfManyNodes(t *testing.T) {
	for _, known := range []bool{true, false} {
		f, fakes := newRelay(t, 20, remote.RelayOptions{})
		first := decidedBy("node-a", "a/1", 0, "10.244.9.9:40000", nodePort, endpoint, "10.244.9.9:40000")
		if known {
			first.Record.SourceNode, first.Record.EndpointNode = "node-s", "node-b"
		}
		fakes[0].List = []observe.Item{first}
		fakes[1].List = []observe.Item{decidedBy("node-b", "b/1", 1, "10.244.9.9:40000", endpoint, "", "")}
		r, err := f.Flow(t.Context(), "a/1")
		if err != nil || len(r.Others) != 1 || r.Others[0].ID != "b/1" {
			t.Fatalf("%+v, %v", r, err)
		}
		for i, fake := range fakes {
			lists := 0
			for _, request := range fake.Requests() {
				if _, ok := request.(observe.FlowQuery); ok {
					lists++
				}
			}
			onPath := i == 1 || i == 's'-'a'
			if want := i != 0 && (onPath || !known); (lists > 0) != want {
				t.Errorf("path known: %t: node %d gets %d queries", known, i, lists)
			}
		}
	}
}

// TestJoinedList: in a list, what other nodes decided comes right after its record and is no record of
// its own, also if the query leaves it out; the limit is that of connections.
func TestJoinedList(t *testing.T) {
	const masqueraded = "10.0.0.1:61000"
	f, fakes := newRelay(t, 3, remote.RelayOptions{})
	fakes[0].List = []observe.Item{
		decidedBy("node-a", "a/0", -60, client, nodePort, endpoint, masqueraded), // the same ports as a/1, earlier
		decidedBy("node-a", "a/1", 1, client, nodePort, endpoint, masqueraded),
		decidedBy("node-a", "a/2", 3, "192.0.2.1:40002", nodePort, "10.244.1.2:8080", "10.0.0.1:61002"), // its endpoint is on node-a
		decidedBy("node-a", "a/3", 5, "10.244.1.9:1", "192.0.2.7:443", "", ""),
	}
	fakes[1].List = []observe.Item{
		decidedBy("node-b", "b/0", -60, masqueraded, endpoint, "", ""),
		decidedBy("node-b", "b/1", 0, masqueraded, endpoint, "", ""), // by a clock that is slow
		decidedBy("node-b", "b/3", 5, "10.244.1.9:1", "192.0.2.7:443", "", ""),
	}
	fakes[2].List = []observe.Item{decidedBy("node-c", "c/1", 1, client, nodePort, "", "")}
	for _, tt := range []struct {
		query observe.FlowQuery
		want  []string
	}{
		{observe.FlowQuery{Joined: true, Limit: "0"}, []string{"a/0", "a/0 with b/0 of node-b", "a/1", "a/1 with b/1 of node-b", "a/1 with c/1 of node-c", "a/2", "a/3", "a/3 with b/3 of node-b"}},
		{observe.FlowQuery{Joined: true, Limit: "3"}, []string{"a/1", "a/1 with b/1 of node-b", "a/1 with c/1 of node-c", "a/2", "a/3", "a/3 with b/3 of node-b"}},
		{observe.FlowQuery{Joined: true, Limit: "0", Node: "node-a"}, []string{"a/0", "a/0 with b/0 of node-b", "a/1", "a/1 with b/1 of node-b", "a/1 with c/1 of node-c", "a/2", "a/3", "a/3 with b/3 of node-b"}},
		{observe.FlowQuery{Joined: true, Limit: "0", Node: "node-c"}, []string{"c/1"}},
		{observe.FlowQuery{Joined: true, Limit: "0", Node: "node-b"}, []string{"b/0", "b/1", "b/3"}}, // a/3 is not in the list
		{observe.FlowQuery{Limit: "3"}, []string{"a/2", "a/3", "b/3"}},
	} {
		var got []string
		if err := f.Flows(t.Context(), tt.query, func(i observe.Item) error {
			if i.Joined != nil {
				got = append(got, fmt.Sprintf("%s with %s of %s", i.Joined.Flow, i.Joined.Other.ID, i.Joined.Other.Node))
			} else {
				got = append(got, i.Record.ID)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%+v: -want +got:\n%s", tt.query, diff)
		}
	}
	for _, fake := range fakes {
		for _, request := range fake.Requests() {
			if q, ok := request.(observe.FlowQuery); ok && q.Joined {
				t.Error("a node is to join records")
			}
		}
	}
	q, ok := fakes[1].Requests()[1].(observe.FlowQuery)
	if want := (observe.FlowQuery{Verdict: "accept", Destination: "10.0.0.1:30080,10.244.1.2:8080,10.244.2.2:8080,192.0.2.7:443", Since: now.Add(-70 * time.Second).Format(time.RFC3339Nano), Limit: "4096"}); !ok || q != want {
		t.Errorf("queried %+v, want %+v", q, want)
	}
}
