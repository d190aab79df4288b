package journal

import (
	"net/netip"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// TestEndpointTally: what is counted of an endpoint is what can be read, the rare counts too.
func TestEndpointTally(t *testing.T) {
	var e endpointTally
	want := observe.Flows{Total: 9, Drawn: 8, Affinity: 1, Failed: 2, Unanswered: 3, Refused: 4, Reset: 5, Open: 6, BytesSent: 7, BytesReceived: 10}
	e.count(func(f *observe.Flows) { *f = want })
	e.count(func(f *observe.Flows) { f.Total++ })
	if want.Total++; e.flows() != want {
		t.Errorf("%+v, want %+v", e.flows(), want)
	}
	e.count(func(f *observe.Flows) { f.Unanswered, f.Refused = 0, 0 })
	if want.Unanswered, want.Refused = 0, 0; e.flows() != want {
		t.Errorf("%+v, want %+v", e.flows(), want)
	}
}

// TestEndpointsAdd: an endpoint keeps its counts when its service port changes, and has the names of the newest one.
func TestEndpointsAdd(t *testing.T) {
	endpoint := func(addr, pod, node string) decision.Endpoint {
		return decision.Endpoint{AddrPort: netip.MustParseAddrPort(addr), Pod: pod, NodeName: node}
	}
	var all endpoints
	first := all.add([]decision.Endpoint{endpoint("10.0.0.9:80", "a/nine", "node-1"), endpoint("10.0.0.1:80", "a/one", "node-1")})
	first[1].total = 7
	second := all.add([]decision.Endpoint{endpoint("10.0.0.1:80", "a/other", "node-2"), endpoint("10.0.0.5:80", "a/five", "node-2")})
	if second[0] != first[1] || second[0].total != 7 || second[0].pod != "a/other" || second[0].node != "node-2" {
		t.Errorf("10.0.0.1:80 has %+v", second[0])
	}
	if got := all.of(netip.MustParseAddrPort("10.0.0.9:80")); got != first[0] || got.pod != "a/nine" || got.node != "node-1" {
		t.Errorf("10.0.0.9:80 has %+v", got)
	}
	if len(all) != 3 || all.of(netip.MustParseAddrPort("10.0.0.5:80")) != second[1] || all.of(netip.MustParseAddrPort("10.0.0.6:80")) != nil {
		t.Errorf("endpoints %v", all)
	}
}
