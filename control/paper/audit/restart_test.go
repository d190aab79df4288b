package audit_test

import (
	"cmp"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
)

const counted = "-m nfacct --nfacct-name  localhost_nps_accepted_pkts "

var commented = regexp.MustCompile(`--comment "([^ "]+)`)

// restarted gives the rules as another kube-proxy may have written them: it ranges over a map
// of service ports, and writes all rules of one together.
func restarted(r *rand.Rand, text string) string {
	lines := slices.Collect(strings.Lines(text))
	turn := make(map[string]int)
	key := func(line string) int {
		name := commented.FindStringSubmatch(line)
		if name == nil || strings.Contains(line, "must be the last rule") {
			return math.MaxInt
		}
		if _, ok := turn[name[1]]; !ok {
			turn[name[1]] = r.IntN(1000)
		}
		return turn[name[1]]
	}
	for _, chain := range []string{"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL"} {
		in := func(line string) bool { return strings.HasPrefix(line, "-A "+chain+" ") }
		for first := 0; first < len(lines); first++ {
			last := first
			for last < len(lines) && in(lines[last]) {
				last++
			}
			slices.SortStableFunc(lines[first:last], func(a, b string) int { return cmp.Compare(key(a), key(b)) })
			first = last
		}
	}
	return strings.Join(lines, "")
}

// TestRestartIsNoDifference: the order of services is up to chance, that of the rules which count
// in nfacct included. Which of several services gets what they claim is a difference.
func TestRestartIsNoDifference(t *testing.T) {
	seen := make(map[string]int)
	for seed := range uint64(300) {
		c := newCluster(seed)
		c.kernel.NFAcct = true
		table, _ := servicetable.Table(c.objects, c.config)
		for _, f := range families {
			before := renderFor(t, table, f, c.kernel)
			after := restarted(c.Rand, before)
			was, is := parse(t, before, f), parse(t, after, f)
			contested := len(audit.Read(was).Contested) > 0
			comparison := audit.Compare(was, is, false)
			switch {
			case !contested && !comparison.Same():
				t.Fatalf("seed %d, %s: %+v", seed, f, comparison)
			case contested && !comparison.Same():
				seen["contested, another winner"]++
			case contested:
				seen["contested, the same winner"]++
			case comparison.Reordered > 0 && strings.Contains(before, counted):
				seen["counting rules in another order"]++
			}
			if problems := audit.Read(is).Problems; len(problems) > 0 {
				t.Fatalf("seed %d, %s: %q", seed, f, problems)
			}
		}
	}
	for _, what := range []string{"contested, another winner", "contested, the same winner", "counting rules in another order"} {
		if seen[what] < 5 {
			t.Errorf("%s: %d times", what, seen[what])
		}
	}
}

// TestCompareKernels: one line reports that rules count in nfacct, and not each of them.
func TestCompareKernels(t *testing.T) {
	var c *cluster
	var plain, counting string
	for seed := uint64(0); !strings.Contains(counting, counted); seed++ {
		c = newCluster(seed)
		c.config = servicetable.NodeConfig{Name: "node-1", LocalhostNodePorts: true}
		table, _ := servicetable.Table(c.objects, c.config)
		plain = renderFor(t, table, decision.IPv4, kubechains.Kernel{})
		counting = renderFor(t, table, decision.IPv4, kubechains.Kernel{NFAcct: true})
	}
	table, _ := servicetable.Table(c.objects, c.config)
	_, have := compared(t, plain, counting, false)
	if diff := gocmp.Diff("Configuration of the proxy\n  ~ nfacct counters: false -> true\n", have); diff != "" {
		t.Errorf("(-want +have)\n%s", diff)
	}
	_, have = compared(t, counting, renderFor(t, table, decision.IPv4, kubechains.Kernel{NFAcct: true, TCPLiberal: true}), false)
	if diff := gocmp.Diff("Configuration of the proxy\n  ~ INVALID packets pass: false -> true\n", have); diff != "" {
		t.Errorf("(-want +have)\n%s", diff)
	}
	// The rules of a service that goes away go with it.
	for len(c.objects.Services) > 0 {
		c.objects.Services = c.objects.Services[1:]
		fewer, _ := servicetable.Table(c.objects, c.config)
		if comparison, have := compared(t, counting, renderFor(t, fewer, decision.IPv4, kubechains.Kernel{NFAcct: true}), false); len(comparison.Services) == 0 || len(comparison.Tables) > 0 || len(comparison.Proxy) > 0 {
			t.Errorf("got:\n%s", have)
		}
	}
}
