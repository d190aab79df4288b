package script_test

import (
	"embed"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/balance/script"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

//go:embed examples/*.star
var examples embed.FS

func example(t testing.TB, name string) string {
	t.Helper()
	text, err := examples.ReadFile("examples/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// cluster is a Balancer with one service port, in simulated time.
type cluster struct {
	*balance.Balancer
	t        testing.TB
	path     string
	script   *script.Script
	registry *balance.Registry
	now      int64
	rand     *rand.Rand
	table    *decision.Table
	next     int
}

// load writes a policy to a file and loads it.
func load(t testing.TB, text string) (*script.Script, string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "my.star")
	write(t, path, text)
	s, err := script.Load(path)
	return s, path, err
}

func write(t testing.TB, path, text string) {
	t.Helper()
	// as editors do, so that no half of a text is read
	if err := os.WriteFile(path+"~", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+"~", path); err != nil {
		t.Fatal(err)
	}
}

func newCluster(t testing.TB, text string, endpoints int) *cluster {
	t.Helper()
	s, path, err := load(t, text)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, script: s, path: path, registry: balance.NewRegistry(), rand: rand.New(rand.NewPCG(1, 2))}
	if err := script.Register(c.registry, s); err != nil {
		t.Fatal(err)
	}
	c.Balancer = balance.New(c.registry, func() int64 { return c.now })
	var positions []int
	for i := range endpoints {
		positions = append(positions, i)
	}
	c.set("script:my.star", positions...)
	return c
}

func name(i int) string { return fmt.Sprintf("10.244.%d.%d:8080", 10+i/100, 100+i%100) }

// set replaces the service port: it has the endpoints of these numbers.
func (c *cluster) set(algorithm string, endpoints ...int) {
	c.t.Helper()
	canonical, err := c.registry.Canonical(algorithm)
	if err != nil {
		c.t.Fatal(err)
	}
	s := &decision.ServicePort{
		Name: decision.ServicePortName{Namespace: "shop", Name: "web"}, Protocol: decision.TCP, Family: decision.IPv4,
		ClusterIP: netip.MustParseAddr("10.96.0.20"), Port: 80, HasEndpoints: true, Balance: canonical,
	}
	for i, e := range endpoints {
		s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: netip.MustParseAddrPort(name(e)), Weight: uint16(e + 1), Ready: true, Serving: true})
		s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(i))
	}
	change := decision.Change{Service: s.Name.Service(), Ports: []*decision.ServicePort{s}}
	if c.table == nil {
		c.table = new(decision.Table)
	}
	c.table = c.table.Next(time.Time{}, decision.Node{}, change)
	c.Follow(c.table)
}

// flow decides one flow.
func (c *cluster) flow() decision.Decision {
	c.t.Helper()
	c.next++
	p := &decision.Packet{Protocol: decision.TCP, Source: netip.MustParseAddrPort(fmt.Sprintf("172.16.3.9:%d", 1000+c.next%60000)), Destination: netip.MustParseAddrPort("10.96.0.20:80")}
	d := decision.Decide(c.table, p, c.rand, nil, c)
	if d.Verdict != decision.DNAT {
		c.t.Fatalf("verdict %v", d.Verdict)
	}
	return d
}

// note is the evidence of one flow.
func (c *cluster) note() string {
	c.t.Helper()
	d := c.flow()
	return balance.Text(&d)
}

// sequence is the endpoints of flows, as letters.
func (c *cluster) sequence(n int) string {
	c.t.Helper()
	var s strings.Builder
	for range n {
		d := c.flow()
		s.WriteByte('a' + d.Endpoint().Addr().As4()[3] - 100)
	}
	return s.String()
}

func (c *cluster) observe(d decision.Decision, e ...balance.Event) {
	c.t.Helper()
	conn, ok := c.Connection(&d)
	if !ok {
		c.t.Fatal("no connection")
	}
	for _, e := range e {
		e.At = c.now
		conn.Observe(e)
	}
}

// state is the state of the picker as JSON.
func (c *cluster) state() string {
	c.t.Helper()
	text, err := json.Marshal(c.States()[0].Pickers["Cluster"])
	if err != nil {
		c.t.Fatal(err)
	}
	return string(text)
}

const policy = "def pick(candidates, flow, state):\n"

// TestReturns: what a policy can return, and what is a failure.
func TestReturns(t *testing.T) {
	for body, want := range map[string]string{
		"    return 1":                    "selected by my.star",
		"    return 1, 'the second'":      "the second",
		"    return (1, 'a\\nb\\x1b[1m')": "a b [1m",
		"    return candidates[1], 'so'":  "so",
		"    return max(candidates, key=lambda c: c.weight if c.weight < 3 else 0), 'x'": "x",
		"    return 3":             "script failed: pick returned index 3 of 3 candidates: drawn among 3",
		"    return -1":            "script failed: pick returned index -1 of 3 candidates: drawn among 3",
		"    return 1 << 80":       "script failed: pick returned index 1208925819614629174706176 of 3 candidates: drawn among 3",
		"    return None":          "script failed: pick returned NoneType; want the index of a candidate, or (index, string): drawn among 3",
		"    return 1.0":           "script failed: pick returned float; want the index of a candidate, or (index, string): drawn among 3",
		"    return 1, 2":          "script failed: pick returned (int, int); want (index, string): drawn among 3",
		"    return candidates[7]": "script failed: my.star:2:22: list index 7 out of range [-3:2]: drawn among 3",
		"    return 1 // (candidates[0].open - candidates[0].open)": "script failed: my.star:2:14: floored division by zero: drawn among 3",
		"    candidates.append(1)":                                  "script failed: my.star:2:22: append: cannot append to frozen list: drawn among 3",
		"    candidates[0].open = 1":                                "script failed: my.star:2:18: can't assign to .open field of candidate: drawn among 3",
		"    fail('no', 'way')":                                     "script failed: my.star:2:9: fail: no way: drawn among 3",
		"    for i in range(1000000000): pass":                      "script failed: my.star:2:5: more than 50000 steps: drawn among 3",
		"    return pick(candidates, flow, state)":                  "script failed: my.star:2:12: function pick called recursively: drawn among 3",
		"    return 1, 'x' * 300":                                   strings.Repeat("x", 197) + "...",
	} {
		c := newCluster(t, policy+body+"\n", 3)
		d := c.flow()
		if got := balance.Text(&d); got != want {
			t.Errorf("%s\n got %s\nwant %s", body, got, want)
		}
		if failed := strings.HasPrefix(want, "script failed"); !failed && d.Endpoint().String() != name(1) {
			t.Errorf("%s: %s, want %s", body, d.Endpoint(), name(1))
		} else if d.Pick.Drawn != failed {
			t.Errorf("%s: drawn %v", body, d.Pick.Drawn)
		}
	}
}

// TestFailureDraws: a policy that fails draws as kube-proxy does, and counts.
func TestFailureDraws(t *testing.T) {
	c := newCluster(t, policy+"    return 5\n", 3)
	got := c.sequence(300)
	for _, e := range []string{"a", "b", "c"} {
		if n := strings.Count(got, e); n < 60 || n > 140 {
			t.Errorf("%s has %d of 300 flows", e, n)
		}
	}
	if got, want := c.state(), `{"script":"my.star","errors":300,"lastError":"pick returned index 5 of 3 candidates"}`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// TestInputs: what a policy sees.
func TestInputs(t *testing.T) {
	c := newCluster(t, policy+`    c = candidates[1]
    return 1, "%s %d open %d inactive %d latency %f flows %d" % (c.endpoint, c.weight, c.open, c.inactive, c.latency, c.flows)
`, 3)
	d := c.flow()
	c.flow()
	c.observe(d, balance.Event{Kind: balance.Answered, After: 1500 * time.Millisecond}, balance.Event{Kind: balance.Inactive})
	if got, want := c.note(), "10.244.10.101:8080 2 open 1 inactive 1 latency 1.5"; !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "flows 2") {
		t.Errorf("got %s, want %s", got, want)
	}
	c = newCluster(t, policy+`    return 1, "%s %d %s %d %s %f" % (flow.source, flow.source_port, flow.destination, flow.destination_port, flow.protocol, flow.now)
`, 3)
	c.now = 2500000000
	if got, want := c.note(), "172.16.3.9 1001 10.96.0.20 80 TCP 2.5"; !strings.HasPrefix(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
	c = newCluster(t, policy+"    return int(flow.random() * len(candidates))\n", 3)
	if got := c.sequence(30); !strings.Contains(got, "a") || !strings.Contains(got, "b") || !strings.Contains(got, "c") {
		t.Errorf("random: %s", got)
	}
	if d := c.flow(); d.Pick.Probability != 0 {
		t.Errorf("probability %v of a pick with a random number, want unknown", d.Pick.Probability)
	}
	c = newCluster(t, policy+"    return 0\n", 3)
	if d := c.flow(); d.Pick.Probability != 1 {
		t.Errorf("probability %v of a pick without a random number", d.Pick.Probability)
	}
}

// TestState: it survives flows, changes of the endpoints, new versions, and observe shares it.
func TestState(t *testing.T) {
	counting := policy + `    state["n"] = state.get("n", 0) + 1
    e = state.setdefault(candidates[0].endpoint, [])
    e.append(state["n"])
    return 0

def observe(event, state):
    state[event.kind] = [event.endpoint, event.after, event.bytes]
`
	c := newCluster(t, counting, 2)
	d := c.flow()
	c.flow()
	c.set("script:my.star", 1, 2)
	c.flow()
	c.observe(d, balance.Event{Kind: balance.Answered, After: time.Millisecond}, balance.Event{Kind: balance.Inactive},
		balance.Event{Kind: balance.Ended, Bytes: 1 << 63}, balance.Event{Kind: balance.Refused}, balance.Event{Kind: balance.Unanswered})
	want := `{"script":"my.star","errors":0,"state":{"10.244.10.100:8080":[1,2],"10.244.10.101:8080":[3],` +
		`"answered":["10.244.10.100:8080",0.001,0],"ended":["10.244.10.100:8080",0,"9223372036854775808"],"inactive":["10.244.10.100:8080",0,0],"n":3,` +
		`"refused":["10.244.10.100:8080",0,0],"unanswered":["10.244.10.100:8080",0,0]}}`
	if got := c.state(); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// TestEject: a script inside eject keeps its state, too.
func TestEject(t *testing.T) {
	c := newCluster(t, policy+"    state['n'] = state.get('n', 0) + 1\n    return 0, str(state['n'])\n", 2)
	c.set("eject(script:my.star)", 0, 1)
	for range 3 {
		d := c.flow()
		c.observe(d, balance.Event{Kind: balance.Refused})
	}
	d := c.flow()
	if got := balance.Text(&d); d.Endpoint().String() != name(1) || !strings.HasPrefix(got, "4; ") {
		t.Errorf("%s: %s", d.Endpoint(), got)
	}
}

// TestPrint: the newest lines stay.
func TestPrint(t *testing.T) {
	c := newCluster(t, policy+"    state['n'] = state.get('n', 0) + 1\n    print('flow', state['n'])\n    return 0\n", 2)
	for range 20 {
		c.flow()
	}
	if got := c.state(); !strings.Contains(got, `"printed":["flow 5","flow 6",`) || !strings.Contains(got, `"flow 20"]`) {
		t.Errorf("got %s", got)
	}
}

// TestMistakes: a text that cannot be used is refused at its place.
func TestMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"def pick(candidates, flow, state)\n    return 0\n": ":2:1: got newline, want ':'",
		policy + "    return best\n":                        ":2:12: undefined: best",
		"def pick(candidates, flow):\n    return 0\n":       ": want a function pick(candidates, flow, state)",
		"pick = 3\n": ": want a function pick(candidates, flow, state)",
		"":           ": want a function pick(candidates, flow, state)",
		policy + "    return 0\ndef observe(e): pass\n":              ": want a function observe(event, state)",
		"load('x.star', 'y')\n":                                      ":1:1: a policy is one file: it has no load",
		policy + "    while True:\n        pass\n":                   ":2:5: a policy has no while loops: use for",
		policy + "    return candidates[0].opn\n":                    ":2:26: a policy has no values with .opn",
		policy + "    return 'a'.replace('a', 'b')\n":                ":2:16: a policy has no values with .replace",
		policy + "    return getattr(flow, 'now')\n":                 ":2:12: a policy does not have getattr",
		policy + "    x = 2\n    x *= x\n    return x\n":             ":3:5: of the assignments with an operator a policy has += and -= only",
		policy + "    return min(*candidates)\n":                     ":2:16: functions of a policy have no * and ** arguments",
		"def f(*x): pass\n" + policy + "    return 0\n":              ":1:7: functions of a policy have no * and ** parameters",
		policy + "    return b'x'\n":                                 ":2:12: a policy does not have bytes",
		"x = 1 // 0\n" + policy + "    return 0\n":                   ":1:7: floored division by zero",
		"x = [i for i in range(100000)]\n" + policy + "    return 0": ":1:6: more than 50000 steps",
		"for x in [1]: pass\n":                                       ":1:1: for loop not within a function",
		strings.Repeat("#", 33<<10):                                  ": want a file of at most 32768 bytes",
	} {
		_, path, err := load(t, text)
		if err == nil || err.Error() != "balancing script "+path+want {
			t.Errorf("%.60q: got %v\nwant %s", text, err, want)
		}
	}
	if _, err := script.Load(filepath.Join(t.TempDir(), "none.star")); err == nil || !strings.Contains(err.Error(), "none.star: no such file") {
		t.Errorf("no file: %v", err)
	}
	if _, err := script.Load(t.TempDir()); err == nil || !strings.Contains(err.Error(), "want a file") {
		t.Errorf("a folder: %v", err)
	}
	if _, err := script.Load("/etc/my (2).star"); err == nil || !strings.Contains(err.Error(), "want a file name") {
		t.Errorf("a bad name: %v", err)
	}
}

// TestNames: names stand for loaded scripts only.
func TestNames(t *testing.T) {
	c := newCluster(t, policy+"    return 0\n", 2)
	for text, want := range map[string]string{
		"script:my.star": "", "eject(script:my.star)": "",
		"script:other.star":        `balancing algorithm "script:other.star": no such script was loaded at the start; want one of script:my.star`,
		"eject(script:other.star)": "want one of script:my.star",
		"script":                   "want script:FILE", "script:": "want script:FILE", "script(my.star)": "want script:FILE",
		"script:" + c.path: "no such script", "lc:2": "lc has no parameter", "jsq:3": "want jsq(N)", "other:x": "script:FILE",
	} {
		got, err := c.registry.Canonical(text)
		if want == "" && (err != nil || got != text) {
			t.Errorf("%s: %s, %v", text, got, err)
		} else if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: error %v, want %s", text, err, want)
		}
	}
	if err := script.Register(c.registry, c.script, c.script); err == nil {
		t.Error("two scripts of one name were registered")
	}
	for text, want := range map[string][2]string{
		"script:/etc/nfqproxy/my.star": {"script:my.star", "/etc/nfqproxy/my.star"}, "script:my.star": {"script:my.star", "my.star"},
		"eject(script:./a/my.star)": {"eject(script:my.star)", "./a/my.star"}, "lc": {"lc", ""}, "eject(lc)": {"eject(lc)", ""}, "noscript:x": {"noscript:x", ""}, "script:": {"script:", ""},
	} {
		if name, path := script.Path(text); name != want[0] || path != want[1] {
			t.Errorf("%s: %s, %s", text, name, path)
		}
	}
}

// TestWorkers: workers, observers, changes of the endpoints and of the text at the same time.
func TestWorkers(t *testing.T) {
	c := newCluster(t, example(t, "cautious.star"), 4)
	c.flow()
	var mu sync.RWMutex
	table := c.table
	var workers sync.WaitGroup
	for w := range 3 {
		workers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			for i := range 300 {
				p := &decision.Packet{Protocol: decision.TCP, Source: netip.AddrPortFrom(netip.MustParseAddr("172.16.3.9"), uint16(i+1)), Destination: netip.MustParseAddrPort("10.96.0.20:80")}
				mu.RLock()
				d := decision.Decide(table, p, r, nil, c)
				conn, ok := c.Connection(&d)
				mu.RUnlock()
				if text := balance.Text(&d); !ok || strings.Contains(text, "failed") {
					t.Errorf("connection %v, %s", ok, text)
					return
				}
				for _, k := range []balance.EventKind{balance.Answered + balance.EventKind(i%3), balance.Inactive, balance.Ended} {
					conn.Observe(balance.Event{Kind: k, At: int64(i)})
				}
			}
		})
	}
	for i := range 20 {
		c.set("script:my.star", i%3, 3, 4+i%2)
		_ = c.state()
		mu.Lock()
		table = c.table
		mu.Unlock()
	}
	workers.Wait()
}

// TestLeast: the example selects what lc selects.
func TestLeast(t *testing.T) {
	c, lc := newCluster(t, example(t, "least.star"), 3), newCluster(t, example(t, "least.star"), 3)
	lc.set("lc", 0, 1, 2)
	var closed [2]decision.Decision
	for i := range 60 {
		d, want := c.flow(), lc.flow()
		if d.Endpoint() != want.Endpoint() {
			t.Fatalf("flow %d: %s (%s), want %s", i, d.Endpoint(), balance.Text(&d), want.Endpoint())
		}
		if i%3 == 0 {
			closed = [2]decision.Decision{d, want}
		} else if i%5 == 0 {
			c.observe(closed[0], balance.Event{Kind: balance.Answered}, balance.Event{Kind: balance.Inactive})
			lc.observe(closed[1], balance.Event{Kind: balance.Answered}, balance.Event{Kind: balance.Inactive})
		}
	}
}

// TestCautious: the example gives a new endpoint one flow until it answers, and one that fails a rest.
func TestCautious(t *testing.T) {
	c := newCluster(t, example(t, "cautious.star"), 2)
	first, second := c.flow(), c.flow()
	if first.Endpoint() == second.Endpoint() {
		t.Errorf("two trials of %s", first.Endpoint())
	}
	if got := c.note(); got != "no candidate is proven: any" {
		t.Errorf("the third flow: %s", got)
	}
	c.observe(first, balance.Event{Kind: balance.Answered})
	c.observe(second, balance.Event{Kind: balance.Refused})
	letter := string('a' + rune(first.Endpoint().Addr().As4()[3]-100))
	if got := c.sequence(20); got != strings.Repeat(letter, 20) {
		t.Errorf("flows to %s, want all to %s", got, letter)
	}
	c.now += 11e9
	if got := c.sequence(40); strings.Count(got, letter) == 40 {
		t.Errorf("after its rest %s", got)
	}
}
