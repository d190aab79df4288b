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
	want := observe.Flows{Total: 11, Drawn: 8, Affinity: 1, Failed: 2, Unanswered: 3, Refused: 4, Reset: 5, Open: 6, BytesSent: 7, BytesReceived: 10}
	e.add(want)
	e.add(observe.Flows{Total: 1, Drawn: 1})
	want.Total++
	if want.Drawn++; e.flows() != want {
		t.Errorf("%+v, want %+v", e.flows(), want)
	}
	e.add(observe.Flows{Unanswered: oneLess, Open: oneLess})
	if want.Unanswered, want.Open = 2, 5; e.flows() != want {
		t.Errorf("%+v, want %+v", e.flows(), want)
	}
	e.draw(decision.Cluster)
	e.draw(decision.Local)
	e.draw(decision.Local)
	if got := e.drawn(); got != [2]uint64{1, 2} {
		t.Errorf("draws %v", got)
	}
	if e.resetDraws(); e.drawn() != [2]uint64{} {
		t.Errorf("draws %v after the reset", e.drawn())
	}
}

// TestTallyUse: an endpoint keeps its counts when its service port changes, and when it has gone.
func TestTallyUse(t *testing.T) {
	port := func(endpoints ...decision.Endpoint) *decision.ServicePort {
		return &decision.ServicePort{Endpoints: endpoints}
	}
	endpoint := func(addr, pod, node string) decision.Endpoint {
		return decision.Endpoint{AddrPort: netip.MustParseAddrPort(addr), Pod: pod, NodeName: node}
	}
	of := func(c *tally, addr string) *endpointTally { return c.endpoint(netip.MustParseAddrPort(addr)) }
	c := &tally{used: new(usedPort)}
	before := port(endpoint("10.0.0.9:80", "a/nine", "node-1"), endpoint("10.0.0.1:80", "a/one", "node-1"))
	first := c.use(before).endpoints
	first[1].total = 7
	second := c.use(port(endpoint("10.0.0.1:80", "a/other", "node-2"), endpoint("10.0.0.5:80", "a/five", "node-2"))).endpoints
	if second[0] != first[1] || of(c, "10.0.0.1:80") != first[1] || first[1].total != 7 {
		t.Errorf("10.0.0.1:80 has %+v", second[0])
	}
	if of(c, "10.0.0.9:80") != first[0] || of(c, "10.0.0.5:80") != second[1] || of(c, "10.0.0.6:80") != nil {
		t.Errorf("endpoints %v and %v", second, c.gone)
	}
	if len(c.gone) != 1 || c.gone[0].Endpoint != before.Endpoints[0] {
		t.Errorf("gone: %v", c.gone)
	}
	if again := c.use(before).endpoints; again[0] != first[0] || again[1] != first[1] || len(c.gone) != 1 || c.gone[0].endpointTally != second[1] {
		t.Errorf("endpoints %v and %v", again, c.gone)
	}
}
