package flows

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// TestShadows: algorithms that decide beside are in records, in the comparison of their loads, which follows the real
// connections, in the metrics and on the page; flows go where they would go without them.
func TestShadows(t *testing.T) {
	const proxy = "clusterCIDRs: [10.244.0.0/16]\n"
	text := strings.Replace(deployed, proxy, proxy+"proxy: {balance: sh, shadow: [rr, lc, random]}\n", 1)
	file, err := lab.Load(e2etest.WriteFile(t, "lab.yaml", []byte(text)))
	if err != nil {
		t.Fatal(err)
	}
	c := e2etest.Up(t, file, lab.Options{})
	p := openPage(c)
	var conns []io.Closer
	for range 6 {
		conns = append(conns, c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.1:80"))
	}
	c.WaitRecords(6, "of the flows", func(r *flow.Record) bool { return r.Service == "default/web" })
	real, other := "", 0
	for _, r := range c.Records() {
		if r.Service != "default/web" {
			continue
		}
		if real == "" {
			real = r.Endpoint
		}
		if r.Endpoint != real || r.Balance == nil || r.Balance.Algorithm != "sh" {
			t.Errorf("flow to %s by %+v: the hash of its source has %s", r.Endpoint, r.Balance, real)
		}
		if len(r.Shadows) != 3 || r.Shadows[0].Algorithm != "rr" || r.Shadows[1].Algorithm != "lc" || r.Shadows[2].Algorithm != "random" {
			t.Fatalf("shadows %+v", r.Shadows)
		}
		if r.Shadows[0].Endpoint != real {
			other++
		}
		if r.Shadows[1].Evidence == "" || r.Shadows[2].Probability != 0.5 {
			t.Errorf("shadows %+v", r.Shadows)
		}
	}
	if other != 3 {
		t.Errorf("rr selects the other endpoint for %d of 6 flows, want 3", other)
	}

	loads := func() (s *observe.ServiceShadows, summary string) {
		t.Helper()
		all, err := c.Shadows(t.Context(), "default/web")
		if err != nil || len(all.Services) != 1 || len(all.Services[0].Shadows) != 3 {
			t.Fatalf("%+v, %v", all, err)
		}
		s = &all.Services[0]
		for _, l := range []observe.ShadowLoad{s.Actual, s.Shadows[0], s.Shadows[1]} {
			flows, open := uint64(0), 0
			for _, e := range l.Endpoints {
				flows, open = max(flows, e.Flows), max(open, e.Open)
			}
			summary += fmt.Sprintf("%s: most flows %d, most open %d; ", l.Algorithm, flows, open)
		}
		return s, summary
	}
	s, got := loads()
	if want := ": most flows 6, most open 6; rr: most flows 3, most open 3; lc: most flows 3, most open 3; "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if s.Flows != 6 || s.Shadows[0].Same != 3 || s.Actual.FlowImbalance != 2 || s.Shadows[1].OpenImbalance != 1 {
		t.Errorf("comparison %+v", s)
	}
	if other, err := c.Shadows(t.Context(), "default/other"); err != nil || len(other.Services) != 0 || len(other.Algorithms) != 3 {
		t.Errorf("of another service: %+v, %v", other, err)
	}

	p.GoTo("#/services/default/web")
	cells := func(algorithm string) string {
		return "[...document.querySelectorAll('.shadows-table tr[data-algorithm=" + webtest.Quote(algorithm) + "] td')].slice(0, 4).map(x => x.textContent).join(' | ')"
	}
	p.WaitFor("the comparison", cells("rr")+" === 'rr | 50% | 1.00 | 1.00' && "+cells("")+" === 'really |  | 2.00 | 2.00'")
	if *balanceScreenshots != "" {
		p.Shoot(filepath.Join(*balanceScreenshots, "shadows.png"))
	}
	for _, conn := range conns { // the shadows' connections end with the real ones
		c.Must(conn.Close())
	}
	e2etest.Eventually(t, 30*time.Second, "no connection is open", func() bool {
		_, got := loads()
		return got == ": most flows 6, most open 0; rr: most flows 3, most open 0; lc: most flows 3, most open 0; "
	})
	p.WaitFor("no open connections", cells("rr")+" === 'rr | 50% | 1.00 | 0.00'")
	p.GoTo("#/flows/" + c.WaitRecord("of a flow", func(r *flow.Record) bool { return len(r.Shadows) > 0 }).ID)
	p.WaitFor("the shadows of a flow", "[...document.querySelectorAll('.side .shadows li')].some(x => x.textContent.startsWith('rr would select '))")
	if n := c.Metric("node-a", `nfqproxy_shadow_flows_total{algorithm="rr",same="true"}`); n != 3 {
		t.Errorf("metric: %v flows, want 3", n)
	}
}
