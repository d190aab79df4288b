package traffic

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// scripted is the script of events, in a cluster of 10 nodes with 3 endpoints, as text.
func scripted(t *testing.T, events ...Event) string {
	t.Helper()
	c := quiet(events...)
	c.Cluster = cluster(10, 1, 3, 4, 100)
	s, err := c.Script()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, step := range s.Steps {
		line := fmt.Sprintf("%s %s", step.At, map[StepKind]string{Listens: "listens", Deaf: "deaf", Gone: "gone", Slowed: "slowed", NodeSlowed: "node", NodesLost: "lost", Flushed: "flushed", Published: "published"}[step.Kind])
		switch step.Kind {
		case Listens, Deaf, Gone, Slowed:
			line += fmt.Sprint(" ", step.Endpoint)
		case NodeSlowed, NodesLost, Flushed:
			line += fmt.Sprint(" ", step.Node)
		}
		if step.Factor != 0 {
			line += fmt.Sprint(" by ", step.Factor)
		}
		for _, set := range step.Published {
			line += fmt.Sprint(" ", set.Service, set.Endpoints)
		}
		lines = append(lines, line)
	}
	initial := 0
	for _, e := range s.Endpoints {
		if e.Initial {
			initial++
		}
	}
	return fmt.Sprintf("%d of %d: %s", initial, len(s.Endpoints), strings.Join(lines, "; "))
}

// TestScript: what events do.
func TestScript(t *testing.T) {
	life := Lifecycle{Ready: time.Second, Listens: time.Second / 2, PreStop: time.Second, Grace: 3 * time.Second}
	for _, tt := range []struct {
		want   string
		events []Event
	}{
		{"3 of 3: ", nil},
		{"3 of 4: 3s published 0 [0 1 2 3]; 3.5s listens 3", []Event{{At: 2 * time.Second, Scale: &Scale{life, 4}}}},
		{"3 of 3: 2s published 0 [0]; 3s deaf 1; 3s deaf 2; 5s gone 1; 5s gone 2", []Event{{At: 2 * time.Second, Scale: &Scale{life, 1}}}},
		{"3 of 6: 3s published 0 [1 2 3]; 3.5s listens 3; 4s deaf 0; 6s gone 0; 7s published 0 [2 3 4]; 7.5s listens 4; 8s deaf 1; 10s gone 1; 11s published 0 [3 4 5]; 11.5s listens 5; 12s deaf 2; 14s gone 2",
			[]Event{{At: 2 * time.Second, RollingUpdate: &RollingUpdate{life, 4 * time.Second}}}},
		{"3 of 3: 1s slowed 0 by 3; 1s slowed 1 by 3; 2s slowed 0 by 1; 2s slowed 1 by 1", []Event{{At: time.Second, Slow: &Slow{Endpoints: 2, Factor: 3, For: time.Second}}}},
		{"3 of 3: 1s node 9 by 2", []Event{{At: time.Second, Antagonist: &Antagonist{Factor: 2}}}},
		{"3 of 3: 1s gone 1; 1s gone 2; 1s lost 1; 3s published 0 [0]", []Event{{At: time.Second, NodeLoss: &NodeLoss{Nodes: 9, Noticed: 2 * time.Second}}}},
		{"3 of 3: 1s flushed 2; 2s flushed 10", []Event{{At: time.Second, Flush: &Flush{Nodes: 2}}, {At: 2 * time.Second, Flush: &Flush{}}}},
		// What happens while the API server is away reaches nodes when it is back, at once.
		{"3 of 5: 3.5s listens 3; 4.5s listens 4; 6s published 0 [0 1 2 3 4]", []Event{
			{At: time.Second, Away: &Away{For: 5 * time.Second}}, {At: 2 * time.Second, Scale: &Scale{life, 4}}, {At: 3 * time.Second, Scale: &Scale{life, 5}},
		}},
	} {
		if got := scripted(t, tt.events...); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}

// TestFlows: they are those that a run decides, and end with the duration.
func TestFlows(t *testing.T) {
	c := quiet()
	c.Workload.Clients = Clients{PerNode: 2, Ports: 3}
	flows := slices.Collect(c.Flows(7))
	if r := run(t, c, "random", 7); r.Flows != len(flows) {
		t.Errorf("%d flows, and a run has %d", len(flows), r.Flows)
	}
	work, ports := time.Duration(0), make(map[uint16]bool)
	for i, f := range flows {
		if f.At >= c.Duration || i > 0 && f.At < flows[i-1].At || f.Node != f.Client/2 || f.Node >= 10 {
			t.Fatalf("flow %d: %+v", i, f)
		}
		work += f.Work
		ports[f.Port] = true
	}
	if mean := work / time.Duration(len(flows)); mean < 9*time.Millisecond || mean > 11*time.Millisecond || len(ports) != 3 {
		t.Errorf("a mean work of %s, %d ports", mean, len(ports))
	}
	if other := slices.Collect(c.Flows(8)); other[0] == flows[0] {
		t.Error("two seeds have the same flows")
	}
	for range c.Flows(7) {
		break
	}
}
