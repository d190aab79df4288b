package flows

import (
	"bytes"
	"encoding/json"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/offpolicy"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// TestEstimateLive: what is estimated for another algorithm, from a log under random selection, is what then
// happens under it. One of three endpoints refuses, and the hash of sources sends it more than a third of the flows, or
// less.
func TestEstimateLive(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	const clients, flows = 12, 360
	var sources []netip.Addr
	for i := range clients {
		sources = append(sources, netip.AddrFrom4([4]byte{10, 244, 0, byte(100 + 7*i)}))
	}
	c.Must(c.AddAddresses("default/shell", sources...))
	if _, err := c.Change(t.Context(), lab.Change{Server: &lab.Serving{Pod: "web-2"}}); err != nil {
		t.Fatal(err)
	}
	// send has each client connect in turn, and returns the records of these flows.
	send := func() (records []*flow.Record) {
		t.Helper()
		since := time.Now()
		for i := range flows {
			if conn, err := c.TryDial("shell", "tcp", netip.AddrPortFrom(sources[i%clients], 0), "10.96.0.20:80"); err == nil {
				c.Must(conn.Close())
			}
		}
		node, err := c.NodeObserver("node-a")
		if err != nil {
			t.Fatal(err)
		}
		e2etest.Eventually(t, e2etest.Timeout, "the ends of all flows", func() bool {
			records = nil
			if err := node.Flows(t.Context(), observe.FlowQuery{Service: "default/web", Since: since.Format(time.RFC3339Nano), Limit: "0"}, func(i observe.Item) error {
				if i.Record != nil && i.Record.Life.State != flow.Decided {
					records = append(records, i.Record)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			return len(records) == flows
		})
		return records
	}
	var log bytes.Buffer
	for _, r := range send() {
		if err := json.NewEncoder(&log).Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	name := e2etest.WriteFile(t, "flows.jsonl", log.Bytes())
	estimate := func(algorithm string) *offpolicy.Group {
		t.Helper()
		// At this confidence one run in ten thousand fails by chance.
		code, out, stderr := replay(t, name, c.Objects, "--balance", algorithm, "--estimate", "--confidence", "99.99", "--seed", "1", "-o", "json")
		var r offpolicy.Report
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || len(r.Services) != 1 {
			t.Fatalf("exit code %d, %v: %s%s", code, err, out, stderr)
		}
		return &r.Services[0]
	}
	g := estimate("sh")

	c.Must(c.Balance(t.Context(), observe.BalanceChange{Service: "default/web", Algorithm: "sh"}))
	refused, by := 0.0, make(map[string]float64)
	for _, r := range send() {
		if r.Balance == nil || r.Balance.Algorithm != "sh" {
			t.Fatalf("a flow by %+v", r.Balance)
		}
		if r.Life.State == flow.Refused {
			refused++
		}
		by[r.Endpoint]++
	}
	most := 0.0
	for _, n := range by {
		most = max(most, n)
	}
	if refused == flows/3 || refused != by["10.244.1.2:8080"] {
		t.Fatalf("%v of %d refused, endpoints %v: want another share than under random selection", refused, flows, by)
	}
	truth := map[string]float64{offpolicy.Refused: refused / flows, offpolicy.Imbalance: most / flows * 3}
	for _, o := range g.Outcomes {
		want, ok := truth[o.Name]
		if !ok {
			continue
		}
		delete(truth, o.Name)
		if !o.Valid {
			t.Errorf("%s: not valid: %v", o.Name, g.Warnings)
		}
		if o.Name == offpolicy.Imbalance {
			// The selections of a hash are known.
			if o.DR.Value == nil || math.Abs(*o.DR.Value-want) > 1e-9 {
				t.Errorf("imbalance: estimated %v, then %v", o.DR.Value, want)
			}
			continue
		}
		for name, v := range map[string]offpolicy.Value{"IPS": o.IPS, "SNIPS": o.SNIPS, "DR": o.DR} {
			if v.Value == nil || v.Half == nil {
				t.Errorf("%s: no estimate by %s", o.Name, name)
			} else if math.Abs(*v.Value-want) > *v.Half {
				t.Errorf("%s by %s: estimated %.3f ± %.3f, then %.3f", o.Name, name, *v.Value, *v.Half, want)
			}
		}
	}
	if len(truth) > 0 {
		t.Errorf("no estimates of %v", truth)
	}

	// Under an algorithm that depends on load, latency is not what it was.
	for _, o := range estimate("lc").Outcomes {
		if o.Name == offpolicy.Latency && o.Valid {
			t.Error("connect latency under lc is said to be known")
		}
	}
}
