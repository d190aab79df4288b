package algorithms_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/algorithms"
)

// world is a node with one service port, and the endpoints as a test has them.
type world struct {
	t        testing.TB
	balancer *balance.Balancer
	registry *balance.Registry
	rand     *rand.Rand
	now      int64
	table    *decision.Table
	packet   decision.Packet // that is decided; here, so that it costs no memory

	client  int
	reports []algorithms.Report
	posted  []int32
	probes  []probe
	queue   algorithms.IdleQueue
	answers bool // probes are answered at once, and endpoints are idle again at once
}

type probe struct {
	endpoint int
	of       *balance.Endpoint
	to       algorithms.Prober
}

func (w *world) Client() int                                 { return w.client }
func (w *world) Endpoint(set *balance.Set, i int) int        { return int(set.Candidates[i].Position) }
func (w *world) Report(e int) algorithms.Report              { return w.reports[e] }
func (w *world) Posted(time.Duration) []int32                { return w.posted }
func (w *world) Join(_ *balance.Set, q algorithms.IdleQueue) { w.queue = q }
func (w *world) Probe(e int, of *balance.Endpoint, to algorithms.Prober) {
	if w.answers {
		to.Answer(of, algorithms.Report{Open: w.rand.IntN(10), Latency: time.Millisecond}, w.now)
		return
	}
	if w.probes = append(w.probes, probe{e, of, to}); len(w.probes) > 1000 {
		w.probes = w.probes[:0]
	}
}

func addr(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(100 + i/100), byte(100 + i%100)}), 8080) // as text in the order of i
}

func equal(n int) []uint16 { return slices.Repeat([]uint16{1}, n) }

func newWorld(t testing.TB, algorithm string, weights ...uint16) *world {
	t.Helper()
	w := &world{t: t, registry: balance.NewRegistry(), rand: rand.New(rand.NewPCG(1, 2)), table: new(decision.Table)}
	w.reports, w.posted = make([]algorithms.Report, len(weights)), make([]int32, len(weights))
	algorithms.Add(w.registry, w)
	w.balancer = balance.New(w.registry, func() int64 { return w.now })
	all := make(map[int]uint16)
	for i, weight := range weights {
		all[i] = weight
	}
	w.set(algorithm, all)
	return w
}

// set replaces the endpoints.
func (w *world) set(algorithm string, weights map[int]uint16) {
	w.t.Helper()
	canonical, err := w.registry.Canonical(algorithm)
	if err != nil {
		w.t.Fatal(err)
	}
	s := &decision.ServicePort{
		Name: decision.ServicePortName{Namespace: "shop", Name: "web"}, Protocol: decision.TCP, Family: decision.IPv4,
		ClusterIP: netip.MustParseAddr("10.96.0.20"), Port: 80, HasEndpoints: true, Balance: canonical,
	}
	for i := range 2000 {
		if weight, ok := weights[i]; ok {
			s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(len(s.Endpoints)))
			s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: addr(i), Weight: weight, Ready: true, Serving: true})
		}
	}
	w.table = w.table.Next(time.Time{}, decision.Node{}, decision.Change{Service: s.Name.Service(), Ports: []*decision.ServicePort{s}})
	w.balancer.Follow(w.table)
}

var destination = netip.MustParseAddrPort("10.96.0.20:80")

func (w *world) decide(i int) decision.Decision {
	w.packet = decision.Packet{Protocol: decision.TCP, Source: source(i), Destination: destination}
	return decision.Decide(w.table, &w.packet, w.rand, nil, w.balancer)
}

func source(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, byte(16 + i>>16&15), byte(i >> 8), byte(i)}), uint16(1024+i%60000))
}

// to is the endpoint of the i-th flow, which does not stay open.
func (w *world) to(i int) netip.AddrPort {
	d := w.decide(i)
	w.balancer.Undo(&d)
	if w.answers && w.queue != nil {
		w.queue.Idle(d.Endpoint())
	}
	return d.Endpoint()
}

// shares are the flows of each endpoint, which do not stay open, in comparison with the mean; sorted.
func (w *world) shares(flows int) []float64 {
	counts := make(map[netip.AddrPort]int)
	for i := range flows {
		counts[w.to(i)]++
	}
	var all []float64
	endpoints := w.table.Services()[0].Endpoints
	for i := range endpoints {
		all = append(all, float64(counts[endpoints[i].AddrPort])*float64(len(endpoints))/float64(flows))
	}
	slices.Sort(all)
	return all
}

// moved are the shares of flows that move when the endpoints change: of all, and of those whose endpoint is there before and after.
func (w *world) moved(algorithm string, before, after map[int]uint16) (all, needless float64) {
	const flows = 20_000
	w.set(algorithm, before)
	was := make([]netip.AddrPort, flows)
	for i := range was {
		was[i] = w.to(i)
	}
	w.set(algorithm, after)
	kept := make(map[netip.AddrPort]bool)
	endpoints := w.table.Services()[0].Endpoints
	for i := range endpoints {
		kept[endpoints[i].AddrPort] = true
	}
	added := make(map[netip.AddrPort]bool)
	for i := range after {
		if _, ok := before[i]; !ok {
			added[addr(i)] = true
		}
	}
	for i := range was {
		if is := w.to(i); is != was[i] {
			if all++; kept[was[i]] && !added[is] {
				needless++
			}
		}
	}
	return all / flows, needless / flows
}

func within(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance {
		t.Errorf("%s: %.4f, want %.4f ± %.4f", what, got, want, tolerance)
	}
}

// TestMovement: if one of n endpoints comes or goes, 1/n of the flows move, and none needlessly: what Karger et al. call
// monotone, Thaler and Ravishankar minimal disruption, and Lamping and Veach for the last bucket consistent.
func TestMovement(t *testing.T) {
	const n = 50
	fewer, all := make(map[int]uint16), make(map[int]uint16)
	for i := range n {
		all[i] = 1
		if i != n-1 {
			fewer[i] = 1
		}
	}
	middle := make(map[int]uint16)
	for i := range n {
		if i != n/2 {
			middle[i] = 1
		}
	}
	for _, algorithm := range []string{"ring", "ring-table", "ring-table(4096)", "hrw", "jump", "multiprobe"} {
		w := newWorld(t, algorithm, equal(n)...)
		for _, change := range [][2]map[int]uint16{{fewer, all}, {all, fewer}, {all, middle}} {
			moved, needless := w.moved(algorithm, change[0], change[1])
			if algorithm == "jump" && len(change[1]) == n-1 && change[1][n-1] == 1 {
				// Buckets after the one that has gone have other numbers.
				if needless < 0.3 {
					t.Errorf("jump without a bucket in the middle: %.3f of the flows move needlessly, want most of those after it", needless)
				}
				continue
			}
			if needless != 0 {
				t.Errorf("%s, %d to %d endpoints: %.4f of the flows move needlessly", algorithm, len(change[0]), len(change[1]), needless)
			}
			within(t, algorithm+": flows that move", moved, 1.0/n, 0.012)
		}
	}
}

// TestSpread: how even the shares of endpoints are. With r points each, the standard deviation of Karger's ring is about
// 1/√r (Lamping and Veach, table 1: 0.0999 for 100 points, 0.0316 for 1000), that of jump and hrw is the flows' own.
// Appleton and O'Reilly: with 21 probes, the fullest has 1.05 of the mean.
func TestSpread(t *testing.T) {
	const n, flows = 100, 400_000
	own := math.Sqrt(n / float64(flows))
	for algorithm, want := range map[string]float64{"ring(100)": 0.0999, "ring(1000)": 0.0316, "jump": 0, "hrw": 0} {
		deviation := 0.0
		for _, s := range newWorld(t, algorithm, equal(n)...).shares(flows) {
			deviation += (s - 1) * (s - 1) / n
		}
		deviation = math.Sqrt(deviation)
		within(t, algorithm+": standard deviation", deviation, math.Hypot(want, own), 0.2*math.Hypot(want, own))
	}
	shares := newWorld(t, "multiprobe", equal(n)...).shares(flows)
	within(t, "multiprobe: fullest", shares[n-1], 1.05, 3*own)
	if one := newWorld(t, "multiprobe(1)", equal(n)...).shares(flows); one[n-1] < 3 {
		t.Errorf("multiprobe(1): the fullest has %.2f of the mean, want about ln n: one point and one probe", one[n-1])
	}
}

// TestHashWeights: the hashes with weights keep to them.
func TestHashWeights(t *testing.T) {
	for algorithm, tolerance := range map[string]float64{"hrw": 0.1, "ring(1000)": 0.4, "ring-table": 0.4} {
		w := newWorld(t, algorithm, 3, 1, 0)
		counts := make(map[netip.AddrPort]int)
		for i := range 40_000 {
			counts[w.to(i)]++
		}
		within(t, algorithm+" with weights 3 and 1", float64(counts[addr(0)])/float64(counts[addr(1)]), 3, tolerance)
		if counts[addr(2)] != 0 {
			t.Errorf("%s: %d flows to the endpoint of weight 0", algorithm, counts[addr(2)])
		}
	}
}

// TestJump: figure 1 of the paper, for keys and numbers of buckets whose result its authors' code has.
func TestJump(t *testing.T) {
	for _, tt := range []struct {
		key     uint64
		buckets int
		want    int
	}{{1, 1, 0}, {42, 57, 43}, {0xdead10cc, 1, 0}, {0xdead10cc, 666, 361}, {256, 1024, 520}} {
		if got := algorithms.Jump(tt.key, tt.buckets); got != tt.want {
			t.Errorf("key %d, %d buckets: %d, want %d", tt.key, tt.buckets, got, tt.want)
		}
	}
}

// TestBounded: no endpoint has more than (1+ε) times the mean of open connections, rounded up; the theorem of Mirrokni et al.
// With much room it is the ring.
func TestBounded(t *testing.T) {
	for _, percent := range []int{10, 25, 100} {
		const n = 20
		w := newWorld(t, fmt.Sprintf("bounded(%d)", percent), equal(n)...)
		counts := make(map[netip.AddrPort]int)
		full := 0
		for i := range 2000 {
			d := w.decide(i)
			counts[d.Endpoint()]++
			most := int(math.Ceil(float64(i+1) * (1 + float64(percent)/100) / n))
			if got := counts[d.Endpoint()]; got > most {
				t.Fatalf("%d %%: %d of %d connections at one endpoint, want at most %d", percent, got, i+1, most)
			} else if got == most {
				full++
			}
		}
		if percent == 10 && full == 0 {
			t.Error("no endpoint was ever full: the test shows nothing")
		}
	}
	w, ring := newWorld(t, "bounded(1000)", equal(20)...), newWorld(t, "ring", equal(20)...)
	for i := range 1000 {
		if d := w.decide(i + 1000); i > 500 && d.Endpoint() != ring.to(i+1000) {
			t.Fatalf("flow %d: not as ring, and no endpoint is full", i)
		}
	}
}

// TestWeightedChoices: with capacities, two choices keep the load per capacity within ln ln n of the mean (Berenbrink et al.,
// theorem 1), where one choice is further away, and p2c, which draws all alike, gives the small ones too much.
func TestWeightedChoices(t *testing.T) {
	weights := append(equal(500), slices.Repeat([]uint16{8}, 500)...)
	worst := func(algorithm string) float64 {
		w := newWorld(t, algorithm, weights...)
		counts, most := make(map[netip.AddrPort]int), 0.0
		for i := range 4500 { // as many as the capacity
			d := w.decide(i)
			counts[d.Endpoint()]++
		}
		for i, weight := range weights {
			most = max(most, float64(counts[addr(i)])/float64(weight))
		}
		return most
	}
	one, two := worst("wpod(1)"), worst("wpod(2)")
	if limit := 1 + math.Log(math.Log(1000))/math.Ln2; two > limit || one <= two {
		t.Errorf("most per capacity: %.2f with two choices, %.2f with one; want at most %.2f, and more with one", two, one, limit)
	}
}

// TestRandomStart: nodes begin anywhere, and go on in turn, also after a change.
func TestRandomStart(t *testing.T) {
	first := make(map[netip.AddrPort]int)
	for seed := range 300 {
		w := newWorld(t, "rr-random", equal(3)...)
		w.rand = rand.New(rand.NewPCG(uint64(seed), 0))
		at := w.to(0)
		first[at]++
		if again := []netip.AddrPort{w.to(1), w.to(2), w.to(3)}; again[2] != at || again[0] == at || again[1] == at || again[0] == again[1] {
			t.Fatalf("%s, then %s", at, again)
		}
		next := w.to(4)
		w.set("rr-random", map[int]uint16{0: 1, 1: 1, 2: 1, 3: 1})
		if got := w.to(5); got == next || got == at {
			t.Fatalf("%s, %s, and %s after a change", at, next, got)
		}
	}
	for e, n := range first {
		if n < 70 || n > 130 {
			t.Errorf("%d of 300 nodes begin with %s", n, e)
		}
	}
}

// TestSubset: the example of the book, chapter 20: with 12 endpoints and subsets of 3, each of 10 nodes has 3 endpoints, and each
// endpoint 2 or 3 nodes. With 300 of each and subsets of 90, no endpoint has more than 100: rounds leave 30 out.
func TestSubset(t *testing.T) {
	for _, tt := range []struct{ nodes, endpoints, size, least, most int }{{10, 12, 3, 2, 3}, {40, 12, 3, 10, 10}, {300, 300, 30, 30, 30}} {
		nodes := make(map[netip.AddrPort]int)
		for client := range tt.nodes {
			w := newWorld(t, fmt.Sprintf("subset(%d:rr)", tt.size), equal(tt.endpoints)...)
			w.client = client
			own := make(map[netip.AddrPort]bool)
			for i := range 2 * tt.endpoints {
				own[w.to(i)] = true
			}
			if len(own) != tt.size {
				t.Fatalf("node %d uses %d endpoints, want %d", client, len(own), tt.size)
			}
			for e := range own {
				nodes[e]++
			}
		}
		for i := range tt.endpoints {
			if n := nodes[addr(i)]; n < tt.least || n > tt.most {
				t.Errorf("%+v: endpoint %d has %d nodes", tt, i, n)
			}
		}
	}
}

// TestStale: the fewest by the board, not by the own connections; of equals each.
func TestStale(t *testing.T) {
	w := newWorld(t, "stale(1s)", equal(4)...)
	w.posted = []int32{5, 2, 9, 2}
	counts := make(map[netip.AddrPort]int)
	for i := range 1000 {
		d := w.decide(i)
		counts[d.Endpoint()]++
	}
	if a, b := counts[addr(1)], counts[addr(3)]; a+b != 1000 || a < 430 || b < 430 {
		t.Errorf("%v", counts)
	}
	w = newWorld(t, "stale(1s:2)", equal(4)...)
	w.posted = []int32{0, 1, 2, 3}
	for _, share := range w.shares(12_000)[:1] {
		if share != 0 {
			t.Errorf("the fullest has %.3f, and is never the better of two", share)
		}
	}
	within(t, "the emptiest, which is in half of the pairs", w.shares(12_000)[3], 2, 0.1)
}

// TestIdleQueue: first in, first out; at random without idle ones; those that are busy or gone are not in it.
func TestIdleQueue(t *testing.T) {
	w := newWorld(t, "jiq", equal(5)...)
	w.to(0)
	for _, i := range []int{3, 1, 4, 1} {
		w.queue.Idle(addr(i))
	}
	w.set("jiq", map[int]uint16{0: 1, 1: 1, 2: 1, 4: 1})
	w.to(0) // the 1
	w.queue.Idle(addr(2))
	if !w.queue.Busy(addr(4)) || w.queue.Busy(addr(4)) || w.queue.Busy(addr(3)) {
		t.Error("4 was in the queue, 3 is gone")
	}
	if got := w.to(0); got != addr(2) {
		t.Errorf("got %s", got)
	}
	within(t, "at random: the fullest", w.shares(10_000)[3], 1, 0.1)
}

// TestHotCold: the rule of section 4: cold ones by latency, if all are hot by connections.
func TestHotCold(t *testing.T) {
	for _, tt := range []struct {
		name    string
		before  int // answers with one connection before
		open    []int
		latency []time.Duration
		want    int
	}{
		{"the lowest latency of the cold ones", 0, []int{1, 1, 1, 2, 1, 2, 1, 9}, []time.Duration{30, 10, 20, 30, 30, 9, 30, 1}, 5},
		{"equal connections: latency", 0, []int{4, 4, 4, 4}, []time.Duration{30, 20, 10, 40}, 2},
		{"all are hot", 64, []int{6, 5, 4, 7}, []time.Duration{1, 2, 30, 4}, 2},
	} {
		w := newWorld(t, "prequal", equal(len(tt.open))...)
		w.to(0)
		if len(w.probes) != 3 || w.probes[0].endpoint == w.probes[1].endpoint || w.probes[1].endpoint == w.probes[2].endpoint {
			t.Fatalf("%d probes, want 3 of different endpoints", len(w.probes))
		}
		to := w.probes[0].to
		of := make(map[int]*balance.Endpoint)
		for i := 0; len(of) < len(tt.open); i++ {
			w.to(i)
			for _, p := range w.probes {
				of[p.endpoint] = p.of
			}
		}
		for range tt.before {
			to.Answer(of[0], algorithms.Report{Open: 1}, w.now)
		}
		for range max(64-tt.before, len(tt.open)) / len(tt.open) { // so that the quantile is theirs, if there were none before
			for i := range tt.open {
				to.Answer(of[i], algorithms.Report{Open: tt.open[i], Latency: tt.latency[i]}, w.now)
			}
		}
		if got := w.to(0); got != addr(tt.want) {
			t.Errorf("%s: got %s", tt.name, got)
		}
		w.now += int64(2 * time.Second) // the answers are too old
		within(t, tt.name+": at random without answers", w.shares(10_000)[0], 1, 0.1)
	}
}

// TestReported: shares are those of throughput over utilization.
func TestReported(t *testing.T) {
	w := newWorld(t, "wrr-report(1s)", equal(3)...)
	w.to(0)
	w.now += int64(time.Second)
	w.reports = []algorithms.Report{{Done: 100, Worked: time.Second}, {Done: 50, Worked: time.Second}, {Done: 10, Worked: 200 * time.Millisecond}}
	shares := w.shares(4000)
	for i, want := range []float64{0.75, 0.75, 1.5} { // 100 and 50 and 50 flows in a second of work
		within(t, fmt.Sprintf("share %d", i), shares[i], want, 0.01)
	}
}

// TestParameters: names are read as they are spelled; mistakes are named. Without a cluster, algorithms that need one say so.
func TestParameters(t *testing.T) {
	names := algorithms.Names()
	for text, want := range map[string]string{
		"ring": "ring", "ring(40)": "ring(40)", "ring-table(4096)": "ring-table(4096)", "bounded(10)": "bounded(10)", "wpod(3)": "wpod(3)", "stale(100ms)": "stale(100ms)", "stale(1s:2)": "stale(1s:2)",
		"subset(20:lc)": "subset(20:lc)", "subset(20:jsq(3))": "subset(20:jsq(3))", "eject(hrw)": "eject(hrw)", "eject(prequal)": "eject(prequal)", "wrr-report(5s)": "wrr-report(5s)",
	} {
		if got, err := names.Canonical(text); got != want || err != nil {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"ring(0)", "ring(x)", "bounded(0)", "wpod", "wpod(17)", "stale", "stale(2)", "stale(-1s)", "stale(1s:0)", "stale(1s:x)", "subset(20)", "subset(lc)", "subset(0:lc)", "subset(2:best)", "subset(2:subset(1:lc))", "wrr-report(5)", "jiq(2)", "prequal(11)"} {
		if got, err := names.Canonical(text); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
			t.Errorf("%q: %q, %v; want an error", text, got, err)
		}
	}
	withoutCluster := balance.NewRegistry()
	algorithms.Add(withoutCluster, nil)
	for _, e := range withoutCluster.Entries() {
		if !e.Simulated {
			continue
		}
		if _, err := e.Make("1s"); err == nil || !strings.Contains(err.Error(), "only simulated experiments") {
			t.Errorf("%s without a cluster: %v", e.Name, err)
		}
	}
}

var every = []string{"ring", "ring-table", "hrw", "jump", "multiprobe", "bounded", "wpod(2)", "rr-random", "subset(20:random)", "stale(1s:2)", "stale(1s)", "jiq", "prequal", "wrr-report"}

// TestEvery: each algorithm is in the tests of the cost.
func TestEvery(t *testing.T) {
	own := make(map[string]bool)
	for _, text := range every {
		name, _, _ := strings.Cut(text, "(")
		own[name] = true
	}
	for _, e := range balance.NewRegistry().Entries() {
		own[e.Name] = true
	}
	for _, e := range algorithms.Names().Entries() {
		if !own[e.Name] {
			t.Errorf("%s is not measured", e.Name)
		}
	}
}

// BenchmarkDecide measures a whole decision with each algorithm, as that of package balance.
func BenchmarkDecide(b *testing.B) {
	for _, algorithm := range every {
		for _, n := range []int{2, 10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/endpoints=%d", algorithm, n), func(b *testing.B) {
				w := newWorld(b, algorithm, equal(n)...)
				w.answers = true
				w.to(0)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					w.to(i)
				}
			})
		}
	}
}

// TestNoAllocations: no decision costs memory.
func TestNoAllocations(t *testing.T) {
	for _, algorithm := range every {
		w := newWorld(t, algorithm, equal(40)...)
		w.answers = true
		for i := range 2000 {
			w.to(i)
		}
		if n := testing.AllocsPerRun(500, func() { w.to(1) }); n != 0 {
			t.Errorf("%s: %v allocations for each flow", algorithm, n)
		}
	}
}
