package balance_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// cluster is a Balancer with one service port, in simulated time.
type cluster struct {
	*balance.Balancer
	t     testing.TB
	now   int64
	rand  *rand.Rand
	table *decision.Table
	// flows that were picked, by endpoint
	flows map[string][]decision.Decision
	next  int
}

// newCluster makes a cluster whose service port has endpoints with the weights.
func newCluster(t testing.TB, algorithm string, weights ...uint16) *cluster {
	c := &cluster{t: t, rand: rand.New(rand.NewPCG(1, 2)), flows: make(map[string][]decision.Decision)}
	c.Balancer = balance.New(balance.NewRegistry(), func() int64 { return c.now })
	named := make(map[string]uint16)
	for i, w := range weights {
		named[name(i)] = w
	}
	c.set(algorithm, named)
	return c
}

func name(i int) string { return fmt.Sprintf("10.244.%d.%d:8080", i/200+1, i%200+1) }

// set replaces the service port.
func (c *cluster) set(algorithm string, weights map[string]uint16) {
	c.t.Helper()
	canonical, err := balance.NewRegistry().Canonical(algorithm)
	if err != nil {
		c.t.Fatal(err)
	}
	s := &decision.ServicePort{
		Name: decision.ServicePortName{Namespace: "shop", Name: "web"}, Protocol: decision.TCP, Family: decision.IPv4,
		ClusterIP: netip.MustParseAddr("10.96.0.20"), Port: 80, HasEndpoints: true, Balance: canonical,
	}
	for a, w := range weights {
		s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: netip.MustParseAddrPort(a), Weight: w, Ready: true, Serving: true})
	}
	slices.SortFunc(s.Endpoints, func(a, b decision.Endpoint) int { return strings.Compare(a.AddrPort.String(), b.AddrPort.String()) })
	for i := range s.Endpoints {
		s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(i))
	}
	change := decision.Change{Service: s.Name.Service(), Ports: []*decision.ServicePort{s}}
	if c.table == nil {
		c.table = new(decision.Table)
	}
	c.table = c.table.Next(time.Time{}, decision.Node{}, change)
	c.Follow(c.table)
}

// flow decides one flow from a client's port, and returns its endpoint.
func (c *cluster) flow(source string) decision.Decision {
	c.t.Helper()
	p := &decision.Packet{Protocol: decision.TCP, Source: netip.MustParseAddrPort(source), Destination: netip.MustParseAddrPort("10.96.0.20:80")}
	d := decision.Decide(c.table, p, c.rand, nil, c)
	if d.Verdict != decision.DNAT {
		c.t.Fatalf("verdict %v", d.Verdict)
	}
	e := d.Endpoint().String()
	c.flows[e] = append(c.flows[e], d)
	return d
}

// to is the endpoint of one flow.
func (c *cluster) to(source string) string {
	c.t.Helper()
	d := c.flow(source)
	return d.Endpoint().String()
}

// many decides n flows of different clients, and counts them by endpoint.
func (c *cluster) many(n int) map[string]int {
	c.t.Helper()
	got := make(map[string]int)
	for range n {
		got[c.to(fmt.Sprintf("172.16.%d.%d:%d", c.next>>16&255, c.next>>8&255, 1024+c.next))]++
		c.next++
	}
	return got
}

// observe reports events of the flows of an endpoint: of the last n.
func (c *cluster) observe(endpoint string, n int, kinds ...balance.EventKind) {
	c.t.Helper()
	flows := c.flows[endpoint]
	for i := len(flows) - n; i < len(flows); i++ {
		conn, ok := c.Connection(&flows[i])
		if !ok {
			c.t.Fatalf("no connection of %+v", flows[i].Pick)
		}
		for _, k := range kinds {
			conn.Observe(balance.Event{Kind: k, At: c.now, After: time.Millisecond, Bytes: 1000})
		}
	}
	c.flows[endpoint] = flows[:len(flows)-n]
}

func (c *cluster) sequence(n int) string {
	var s []string
	for range n {
		d := c.flow(fmt.Sprintf("172.17.0.1:%d", 1024+c.next))
		s = append(s, string(rune('a'+d.Endpoint().Addr().As4()[3]-1)))
		c.next++
	}
	return strings.Join(s, "")
}

// TestTurns: rr and wrr give each endpoint its turn; after a change the next one that is left goes on.
func TestTurns(t *testing.T) {
	c := newCluster(t, "rr", 1, 1, 1)
	if got := c.sequence(7); got != "abcabca" {
		t.Errorf("rr: %s", got)
	}
	c.set("rr", map[string]uint16{name(0): 1, name(2): 1, name(3): 1}) // b, whose turn it is, is gone
	if got := c.sequence(4); got != "cdac" {
		t.Errorf("rr after a change: %s", got)
	}
	c = newCluster(t, "wrr", 5, 1, 1)
	if got := c.sequence(14); strings.Count(got, "a") != 10 || strings.Count(got, "b") != 2 || strings.Contains(got, "bb") || got[:7] != got[7:] {
		t.Errorf("wrr: %s", got)
	}
	if got := newCluster(t, "wrr", 10, 20).sequence(6); strings.Count(got, "b") != 4 {
		t.Errorf("wrr 1:2: %s", got)
	}
	if got := newCluster(t, "wrr", 0, 1, 1).sequence(4); got != "bcbc" {
		t.Errorf("wrr with weight 0: %s", got)
	}
	if got := newCluster(t, "wrr", 65535, 65534).sequence(1); got == "" {
		t.Error("wrr with large weights")
	}
}

// TestLeast: the definitions of IPVS's schedulers, in the words of its documentation.
func TestLeast(t *testing.T) {
	for _, tt := range []struct {
		algorithm string
		weights   []uint16
		want      string // of flows that stay open
	}{
		{"lc", []uint16{1, 1, 1}, "abcabc"},
		{"lc", []uint16{9, 1, 1}, "abcabc"},
		{"wlc", []uint16{2, 1}, "abaaba"},
		{"sed", []uint16{2, 1}, "aabaab"},
		{"nq", []uint16{2, 1}, "abaaab"},
		{"nq", []uint16{1, 1, 1}, "abcabc"},
		{"lc", []uint16{0, 1, 1}, "bcbc"},
		{"sed", []uint16{0, 0}, ""},
	} {
		c := newCluster(t, tt.algorithm, tt.weights...)
		if tt.want == "" {
			if got := c.many(100); len(got) != 2 {
				t.Errorf("%s with weights 0: %v, want both", tt.algorithm, got)
			}
			continue
		}
		if got := c.sequence(len(tt.want)); got != tt.want {
			t.Errorf("%s %v: %s, want %s", tt.algorithm, tt.weights, got, tt.want)
		}
	}
	// An inactive connection counts 1/256 of an open one.
	c := newCluster(t, "lc", 1, 1)
	c.sequence(2)
	c.observe(name(0), 1, balance.Answered, balance.Inactive)
	if got := c.sequence(1); got != "a" {
		t.Errorf("lc, one inactive against one open: %s", got)
	}
	c = newCluster(t, "lc", 1, 1)
	c.sequence(2)
	c.observe(name(0), 1, balance.Inactive, balance.Ended)
	c.observe(name(1), 1, balance.Inactive)
	if got := c.sequence(1); got != "a" {
		t.Errorf("lc, none against one inactive: %s", got)
	}
}

// TestStateSurvives: connections count with their endpoint, whatever its position in the set.
func TestStateSurvives(t *testing.T) {
	c := newCluster(t, "lc", 1, 1)
	c.sequence(5) // a has 3, b 2
	c.set("lc", map[string]uint16{name(1): 1, name(4): 1})
	if got := c.sequence(3); got != "eeb" {
		t.Errorf("got %s: b keeps 2 connections, e has none", got)
	}
	c.set("lc", map[string]uint16{name(0): 1, name(1): 1})
	if got := c.sequence(1); got != "a" && got != "b" {
		t.Errorf("got %s", got)
	}
	states := c.States()
	if len(states) != 1 || len(states[0].Endpoints) != 3 || states[0].Endpoints[2].Current || states[0].Endpoints[2].Open() != 2 {
		t.Errorf("states: %+v; want e with its 2 connections besides", states)
	}
}

// TestUndo: a flow without a connection does not count.
func TestUndo(t *testing.T) {
	c := newCluster(t, "lc", 1, 1)
	for range 5 {
		d := c.flow("172.16.0.1:1024")
		if got := d.Endpoint().String(); got != name(0) {
			t.Fatalf("got %s", got)
		}
		c.Undo(&d)
	}
}

// TestHashes: sh by source, in proportion to the weights; dh by destination.
func TestHashes(t *testing.T) {
	c := newCluster(t, "sh", 3, 1, 0)
	by := make(map[string]string)
	counts := make(map[string]int)
	for i := range 4096 {
		client := fmt.Sprintf("10.%d.%d.7", i>>8, i&255)
		e := c.to(client + ":1000")
		if again := c.to(client + ":2000"); again != e {
			t.Fatalf("sh: %s goes to %s and %s", client, e, again)
		}
		by[client] = e
		counts[e]++
	}
	if a, b := counts[name(0)], counts[name(1)]; counts[name(2)] != 0 || a < 5*b/2 || a > 7*b/2 {
		t.Errorf("sh with weights 3, 1, 0: %v", counts)
	}
	if got := newCluster(t, "dh", 1, 1, 1).many(100); len(got) != 1 {
		t.Errorf("dh: %v, want one endpoint for one destination", got)
	}
}

// TestSamples: p2c and jsq prefer endpoints with fewer open connections.
func TestSamples(t *testing.T) {
	c := newCluster(t, "p2c", slices.Repeat([]uint16{1}, 50)...)
	for e, n := range c.many(5000) {
		if n < 94 || n > 106 {
			t.Errorf("p2c: %s has %d of 5000 connections, want about 100", e, n)
		}
	}
	c = newCluster(t, "jsq(16)", 1, 1, 1)
	if got := c.many(30); got[name(0)] != 10 || got[name(1)] != 10 {
		t.Errorf("jsq of all: %v", got)
	}
	c = newCluster(t, "p2c", 0, 1, 1)
	if got := c.many(100); got[name(0)] != 0 {
		t.Errorf("p2c with weight 0: %v", got)
	}
}

// TestLatency: ewma avoids a slow endpoint, and returns when it is fast again.
func TestLatency(t *testing.T) {
	c := newCluster(t, "ewma", 1, 1, 1)
	latency := map[string]time.Duration{name(0): 50 * time.Millisecond, name(1): time.Millisecond, name(2): time.Millisecond}
	round := func(n int) map[string]int {
		got := make(map[string]int)
		for range n {
			d := c.flow(fmt.Sprintf("172.16.0.1:%d", 1024+c.next%60000))
			c.next++
			c.now += int64(10 * time.Millisecond)
			e := d.Endpoint().String()
			got[e]++
			conn, _ := c.Connection(&d)
			conn.Observe(balance.Event{Kind: balance.Answered, At: c.now, After: latency[e]})
			conn.Observe(balance.Event{Kind: balance.Inactive, At: c.now})
			conn.Observe(balance.Event{Kind: balance.Ended, At: c.now})
		}
		return got
	}
	if got := round(1000); got[name(0)] > 30 {
		t.Errorf("the slow endpoint got %v", got)
	}
	latency[name(1)], latency[name(2)] = time.Second, time.Second
	if got := round(1000); got[name(0)] < 600 { // two of three pairs have it
		t.Errorf("the others became slower: %v", got)
	}
}

// TestEject: an endpoint that refuses sits out with growing time, and half of them at most.
func TestEject(t *testing.T) {
	c := newCluster(t, "eject(rr)", 1, 1, 1, 1)
	fail := func(e string, n int) { c.t.Helper(); c.observe(e, n, balance.Refused, balance.Inactive, balance.Ended) }
	c.many(12)
	fail(name(1), 3)
	got := c.flow("172.16.0.1:9")
	if text := balance.Text(&got); !strings.Contains(text, "10.244.1.2:8080 ejected for 10 s: 3 failures") {
		t.Errorf("evidence %q", text)
	}
	if got := c.many(30); got[name(1)] != 0 || len(got) != 3 {
		t.Errorf("while it sits out: %v", got)
	}
	c.now += int64(10 * time.Second)
	if got := c.many(4); got[name(1)] != 1 {
		t.Errorf("when it is back: %v", got)
	}
	fail(name(1), 1) // on trial, the first failure counts
	c.now += int64(19 * time.Second)
	if got := c.many(30); got[name(1)] != 0 {
		t.Errorf("the second time, after 19 s: %v", got)
	}
	c.now += int64(time.Second)
	if got := c.many(40); got[name(1)] != 10 {
		t.Errorf("the second time, after 20 s: %v", got)
	}
	c.observe(name(1), 1, balance.Answered)
	for _, e := range []string{name(0), name(1), name(2), name(3)} {
		fail(e, 3)
	}
	if got := c.many(40); len(got) != 2 {
		t.Errorf("all fail: %v, want half of them", got)
	}
}

// TestParse: names are read as they are spelled; mistakes are named.
func TestParse(t *testing.T) {
	r := balance.NewRegistry()
	for text, want := range map[string]string{
		"": "", "random": "", "lc": "lc", "maglev": "maglev", "maglev(65537)": "maglev", "maglev(251)": "maglev(251)",
		"jsq(3)": "jsq(3)", "eject(p2c)": "eject(p2c)", "eject(maglev(251))": "eject(maglev(251))", "eject(random)": "eject(random)",
	} {
		if got, err := r.Canonical(text); got != want || err != nil {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"best", "jsq", "jsq()", "jsq(0)", "jsq(17)", "jsq(x)", "jsq(3", "lc(2)", "lc()", "maglev(250)", "maglev(655379)", "eject", "eject()", "eject(eject(lc))", "eject(best)", " lc", "LC", ")", "("} {
		if got, err := r.Canonical(text); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
			t.Errorf("%q: %q, %v; want an error", text, got, err)
		}
	}
}

// TestMistake: an algorithm that picks no endpoint of the set is no outage.
func TestMistake(t *testing.T) {
	r := balance.NewRegistry()
	r.Add(balance.Entry{Name: "wrong", Make: func(string) (balance.Algorithm, error) {
		return balance.Algorithm{Name: "wrong", New: func(*balance.Set, balance.Picker) balance.Picker { return wrong{} }}, nil
	}})
	c := newCluster(t, "random", 1, 1)
	c.Balancer = balance.New(r, func() int64 { return 0 })
	c.table.Services()[0].Balance = "wrong"
	if got := c.many(100); len(got) != 2 {
		t.Errorf("got %v", got)
	}
}

type wrong struct{}

func (wrong) Pick(balance.Flow) decision.Pick { return decision.Pick{Position: 1 << 31} }

// TestConcurrent: picks, events and changes at once, for the race detector; in the end no connection
// is left.
func TestConcurrent(t *testing.T) {
	for _, e := range balance.NewRegistry().Entries() {
		algorithm := e.Name
		switch e.Parameter {
		case "N":
			algorithm += "(3)"
		case "ALGORITHM":
			algorithm += "(rr)"
		}
		c := newCluster(t, algorithm, 1, 2, 3)
		if algorithm == "random" {
			continue // decided without a Balancer
		}
		var apply sync.RWMutex // a new table waits for the batches of the one before, as the engine's
		table := c.table
		var workers sync.WaitGroup
		for w := range 4 {
			workers.Go(func() {
				r := rand.New(rand.NewPCG(uint64(w), 0))
				for i := range 2000 {
					apply.RLock()
					p := &decision.Packet{Protocol: decision.TCP, Source: netip.AddrPortFrom(netip.MustParseAddr("172.16.0.1"), uint16(i)), Destination: netip.MustParseAddrPort("10.96.0.20:80")}
					d := decision.Decide(table, p, r, nil, c)
					conn, ok := c.Connection(&d)
					apply.RUnlock()
					if !ok {
						t.Errorf("%s: no connection of %+v", algorithm, d)
						return
					}
					kind := balance.Answered
					if i%3 == 0 {
						kind = balance.Refused
					}
					for _, k := range []balance.EventKind{kind, balance.Inactive, balance.Ended} {
						conn.Observe(balance.Event{Kind: k, At: int64(i), After: time.Millisecond})
					}
				}
			})
		}
		for i := range 20 {
			c.set(algorithm, map[string]uint16{name(0): 1, name(i % 3): 2, name(3 + i%2): 1})
			apply.Lock()
			table = c.table
			apply.Unlock()
		}
		workers.Wait()
		for _, e := range c.States()[0].Endpoints {
			if e.Open() != 0 || e.Inactive() != 0 {
				t.Errorf("%s: %s has %d open and %d inactive connections left", algorithm, e.AddrPort, e.Open(), e.Inactive())
			}
		}
	}
}
