package flows

import (
	"flag"
	"fmt"
	"maps"
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
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

var measured = flag.Int("converge.changes", 0, "number of changes over which TestConvergenceTimes measures how soon rules and flows follow them, and prints it with -v; 0: it is skipped")

// converging is a lab whose clients connect to the Service all the time.
type converging struct {
	*e2etest.Cluster
	t         *testing.T
	client    *remote.Client
	stop      atomic.Bool
	clients   sync.WaitGroup
	connected [2]atomic.Int64
}

// nodes are those of observedLab.
var nodes = []string{"node-0", "node-1"}

// startConverging starts observedLab, or the same with nfqproxyd instead of kube-proxy.
func startConverging(t *testing.T, observed bool) *converging {
	text, options := observedLab, lab.Options{NoDaemons: observed}
	if observed {
		netnstest.RequireTool(t, "nft")
		options.KubeProxy = clustertest.RequireProgram(t, cluster.KubeProxy)
		options.ObserverArguments = []string{"--accounting=false"}
	} else {
		text = strings.NewReplacer(", proxy: kube-proxy", "", ", kubeProxyMode: nftables", "", ", observe: true", "").Replace(text)
	}
	file, err := lab.Load(e2etest.WriteFile(t, "lab.yaml", []byte(text)))
	if err != nil {
		t.Fatal(err)
	}
	c := &converging{Cluster: e2etest.Up(t, file, options), t: t}
	if observed {
		for _, node := range nodes {
			c.Must(c.StartDaemon(t.Context(), node))
			c.Must(c.StartObserver(t.Context(), node))
		}
	}
	c.ServeFlows()
	if c.client, err = remote.NewClient(c.FlowAPI.URL, remote.ClientOptions{}); err != nil {
		t.Fatal(err)
	}
	for i, shell := range []string{"shell-0", "shell-1"} {
		for range 3 { // one may wait for an endpoint that is gone
			c.clients.Go(func() {
				pace := time.NewTicker(20 * time.Millisecond) // there is a record of each
				defer pace.Stop()
				for ; !c.stop.Load(); <-pace.C {
					if conn, err := c.TryDial(shell, "tcp", netip.AddrPort{}, "10.96.0.1:80"); err == nil {
						c.connected[i].Add(1)
						_ = conn.Close()
					}
				}
			})
		}
	}
	t.Cleanup(c.end)
	e2etest.Eventually(t, e2etest.Timeout, "connections on both nodes", func() bool { return c.connected[0].Load() > 50 && c.connected[1].Load() > 50 })
	return c
}

// end ends the clients.
func (c *converging) end() {
	c.stop.Store(true)
	c.clients.Wait()
}

// scale changes the number of replicas, and returns when it did.
func (c *converging) scale(replicas uint16) time.Time {
	c.t.Helper()
	began := time.Now()
	_, err := c.Change(c.t.Context(), lab.Change{Scale: &lab.Scale{Deployment: "web", Replicas: replicas}})
	c.Must(err)
	return began
}

func (c *converging) service() observe.Service {
	c.t.Helper()
	s, err := c.client.Services(c.t.Context(), observe.ServiceQuery{Service: "default/web", Changes: true})
	if err != nil || len(s.Services) != 1 {
		c.t.Fatalf("%+v, %v", s, err)
	}
	return s.Services[0]
}

// followed is what a node knows of the change of an endpoint.
type followed struct {
	observe.EndpointChange
	of observe.Change
}

func (f followed) ends() bool {
	return f.Change == observe.EndpointRemoved || f.Change == observe.EndpointExcluded
}

// find waits until each node has the last change since a time that begins or ends new flows to an endpoint, as complete
// as the text says.
func (c *converging) find(since time.Time, ends bool, complete string, is func(followed) bool) map[string]followed {
	c.t.Helper()
	found := make(map[string]followed)
	var changes []observe.Change
	defer func() {
		if c.t.Failed() {
			c.t.Logf("changes: %+v", changes)
		}
	}()
	e2etest.Eventually(c.t, e2etest.Timeout, fmt.Sprintf("a changed endpoint (ends: %t) with %s on each node", ends, complete), func() bool {
		changes = c.service().Changes
		for _, change := range changes {
			for _, e := range change.Endpoints {
				if f := (followed{e, change}); change.Time.After(since) && f.ends() == ends && is(f) {
					found[change.Node] = f
				}
			}
		}
		return len(found) == len(nodes)
	})
	return found
}

func withRules(f followed) bool { return f.Rules != nil && (f.FirstFlow != nil || f.LastFlow != nil) }

// TestConvergence: beside each mode of kube-proxy, an endpoint is removed and another added while clients connect. Of each
// change it is known when the rules had it, and the last flow to the old or the first one to the new endpoint.
func TestConvergence(t *testing.T) {
	c := startConverging(t, true)
	const complete = "its rules and flow"
	began := c.scale(2)
	c.find(began, true, complete, withRules)
	again := c.scale(3)
	added := c.find(again, false, complete, withRules)
	removed := c.find(began, true, complete, withRules) // with all flows to it
	c.end()

	var records []*flow.Record
	c.Must(c.client.Flows(t.Context(), observe.FlowQuery{Service: "default/web", Limit: "0"}, func(i observe.Item) error {
		if r := i.Record; r != nil && !r.Life.Incomplete { // otherwise it is not known when the flow began
			records = append(records, r)
		}
		return nil
	}))
	// flowOf compares a flow with the first or last of the node's records of flows to the endpoint in a time. Several may have
	// the same time.
	flowOf := func(node string, f *observe.ChangeFlow, endpoint string, from, until time.Time, last bool) {
		t.Helper()
		var is, want *flow.Record
		for _, r := range records {
			if r.Node != node || r.Endpoint != endpoint || !r.Time.After(from) || !r.Time.Before(until) {
				continue
			}
			if r.ID == f.ID {
				is = r
			}
			if want == nil || !r.Time.Equal(*want.Time) && r.Time.After(*want.Time) == last {
				want = r
			}
		}
		if is == nil || !is.Time.Equal(*want.Time) || !f.Time.Equal(*want.Time) || f.Endpoint != endpoint {
			t.Errorf("%s: got %+v, whose record is %+v; want %+v", node, f, is, want)
		}
	}
	for _, node := range nodes {
		r, a := removed[node], added[node]
		if r.Rules.Before(began) || r.Rules.After(again) || r.FirstFlow != nil {
			t.Errorf("%s: removed after %s: %+v", node, began, r)
		}
		flowOf(node, r.LastFlow, r.Endpoint, time.Time{}, time.Now(), true) // the pod that comes again has another address
		if a.Rules.Before(again) || a.LastFlow != nil {
			t.Errorf("%s: added after %s: %+v", node, again, a)
		}
		flowOf(node, a.FirstFlow, a.Endpoint, again, time.Now(), false)
	}
	s := c.service()
	since := make(map[string]time.Time) // tables without the endpoint, by node
	for _, change := range s.Changes {
		for _, e := range change.Endpoints {
			if at := change.Node + " " + e.Endpoint; since[at].IsZero() && (followed{EndpointChange: e}).ends() {
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
	t.Logf("%d and %d connections, %d outdated", c.connected[0].Load(), c.connected[1].Load(), outdated)
	if s.Flows.UnknownEndpoint+s.Flows.NotTranslated != 0 {
		t.Errorf("%+v", s.Flows)
	}
	code, stdout, stderr := e2etest.Run(t, nil, "timeline", "web", "--server", c.FlowAPI.URL)
	if code != 0 || strings.Count(stdout, ": rules +") < 2*len(nodes) {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	t.Log(stdout)
}

// TestConvergenceTimes prints how soon the rules and flows of each proxy follow changes: see docs/explanation/performance.md.
func TestConvergenceTimes(t *testing.T) {
	if *measured == 0 {
		t.Skip("-converge.changes=0")
	}
	for _, observed := range []bool{true, false} {
		c := startConverging(t, observed)
		proxies := map[string]string{"node-0": "nfqproxy", "node-1": "nfqproxy"}
		complete := func(f followed) bool { return f.of.InForce != nil && (f.FirstFlow != nil || f.LastFlow != nil) }
		if observed {
			proxies, complete = map[string]string{"node-0": "kube-proxy iptables", "node-1": "kube-proxy nftables"}, withRules
		}
		times := make(map[string][]int64) // from the table, in microseconds, by proxy and event
		for i := range *measured {
			ends := i%2 == 0
			began := c.scale(3 - uint16((i+1)%2))
			c.find(began, ends, "its rules and flow", complete)
			time.Sleep(3 * time.Second) // kube-proxy waits a second from one synchronisation to the next; and the last flow is to be over
			for node, f := range c.find(began, ends, "its rules and flow", complete) {
				note := func(event string, at time.Time) {
					of := proxies[node] + ": " + event
					times[of] = append(times[of], max(0, at.Sub(f.of.Time).Microseconds()))
				}
				switch {
				case observed:
					note(observe.Rules, *f.Rules)
				default:
					note("in force", *f.of.InForce)
				}
				if ends {
					note(observe.LastFlow, f.LastFlow.Time)
				} else {
					note(observe.FirstFlow, f.FirstFlow.Time)
				}
			}
		}
		c.end()
		for _, of := range slices.Sorted(maps.Keys(times)) {
			list := times[of]
			slices.Sort(list)
			t.Logf("%-36s n %3d, median %6.1f ms, p99 %6.1f ms, largest %6.1f ms", of, len(list),
				float64(stats.Percentile(list, 500))/1000, float64(stats.Percentile(list, 990))/1000, float64(list[len(list)-1])/1000)
		}
	}
}
