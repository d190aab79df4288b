package daemon

import (
	"bufio"
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

var soakTime = flag.Duration("soak", 0, "how long TestSoak lasts; by default some seconds, after which resident memory says nothing")

// What a daemon may use more at the end of a soak than after a third of it. A hundred
// bytes kept for each flow are more than either after five minutes.
const (
	maxHeapGrowth     = 4 << 20  // bytes in use after a garbage collection
	maxResidentGrowth = 16 << 20 // bytes, which the kernel and Go's allocator lag behind with
	maxMoreGoroutines = 5        // one that serves a request, for example
)

// TestSoak has clients connect all the time, from everywhere, while endpoints and services
// come and go several times a second. No connection fails, nothing is lost, and the
// daemons do not grow. With the race detector it is there to find races in them. It is not parallel to
// other tests: it uses the whole machine.
func TestSoak(t *testing.T) {
	c := newSoakCluster(t)
	duration := cmp.Or(*soakTime, 4*time.Second)
	l := c.newSoakLoad()
	churn := c.startChurn()
	l.goOn(duration / 3)
	warm := c.usage()
	l.goOn(duration - duration/3)
	end := c.usage()
	churn.stop()
	l.stop()
	for i, now := range end {
		before := warm[i]
		flows := now.flows() - before.flows()
		t.Logf("%s: %.0f flows; after a third and at the end: resident %.1f and %.1f MiB, heap in use %.2f and %.2f MiB (%+.1f bytes for each flow between), goroutines %.0f and %.0f, tables %.0f and %.0f",
			now.node, now.flows(), mebi(before.resident()), mebi(now.resident()), mebi(before.heap()), mebi(now.heap()), (now.heap()-before.heap())/max(flows, 1),
			before.goroutines(), now.goroutines(), before.tables(), now.tables())
		if flows <= 0 || now.tables() <= before.tables() {
			t.Errorf("%s: %.0f flows and %.0f tables in two thirds of the time", now.node, flows, now.tables()-before.tables())
		}
		if g := now.heap() - before.heap(); g > maxHeapGrowth {
			t.Errorf("%s: the heap in use has grown by %.0f bytes", now.node, g)
		}
		if g := now.resident() - before.resident(); g > maxResidentGrowth && *soakTime > 0 {
			t.Errorf("%s: the resident memory has grown by %.0f bytes", now.node, g)
		}
		if g := now.goroutines() - before.goroutines(); g > maxMoreGoroutines {
			t.Errorf("%s: %.0f more goroutines", now.node, g)
		}
		for _, name := range soakLosses {
			if v := now.sum(name); v != 0 {
				t.Errorf("%s: %s is %g, want 0", now.node, name, v)
			}
		}
	}
	for _, line := range c.Logs() {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			t.Errorf("logged: %s", line)
		}
	}
}

// soakLosses are metrics that stay 0 where there is nothing to complain about.
var soakLosses = []string{
	`nfqproxy_conntrack_entries_total{outcome="failed"}`, "nfqproxy_conntrack_failures_total",
	"nfqproxy_queue_overrun_packets_total", "nfqproxy_queue_refused_verdicts_total",
	"nfqproxy_undecided_packets_total", "nfqproxy_undecodable_packets_total",
	"nfqproxy_rules_reinstalled_total", "nfqproxy_rules_repaired_total", "nfqproxy_host_filter_repaired_total", "nfqproxy_flow_records_lost_total",
}

// soakCluster is the lab of the end-to-end tests with services of its own.
type soakCluster struct {
	*e2etest.Cluster
	objects string // directory with one file for each service
	// steady never changes; the changing ones have an endpoint at any time; flapping is
	// not always there.
	steady   *soakService
	changing []*soakService
	flapping *soakService
}

func newSoakCluster(t *testing.T) *soakCluster {
	c := &soakCluster{objects: t.TempDir()}
	hosts, _, _ := bytes.Cut(e2etest.Lab, []byte("\n---\n"))
	file, err := lab.Load(e2etest.WriteFile(t, "lab.yaml", fmt.Appendf(nil, "%s\nobjects: [%s]\n", hosts, c.objects)))
	if err != nil {
		t.Fatal(err)
	}
	spec := file.Spec
	spec.Proxy.Seed = nil
	var all []*soakService
	for i := range 6 {
		all = append(all, newSoakService(i+1, spec))
	}
	c.steady, c.changing, c.flapping = all[0], all[1:5], all[5]
	for _, s := range all {
		if err := s.write(c.objects, s.allReady()); err != nil {
			t.Fatal(err)
		}
	}
	// Without flow records, as in production. What is remembered of flows is full before the
	// first look at memory, so that growth after it is not that.
	c.Cluster = e2etest.Up(t, file, lab.Options{Arguments: []string{"-v", "--flow-log=", "--flow-log-steps=false", "--profiling", "--flow-buffer=1024"}})
	return c
}

// soakUsage is what a daemon says of itself.
type soakUsage struct {
	node    string
	metrics map[string]float64
}

func (u *soakUsage) flows() float64      { return u.sum("nfqproxy_flows_total") }
func (u *soakUsage) tables() float64     { return u.sum("nfqproxy_table_generation") }
func (u *soakUsage) goroutines() float64 { return u.sum("go_goroutines") }
func (u *soakUsage) heap() float64       { return u.sum("go_memstats_heap_alloc_bytes") }
func (u *soakUsage) resident() float64   { return u.sum("process_resident_memory_bytes") }

// sum adds up the samples of a metric.
func (u *soakUsage) sum(name string) (v float64) {
	for sample, value := range u.metrics {
		if sample == name || strings.HasPrefix(sample, name+"{") {
			v += value
		}
	}
	return v
}

func mebi(bytes float64) float64 { return bytes / (1 << 20) }

// readings of a daemon's memory: what it allocates between the garbage collection and the answer
// counts as in use, which is megabytes where it has just read a new table. The smallest reading counts.
const readings = 5

// usage reads the daemons' metrics.
func (c *soakCluster) usage() (list []soakUsage) {
	c.T.Helper()
	for _, node := range []string{"node-a", "node-b"} {
		smallest := c.reading(node)
		for range readings - 1 {
			if u := c.reading(node); u.heap() < smallest.heap() {
				smallest = u
			}
		}
		list = append(list, smallest)
	}
	return list
}

// reading reads a daemon's metrics after a garbage collection.
func (c *soakCluster) reading(node string) soakUsage {
	c.T.Helper()
	if code, body := c.Get(node, e2etest.MetricsPort, "/debug/pprof/heap?gc=1"); code != http.StatusOK {
		c.T.Fatalf("%s: garbage collection: %d %s", node, code, body)
	}
	u := soakUsage{node, make(map[string]float64)}
	_, body := c.Get(node, e2etest.MetricsPort, "/metrics")
	for s := bufio.NewScanner(strings.NewReader(body)); s.Scan(); {
		i := strings.LastIndexByte(s.Text(), ' ')
		if i < 0 || strings.HasPrefix(s.Text(), "#") {
			continue
		}
		v, err := strconv.ParseFloat(s.Text()[i+1:], 64)
		if err != nil {
			c.T.Fatal(fmt.Errorf("%s: metric %q: %w", node, s.Text(), err))
		}
		u.metrics[s.Text()[:i]] = v
	}
	return u
}
