package script

import (
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// hostile are bodies of pick that would take all memory or all time, and their errors.
var hostile = map[string]string{
	"repeat":       `x = "x" * 1000000000`,
	"repeat list":  `x = 1000000000 * [1]`,
	"huge list":    `x = list(range(1000000000))`,
	"huge range":   `x = all(range(1, 1 << 60))`,
	"double":       "x = 'x'\n    for i in range(60): x = x + x",
	"double list":  "x = [1]\n    for i in range(60): x = x + x",
	"extend":       "x = [1]\n    for i in range(60): x.extend(x)",
	"extend range": "x = []\n    for i in range(10000): x.extend(range(16000))",
	"slices":       "x, y = list(range(16000)), []\n    for i in range(10000): y.append(x[:])",
	"items":        "x, y = {i: i for i in range(5000)}, []\n    for i in range(10000): y.append(x.items())",
	"power":        "x = 1 << 200\n    for i in range(60): x = x * x",
	"shifts":       "x = 1\n    for i in range(10000): x = x << 500",
	"grow":         "x = 'x' * 4000\n    for i in range(10000): x += x",
	"grow list":    "x = [1]\n    for i in range(60): x += x",
	"shared":       "x = [1]\n    for i in range(60): x = [x, x]\n    y = str(x)",
	"equal":        "x, y = [1], [1]\n    for i in range(8): x, y = [x] * 200, [y] * 200\n    z = x == y",
	"hash":         "x = (1,)\n    for i in range(60): x = (x, x)\n    y = {x: 1}",
	"key":          "x = (1,)\n    for i in range(60): x = (x, x)\n    y = state.get(x)",
	"zip":          "x = [1]\n    for i in range(60): x = list(zip(x, x))\n    y = str(x)",
	"index":        "x = (1,)\n    for i in range(60): x = (x, x)\n    state[x] = 1",
	"within":       "x, y = [1], [1]\n    for i in range(8): x, y = [x] * 200, [y] * 200\n    z = x in [y]",
	"key function": "def f(c):\n        x = (1,)\n        for i in range(60): x = (x, x)\n        return x\n    y = max(candidates, key=f)",
	"format":       "x = '%(a)s' * 800 % {'a': 'x' * 4000}",
	"split":        "x = 'x,' * 2000\n    for i in range(10000): y = x.split(',')",
	"itself":       "x = []\n    x.append(x)\n    y = str(x)",
	"loops":        "for i in range(1 << 60):\n        for j in range(1 << 60): pass",
	"error":        "fail('x' * 4000, 'x' * 4000)",
	"state":        "state['x'] = list(range(12000))",
	"state bytes":  "for i in range(300): state[i] = 'x' * 4000",
	"state type":   "state['f'] = flow.random",
	"state itself": "state['s'] = state",
}

// bounded has a policy pick some times, and checks its bounds.
func bounded(t *testing.T, text string) (last string) {
	t.Helper()
	p, err := compile("my.star", []byte(text))
	if err != nil {
		return err.Error()
	}
	s := &Script{name: "my.star"}
	s.program.Store(p)
	set := &balance.Set{}
	for i := range 3 {
		e := &balance.Endpoint{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}), 80)}
		set.Candidates = append(set.Candidates, balance.Candidate{Endpoint: e, Weight: 1, Position: uint32(i)})
	}
	picker := s.newPicker(set, nil).(*picker)
	r := rand.New(rand.NewPCG(1, 2))
	packet := &decision.Packet{Protocol: decision.TCP, Source: netip.MustParseAddrPort("192.0.2.1:1000"), Destination: netip.MustParseAddrPort("10.96.0.1:80")}
	for range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		pick := picker.Pick(balance.Flow{Packet: packet, Rand: r, Now: func() int64 { return 1 }})
		picker.Observe(balance.Event{Kind: balance.Refused, Endpoint: set.Candidates[0].Endpoint})
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 256<<20 {
			t.Errorf("two calls took %d MiB of memory", n>>20)
		}
		if int(pick.Position) >= len(set.Candidates) || pick.Evidence.Kind != decision.Noted || len(pick.Evidence.Note) > maxText+40 {
			t.Errorf("pick %+v", pick)
		}
		// A step may be about one more value of the largest size.
		if n := picker.thread; n != nil && n.Steps > maxSteps+10*maxValues {
			t.Errorf("%d steps", n.Steps)
		}
	}
	picker.State()
	if s := (size{maxValues: maxStateValues, maxBytes: maxStateBytes, stored: true}); s.add(picker.state) != nil && picker.off == nil {
		t.Error("the state is too large, and the policy goes on")
	}
	return picker.last
}

// TestBounds: what would take all memory or all time is an error.
func TestBounds(t *testing.T) {
	for name, body := range hostile {
		last := bounded(t, "def pick(candidates, flow, state):\n    "+body+"\n    return 0\n")
		if last == "" {
			t.Errorf("%s: no error", name)
		}
		t.Logf("%s: %s", name, last)
	}
}

// TestOff: a policy whose state is too large is called no more until there is a new version; a large
// one is none of a small policy's concern.
func TestOff(t *testing.T) {
	text := "def pick(candidates, flow, state):\n    state[flow.now] = list(range(12000))\n    return 0\n"
	if last := bounded(t, text); !strings.Contains(last, "off until it is saved anew") {
		t.Errorf("error %q", last)
	}
	fit := "def pick(candidates, flow, state):\n    state['x'] = list(range(9000))\n    return 0\n"
	if last := bounded(t, fit); last != "" {
		t.Errorf("9000 values: %s", last)
	}
}

// FuzzScript: no text panics, hangs, or takes more than the bounds.
func FuzzScript(f *testing.F) {
	for _, body := range hostile {
		f.Add("def pick(candidates, flow, state):\n    " + body + "\n    return 0\n")
	}
	for _, text := range []string{
		"def load(c):\n    return c.open * 256 + c.inactive\n\ndef pick(candidates, flow, state):\n    return min(candidates, key=load), '%d' % flow.source_port\n",
		"def pick(candidates, flow, state):\n    return int(flow.random() * len(candidates))\n\ndef observe(event, state):\n    state[event.endpoint] = event.after\n",
		"x = {a: [b for b in range(a) if not b in (1, 2)] for a in range(9)}\nf = lambda a, b=1: a[1:-1] if a and b else -a\n",
		strings.Repeat("(", 1000), strings.Repeat("-", 1000) + "1", strings.Repeat("1+", 1000) + "1", "x = " + strings.Repeat("[", 1000),
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) { bounded(t, text) })
}
