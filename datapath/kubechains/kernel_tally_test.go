//go:build linux

package kubechains

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// tally counts what came up.
type tally map[string]int

func (y tally) add(w *world, p *decision.Packet, d *decision.Decision, position int) {
	y["packets"]++
	y[fmt.Sprintf("%s %s/%s", w.family, d.Verdict, d.Reason)]++
	y["from the node: "+fmt.Sprint(p.Local)+" "+d.Verdict.String()]++
	if d.Verdict != decision.Accept {
		y[d.Verdict.String()+" entry "+d.Entry.String()]++
	}
	if d.Reason == decision.NotFiltered {
		y[fmt.Sprintf("not filtered, internal %v", d.Entry == decision.EntryClusterIP)]++
	}
	if d.Verdict != decision.DNAT {
		return
	}
	y["dnat branch "+d.Branch.String()]++
	y["dnat "+p.Protocol.String()]++
	if d.Masquerade {
		y["masqueraded mark "+d.Mark.String()]++
	} else {
		y["not masqueraded mark "+d.Mark.String()]++
	}
	if d.Mark == decision.NotMarked && d.Endpoint().Addr() == p.Source.Addr() {
		y["hairpin left as it is"]++
	}
	if w.table.IsLocal(d.Endpoint().Addr()) {
		y["dnat to the node itself"]++
	}
	y[fmt.Sprintf("dnat detector %s masqueraded %v", detector(w), d.Masquerade)]++
	restricted := len(w.table.Node().NodePortAddresses) > 0
	if p.Destination.Addr().IsLoopback() {
		y[fmt.Sprintf("dnat of a loopback address, restricted %v", restricted)]++
	}
	s, src := d.ServicePort, p.Source.Addr()
	if d.Entry == decision.EntryLoadBalancer && s.Restricted() && !slices.ContainsFunc(s.SourceRanges, func(r netip.Prefix) bool { return r.Contains(src) }) {
		y["let through as the load balancer IP itself"]++
	}
	if d.Entry == decision.EntryNodePort {
		y[fmt.Sprintf("dnat node port restricted %v", restricted)]++
	}
	if d.Drawn {
		y[fmt.Sprintf("endpoint %d of %d", position+1, len(d.ServicePort.Usable[d.Policy]))]++
	}
	if d.Reason == decision.Bound && len(d.ServicePort.Usable[d.Policy]) > 1 {
		y["bound to one of several, entry "+d.Entry.String()]++
	}
}

// detector is the kind of the node's local detector.
func detector(w *world) string {
	switch d := &w.table.Node().Detector; {
	case d.Bridge != "":
		return "bridge"
	case d.InterfacePrefix != "":
		return "interface prefix"
	case len(d.CIDRs) > 0:
		return "CIDR"
	}
	return "none"
}

// atLeast is that it came up that often.
func (y tally) atLeast(t *testing.T, n int, what string) {
	t.Helper()
	if y[what] < n {
		t.Errorf("%q came up %d times, want at least %d", what, y[what], n)
	}
}

// least is how often something has to come up, in percent of the number of worlds.
var least = []struct {
	percent int
	whats   []string
}{
	{100, []string{
		"packets", "dnat TCP", "dnat UDP", "dnat SCTP", "dnat entry cluster-ip", "dnat entry external-ip", "dnat entry load-balancer-ip", "dnat entry node-port",
		"dnat branch internal-policy", "dnat branch external-policy", "dnat to the node itself", "reject entry cluster-ip",
		"masqueraded mark source-outside-cluster", "masqueraded mark external", "not masqueraded mark ",
		"from the node: true accept", "from the node: true dnat",
		"dnat detector none masqueraded false", "dnat detector none masqueraded true", "dnat detector CIDR masqueraded false", "dnat detector CIDR masqueraded true",
	}},
	{30, []string{
		"dnat branch pod-short-circuit", "dnat branch node-short-circuit", "dnat node port restricted false",
		"reject entry external-ip", "reject entry load-balancer-ip", "reject entry node-port", "drop entry load-balancer-ip",
		"masqueraded mark hairpin", "masqueraded mark local-source", "masqueraded mark masquerade-all", "not masqueraded mark external",
		"from the node: true drop", "from the node: true reject",
		"dnat detector bridge masqueraded false", "dnat detector bridge masqueraded true", "dnat detector interface prefix masqueraded false", "dnat detector interface prefix masqueraded true",
		"endpoint 1 of 2", "endpoint 2 of 2", "endpoint 1 of 3", "endpoint 2 of 3", "endpoint 3 of 3",
	}},
	{10, []string{"endpoint 1 of 4", "endpoint 2 of 4", "endpoint 3 of 4", "endpoint 4 of 4"}},
	{5, []string{
		"hairpin left as it is",
		"IPv4 drop/foreign-localnet", "dnat node port restricted true", "drop entry cluster-ip", "drop entry external-ip", "drop entry node-port",
		"bound to one of several, entry cluster-ip", "bound to one of several, entry external-ip", "bound to one of several, entry load-balancer-ip", "bound to one of several, entry node-port",
		"not masqueraded mark source-outside-cluster", "not masqueraded mark masquerade-all",
	}},
	{2, []string{
		"IPv4 accept/not-filtered", "IPv6 accept/not-filtered", "not filtered, internal true", "not filtered, internal false",
		"dnat of a loopback address, restricted false", "dnat of a loopback address, restricted true", "let through as the load balancer IP itself",
	}},
}

// require is that the packets brought everything up, or agreeing means little.
func (y tally) require(t *testing.T, worlds int) {
	t.Helper()
	for _, what := range slices.Sorted(maps.Keys(y)) {
		t.Logf("%6d %s", y[what], what)
	}
	for _, l := range least {
		for _, what := range l.whats {
			y.atLeast(t, max(1, worlds*l.percent/100), what)
		}
	}
	for _, f := range families {
		for _, what := range []string{"accept/not-a-service", "dnat/balanced", "reject/no-endpoints"} {
			y.atLeast(t, worlds, fmt.Sprintf("%s %s", f, what))
		}
		for _, what := range []string{"dnat/affinity", "drop/no-local-endpoints", "drop/source-not-allowed"} {
			y.atLeast(t, worlds/5, fmt.Sprintf("%s %s", f, what))
		}
	}
}
