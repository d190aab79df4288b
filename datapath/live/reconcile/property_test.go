package reconcile

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/conntrack/conntracktest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// kernel is a connection table, faked or real.
type kernel interface {
	Connections
	Establish([]conntrack.Entry, []conntrack.Result)
}

type noSets struct{}

func (noSets) Forget([]conntrack.Tuple) error { return nil }

// pick takes one of several.
func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// addr is the i-th address of a network, in either family.
func addr(six bool, network string, i int) string {
	if six {
		return fmt.Sprintf("fd%s::%d", network, i)
	}
	return fmt.Sprintf("10.%s.0.%d", network, i)
}

func at(a string, port int) string {
	return netip.AddrPortFrom(netip.MustParseAddr(a), uint16(port)).String()
}

// randomTable makes up to four services with up to four endpoints each.
func randomTable(r *rand.Rand) *decision.Table {
	var services []string
	for i := range 4 {
		if r.IntN(4) == 0 {
			continue // gone
		}
		six := i%2 == 1
		text := fmt.Sprintf("%s %s nodeport=%d", pick(r, "udp", "udp", "sctp", "tcp"), at(addr(six, "96", i/2+1), 53), 30053+r.IntN(3))
		if r.IntN(3) == 0 {
			text += " external=" + addr(six, "98", r.IntN(2)+1)
		}
		for e := range 4 {
			if r.IntN(2) == 0 {
				text += " " + at(addr(six, "44", e+1), 5300+r.IntN(2)) + pick(r, "", "", "/terminating", "/not-serving", "/not-ready")
			}
		}
		services = append(services, text)
	}
	return table(services...)
}

// randomFlows makes flows to addresses that services may have, on their way to what
// may be their endpoints.
func randomFlows(r *rand.Rand, n int) []conntrack.State {
	var flows []conntrack.State
	for i := range n {
		six := r.IntN(2) == 0
		host := "172.20.0.2"
		if six {
			host = "fd20::2"
		}
		dst := pick(r, at(addr(six, "96", r.IntN(2)+1), 53), at(addr(six, "98", r.IntN(2)+1), 53), at(host, 30053+r.IntN(3)), at(addr(six, "99", 1), 30053))
		text := fmt.Sprintf("%s %s %s", pick(r, "udp", "udp", "udp", "sctp", "tcp"), at(addr(six, "45", 9), 1000+i), dst)
		if r.IntN(4) > 0 {
			text += " > " + at(addr(six, "44", r.IntN(5)+1), 5300+r.IntN(2))
			text += pick(r, "", " ours", " ours", " ours masq="+host, " ours masq="+addr(six, "66", 6))
		}
		flows = append(flows, flow(text))
	}
	return flows
}

// checkPass checks with the decision itself whether a pass was right about a flow.
func checkPass(t *testing.T, before, now *decision.Table, s *conntrack.State, removed bool) {
	t.Helper()
	p := decision.Packet{Protocol: decision.Protocol(s.Original.Protocol), Source: s.Original.Source, Destination: s.Original.Destination}
	fail := func(why string) {
		t.Helper()
		t.Errorf("%v > %v, mark %#x, status %#x, removed %v: %s", s.Original, s.Endpoint(), s.Mark, s.Status, removed, why)
	}
	if p.Protocol != decision.UDP {
		if removed {
			fail("it is not UDP")
		}
		return
	}
	translated, ours := s.Status&conntrack.StatusDestinationNAT != 0, s.Mark&conntrack.DefaultMark != 0
	strayed := ours && s.Masqueraded() && !now.IsLocal(s.Reply.Destination.Addr())
	known := func(table *decision.Table, only ...decision.Exclusion) bool {
		for _, sp := range table.Candidates(&p) {
			for _, e := range sp.Endpoints {
				if e.AddrPort == s.Endpoint() && (len(only) == 0 || slices.Contains(only, e.Exclusions[decision.Cluster])) {
					return true
				}
			}
		}
		return false
	}
	d := decision.Decide(now, &p, rand.New(rand.NewPCG(1, 1)), nil, nil)
	switch served := len(now.Candidates(&p)) > 0; {
	case removed && strayed:
	case !served && removed != (translated && (ours || known(before))):
		fail("no service has the address")
	case !served:
	case removed && known(now, 0, decision.Terminating):
		fail("it may stay with its endpoint")
	case removed:
	case strayed:
		fail("its masquerade address is not the node's")
	case d.Verdict == decision.DNAT && !known(now, 0, decision.Terminating):
		fail("new flows go to " + d.Endpoint().String())
	case translated && !known(now):
		fail("it goes to no endpoint")
	case !translated && d.Verdict == decision.Reject:
		fail("its datagrams are to be refused")
	}
}

// runProperty makes a pass by one table after another, and checks the last.
func runProperty(t *testing.T, k kernel, seed uint64, n int) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 2))
	rec := New(Config{Connections: k, Seen: noSets{}})
	before, now := randomTable(r), randomTable(r)
	if _, err := rec.Run(before); err != nil {
		t.Fatal(err)
	}
	for _, s := range randomFlows(r, n) {
		e := conntrack.Entry{Tuple: s.Original, Mark: s.Mark}
		if s.Status&conntrack.StatusDestinationNAT != 0 {
			e.Destination = s.Reply.Source
		}
		if s.Masqueraded() {
			e.SourceAddr = s.Reply.Destination.Addr()
		}
		var result [1]conntrack.Result
		if k.Establish([]conntrack.Entry{e}, result[:]); result[0].Outcome != conntrack.Created {
			t.Fatal(result[0])
		}
	}
	dump := func() map[conntrack.Tuple]conntrack.State {
		found := make(map[conntrack.Tuple]conntrack.State)
		if err := k.Dump(conntrack.Filter{}, func(s *conntrack.State) { found[s.Original] = *s }); err != nil {
			t.Fatal(err)
		}
		return found
	}
	all := dump()
	result, err := rec.Run(now)
	if err != nil || result.Failed > 0 {
		t.Fatal(result, err)
	}
	left := dump()
	if result.Total() != len(all)-len(left) || len(all) != n {
		t.Errorf("seed %d: %d of %d flows are left, the result has %+v", seed, len(left), len(all), result)
	}
	for tuple, s := range all {
		_, kept := left[tuple]
		checkPass(t, before, now, &s, !kept)
	}
	if t.Failed() {
		for _, table := range []*decision.Table{before, now} {
			var lines []string
			for _, s := range table.Services() {
				lines = append(lines, fmt.Sprintf("%s %v:%d node port %d %v %v", s.Protocol, s.ClusterIP, s.Port, s.NodePort, s.ExternalIPs, s.Endpoints))
			}
			t.Logf("seed %d\n%s", seed, strings.Join(lines, "\n"))
		}
		t.FailNow()
	}
	if again, err := rec.Run(now); err != nil || again.Total() != 0 {
		t.Fatalf("seed %d: another pass by the same table: %+v, error %v", seed, again, err)
	}
}

// TestNoFlowContradictsTheTable after a pass, and none is removed that does not.
func TestNoFlowContradictsTheTable(t *testing.T) {
	for seed := range uint64(2000) {
		runProperty(t, conntracktest.NewFake().Table(), seed, 30)
	}
}
