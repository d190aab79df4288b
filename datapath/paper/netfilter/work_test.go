package netfilter

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// doubled are chains of which each jumps twice to the next: a packet meets 2^depth rules.
func doubled(depth int, last string) []string {
	lines := []string{"*filter"}
	for i := range depth {
		lines = append(lines, fmt.Sprintf(":c%d - [0:0]", i))
	}
	lines = append(lines, "-A INPUT -j c0")
	for i := range depth - 1 {
		jump := fmt.Sprintf("-A c%d -j c%d", i, i+1)
		lines = append(lines, jump, jump)
	}
	return append(lines, fmt.Sprintf("-A c%d %s", depth-1, last), "COMMIT")
}

func toHost() iptables.Packet {
	return packet(protoTCP, "172.20.0.9:40000", "172.20.0.2:80", "eth0")
}

// TestWorkIsBounded: of a packet that meets 2^40 rules no more is followed than the work given
// allows, and the result reports it.
func TestWorkIsBounded(t *testing.T) {
	m := parse(t, worker(), doubled(40, "-s 9.9.9.9 -j DROP")...)
	for _, given := range []Work{{Visits: 1 << 30, Steps: 1000}, {Visits: 5000, Steps: 1 << 30}} {
		work := given
		ways, rest := m.ExploreFrom(nil, toHost(), nil, 10, &work)
		if len(ways) != 1 || rest != 0 || ways[0].Verdict != Stopped || ways[0].Cut == "" || ways[0].Why != ways[0].Cut {
			t.Fatalf("%+v: %d ways, rest %v, the first %s %q %q", given, len(ways), rest, ways[0].Verdict, ways[0].Why, ways[0].Cut)
		}
		// Steps are noted for rules that matched, and a few for the walk itself.
		if n := len(ways[0].Steps); n > given.Steps+10 || n > given.Visits+10 {
			t.Errorf("%+v: %d steps", given, n)
		}
		if last := ways[0].Steps[len(ways[0].Steps)-1]; !strings.HasPrefix(last.Text, "cut off: the limit of ") || last.Line == 0 {
			t.Errorf("%+v: the last step is %+v", given, last)
		}
	}
}

// TestWorkOfWays: of many ways only those are returned that were followed to their end, and the
// probability of the others is.
func TestWorkOfWays(t *testing.T) {
	m := parse(t, worker(), doubled(12, "-m statistic --mode random --probability 0.50000000000 -j DROP")...)
	work := Work{Visits: 1 << 30, Steps: 20000}
	ways, rest := m.ExploreFrom(nil, toHost(), nil, 1000000, &work)
	sum, steps := 0.0, 0
	for _, w := range ways {
		sum += w.Probability
		steps += len(w.Steps)
		if w.Cut != "" {
			t.Errorf("a way is cut off: %s", w.Cut)
		}
	}
	if len(ways) < 100 || rest <= 0 || sum+rest < 0.999 || sum+rest > 1.001 {
		t.Errorf("%d ways with %v, the rest %v", len(ways), sum, rest)
	}
	if steps > 20000 {
		t.Errorf("%d steps are kept", steps)
	}
}

// TestSourceNATIsBounded: it does not follow 2^40 rules for a packet of the daemon's.
func TestSourceNATIsBounded(t *testing.T) {
	lines := doubled(40, "-s 9.9.9.9 -j RETURN")
	lines[0] = "*nat"
	for i, l := range lines {
		lines[i] = strings.Replace(l, "-A INPUT", "-A POSTROUTING", 1)
	}
	m := parse(t, worker(), lines...)
	var j SourceNAT
	got := j.Evaluate(m, &Translated{Packet: toHost(), Out: "eth0"})
	if !got.Unknown || got.Rule == nil {
		t.Errorf("got %+v, want an unknown source", got)
	}
}

// TestNesting: chains are followed to the bottom, and refused where they are nested deeper
// than the stack takes.
func TestNesting(t *testing.T) {
	nested := func(depth int) *iptables.Dump {
		var b strings.Builder
		b.WriteString("*filter\n")
		for i := range depth {
			fmt.Fprintf(&b, ":c%d - [0:0]\n", i)
		}
		b.WriteString("-A INPUT -j c0\n")
		for i := range depth - 1 {
			fmt.Fprintf(&b, "-A c%d -j c%d\n", i, i+1)
		}
		fmt.Fprintf(&b, "-A c%d -j DROP\nCOMMIT\n", depth-1)
		d, err := iptables.Parse(strings.NewReader(b.String()), iptables.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	const deep = 40_000
	m, err := New([]*iptables.Dump{nested(deep)}, nil, worker(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	work := NewWork()
	visits := work.Visits
	w := m.SendFrom(nil, toHost(), &State{}, nil, work)
	if w.Verdict != Dropped || w.By == nil || visits-work.Visits != deep+1 {
		t.Errorf("%s %q after %d rules, want dropped after %d", w.Verdict, w.Why, visits-work.Visits, deep+1)
	}
	_, err = New([]*iptables.Dump{nested(maxDepth + 2)}, nil, worker(), Options{})
	if err == nil || !strings.Contains(err.Error(), "chains are nested deeper than 50000 jumps") {
		t.Errorf("too deep: %v", err)
	}
	_, _ = GuessHost([]*iptables.Dump{nested(3 * maxDepth)}, &Host{}, nil) // does not need the stack, either
}
