package flows

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// TestConvergence: beside each mode of kube-proxy, an endpoint is removed and another added while clients connect. Of each
// change it is known when the rules had it, and the last flow to the old or the first one to the new endpoint.
func TestConvergence(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	program := clustertest.RequireProgram(t, cluster.KubeProxy)
	file, err := lab.Load(e2etest.WriteFile(t, "lab.yaml", []byte(observedLab)))
	if err != nil {
		t.Fatal(err)
	}
	c := e2etest.Up(t, file, lab.Options{KubeProxy: program, NoDaemons: true, ObserverArguments: []string{"--accounting=false"}})
	nodes := []string{"node-0", "node-1"}
	for _, node := range nodes {
		c.Must(c.StartDaemon(t.Context(), node))
		c.Must(c.StartObserver(t.Context(), node))
	}
	c.ServeFlows()
	client, err := remote.NewClient(c.FlowAPI.URL, remote.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// find returns the change of an endpoint that is as the text says on each node, once it is complete on all.
	find := func(what ...string) map[string]observe.EndpointChange {
		t.Helper()
		found := make(map[string]observe.EndpointChange)
		e2etest.Eventually(t, e2etest.Timeout, "an endpoint that is "+strings.Join(what, " or ")+", with its rules and flow", func() bool {
			s, err := client.Services(t.Context(), observe.ServiceQuery{Service: "default/web", Changes: true})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range s.Services {
				for _, change := range s.Changes {
					for _, e := range change.Endpoints {
						if slices.Contains(what, e.Change) && e.Rules != nil && (e.FirstFlow != nil || e.LastFlow != nil) {
							found[change.Node] = e
						}
					}
				}
			}
			return len(found) == len(nodes)
		})
		t.Logf("%s: %+v", what, found)
		return found
	}

	var stop atomic.Bool
	var connected [2]atomic.Int64
	var clients sync.WaitGroup
	for i, shell := range []string{"shell-0", "shell-1"} {
		for range 3 { // one may wait for an endpoint that is gone
			clients.Go(func() {
				pace := time.NewTicker(20 * time.Millisecond) // there is a record of each
				defer pace.Stop()
				for ; !stop.Load(); <-pace.C {
					if conn, err := c.TryDial(shell, "tcp", netip.AddrPort{}, "10.96.0.1:80"); err == nil {
						connected[i].Add(1)
						_ = conn.Close()
					}
				}
			})
		}
	}
	t.Cleanup(func() { stop.Store(true); clients.Wait() })
	e2etest.Eventually(t, e2etest.Timeout, "connections on both nodes", func() bool { return connected[0].Load() > 50 && connected[1].Load() > 50 })

	began := time.Now()
	c.Must(func() error {
		_, err := c.Change(t.Context(), lab.Change{Scale: &lab.Scale{Deployment: "web", Replicas: 2}})
		return err
	}())
	removed := find(observe.EndpointRemoved, observe.EndpointExcluded)
	again := time.Now()
	c.Must(func() error {
		_, err := c.Change(t.Context(), lab.Change{Scale: &lab.Scale{Deployment: "web", Replicas: 3}})
		return err
	}())
	added := find(observe.EndpointAdded)
	stop.Store(true)
	clients.Wait()

	for _, node := range nodes {
		r, a := removed[node], added[node]
		// When the notification arrives, the rules have been in force for a moment.
		if r.Rules.Before(began) || r.Rules.After(again) || r.LastFlow.Time.After(*r.Rules) || r.LastFlow.Endpoint != r.Endpoint || r.FirstFlow != nil {
			t.Errorf("%s: removed after %s: rules %s, last flow %+v", node, began, r.Rules, r.LastFlow)
		}
		if a.Rules.Before(again) || a.FirstFlow.Time.Before(again) || a.FirstFlow.Endpoint != a.Endpoint || a.LastFlow != nil {
			t.Errorf("%s: added after %s: rules %s, first flow %+v", node, again, a.Rules, a.FirstFlow)
		}
	}
	s, err := client.Services(t.Context(), observe.ServiceQuery{Service: "default/web", Changes: true})
	if err != nil || len(s.Services) != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
	since := make(map[string]time.Time) // tables without the endpoint, by node
	for _, change := range s.Services[0].Changes {
		for _, e := range change.Endpoints {
			if at := change.Node + " " + e.Endpoint; since[at].IsZero() && (e.Change == observe.EndpointRemoved || e.Change == observe.EndpointExcluded) {
				since[at] = change.Time
			}
		}
	}
	outdated := 0
	for _, r := range c.Records() {
		if r.Service != "default/web" {
			continue
		}
		if r.Reason != "service-proxy" {
			t.Errorf("%+v", r)
		}
		if r.Outdated == 0 {
			continue
		}
		outdated++
		if at, ok := since[r.Node+" "+r.Endpoint]; !ok || !r.Time.After(at) {
			t.Errorf("outdated, but removed at %s: %+v", at, r)
		}
	}
	t.Logf("%d and %d connections, %d outdated", connected[0].Load(), connected[1].Load(), outdated)
	if s.Services[0].Flows.UnknownEndpoint+s.Services[0].Flows.NotTranslated != 0 {
		t.Errorf("%+v", s.Services[0].Flows)
	}
	code, stdout, stderr := e2etest.Run(t, nil, "timeline", "web", "--server", c.FlowAPI.URL)
	if code != 0 || strings.Count(stdout, ": rules +") < 2*len(nodes) {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	t.Log(stdout)
}
