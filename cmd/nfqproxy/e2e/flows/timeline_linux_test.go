package flows

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	simreplay "github.com/nfqproxy/nfqproxy/datapath/paper/replay"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// TestTimeline: an endpoint is scaled away while a client has connections to it. The events of the change are in
// their order, on each node.
func TestTimeline(t *testing.T) {
	t.Parallel()
	file, err := lab.Load(e2etest.WriteFile(t, "lab.yaml", []byte(deployed)))
	if err != nil {
		t.Fatal(err)
	}
	c := e2etest.Up(t, file, lab.Options{})
	c.ServeFlows()
	web := func(r *flow.Record) bool { return r.Service == "default/web" }
	reached := make(map[string]bool) // endpoints
	for i := 1; len(reached) < 2; i++ {
		conn := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.1:80")
		c.WaitRecords(i, "of the flows", web)
		records := c.Records()
		for _, r := range records {
			if web(r) && r.Source == conn.LocalAddr().String() {
				reached[r.Endpoint] = true
			}
		}
		if i == 100 {
			t.Fatalf("no flow to one of the endpoints: %d", len(reached))
		}
	}
	if _, err := c.Change(t.Context(), lab.Change{Scale: &lab.Scale{Deployment: "web", Replicas: 1}}); err != nil {
		t.Fatal(err)
	}
	client, err := remote.NewClient(c.FlowAPI.URL, remote.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	changes := func() (all []observe.Change) {
		t.Helper()
		s, err := client.Services(t.Context(), observe.ServiceQuery{Service: "default/web", Changes: true})
		if err != nil || len(s.Services) != 1 {
			t.Fatalf("%+v, %v", s, err)
		}
		for _, change := range s.Services[0].Changes {
			for _, e := range change.Endpoints {
				if e.Change == observe.EndpointRemoved {
					all = append(all, change)
				}
			}
		}
		return all
	}
	e2etest.Eventually(t, 30*time.Second, "the change on both nodes", func() bool { return len(changes()) == 2 })
	c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.1:80")
	e2etest.Eventually(t, 30*time.Second, "the first flow after the change", func() bool { return changes()[0].FirstFlow != nil || changes()[1].FirstFlow != nil })

	nodes := make(map[string]*observe.Change)
	for _, change := range changes() {
		nodes[change.Node] = &change
	}
	for name, change := range nodes {
		if change.Received == nil || change.InForce == nil || change.Time.Before(*change.Received) || change.InForce.Before(change.Time) {
			t.Errorf("%s: not in order: received %v, built %v, in force %v", name, change.Received, change.Time, change.InForce)
		}
	}
	a, b := nodes["node-a"], nodes["node-b"]
	if a == nil || b == nil {
		t.Fatalf("changes %+v", nodes)
	}
	removed := a.Endpoints[len(a.Endpoints)-1]
	last, first := removed.LastFlow, a.FirstFlow
	if first == nil || last == nil || first.Time.Before(a.Time) || !last.Time.Before(first.Time) || first.Endpoint == removed.Endpoint || last.Endpoint != removed.Endpoint {
		t.Errorf("node-a: first flow %+v, last flow to %s %+v", first, removed.Endpoint, last)
	}
	if r, err := client.Flow(t.Context(), first.ID); err != nil || r.Generation < a.Generation || len(r.Steps) == 0 {
		t.Errorf("first flow %+v, %v", r, err)
	}
	if b.FirstFlow != nil || b.Endpoints[len(b.Endpoints)-1].LastFlow != nil {
		t.Errorf("node-b had no flows: %+v", b)
	}
	if removed.Open == nil {
		t.Errorf("open connections are not known: %+v", removed)
	}
	if code, stdout, stderr := e2etest.Run(t, nil, "timeline", "web", "--server", c.FlowAPI.URL); code != 0 || !strings.Contains(stdout, "removed "+removed.Endpoint) || !strings.Contains(stdout, first.ID) {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	} // The flows before the change were decided by another table, which the daemon still has.
	before := c.Records()[0].Generation
	for generation, same := range map[uint64]bool{before: true, a.Generation: false} {
		code, objects, stderr := e2etest.Run(t, nil, "objects", "--generation", strconv.FormatUint(generation, 10), "--node", "node-a", "--server", c.FlowAPI.URL)
		if code != 0 {
			t.Fatal(stderr)
		}
		compared, different := decideAgain(t, file, objects, before, c.Records())
		if compared < 2 || same != (different == 0) {
			t.Errorf("%d of %d flows of generation %d would be decided differently by the objects of generation %d:\n%s", different, compared, before, generation, objects)
		}
	}
}

// decideAgain decides node-a's records of a generation again, by a service table of other objects.
func decideAgain(t *testing.T, file *lab.File, text string, generation uint64, records []*flow.Record) (compared, different int) {
	t.Helper()
	objects, err := labfile.LoadText("objects", text)
	if err != nil {
		t.Fatal(err)
	}
	config := servicetable.NodeConfig{Name: "node-a"}
	file.Spec.Configure(&config)
	table, _ := servicetable.Table(&objects.Objects, config)
	log, err := simreplay.NewLog(table)
	if err != nil {
		t.Fatal(err)
	}
	log.Generation = generation
	var lines bytes.Buffer
	for _, r := range records {
		if err := json.NewEncoder(&lines).Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := log.Run(&lines, func(*simreplay.Difference) error { return nil }); err != nil {
		t.Fatal(err)
	}
	return log.Summary().Compared, log.Summary().Different
}
