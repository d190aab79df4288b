package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/replay/capturetest"
)

// logOf writes the log that a daemon would: flows of many clients to all kinds of
// services, a second apart.
func logOf(t *testing.T, table *decision.Table) []byte {
	t.Helper()
	now := capturetest.Epoch
	bound := affinity.NewAt(func() time.Time { return now })
	random := rand.New(rand.NewPCG(7, 0))
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for i := range 400 {
		now = now.Add(time.Second)
		p := &decision.Packet{
			Protocol:    decision.TCP,
			Source:      netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, byte(2 + i%5)}), uint16(1024+i)),
			Destination: netip.MustParseAddrPort([]string{"10.96.0.20:80", "10.96.0.50:80", "10.96.0.80:80", "172.20.0.2:30030", "192.0.2.1:80", "10.96.0.40:80", "172.20.0.2:30080"}[i%7]),
		}
		d := decision.Decide(table, p, random, bound, nil)
		r := flow.New(table, p, &d)
		r.Time = &now
		if d.Verdict == decision.DNAT {
			r.Conntrack = "created"
			if d.ServicePort.AffinitySeconds > 0 {
				bound.Bind(d.ServicePort, d.Endpoint(), p.Source.Addr())
			}
		}
		if err := enc.Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// compared replays a log and gives the differences, a line each.
func compared(t *testing.T, table *decision.Table, log string) ([]string, *Log) {
	t.Helper()
	l, err := NewLog(table)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	if err := l.Run(strings.NewReader(log), func(d *Difference) error {
		lines = append(lines, d.String())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return lines, l
}

// TestLogAgain: by the same table there is no difference; without an endpoint those of its
// services, and only theirs.
func TestLogAgain(t *testing.T) {
	log := logOf(t, cluster(t, nil))
	lines, l := compared(t, cluster(t, nil), string(log))
	if len(lines) > 0 || l.Check() != nil || l.Summary().Compared != 400 {
		t.Errorf("%d differences, the first %q; %+v", len(lines), lines[:min(1, len(lines))], l.Summary())
	}

	without := cluster(t, func(o *manifest.Objects) {
		for _, s := range o.EndpointSlices {
			if s.Name == "sticky" {
				s.Endpoints = s.Endpoints[:2]
			}
		}
	})
	lines, l = compared(t, without, string(log))
	sticky := strings.Count(string(log), `"service":"default/sticky"`)
	different := 0
	for _, line := range strings.Split(string(log), "\n") {
		// The flows that could have got the third have other candidates.
		if strings.Contains(line, `"service":"default/sticky"`) && strings.Contains(line, `{"endpoint":"10.244.2.3:8080","probability"`) {
			different++
		}
	}
	if l.Summary().Different != different || different == 0 || different == sticky {
		t.Errorf("%d of %d flows to the service would be decided differently, want %d", l.Summary().Different, sticky, different)
	}
	for _, line := range lines {
		if !strings.Contains(line, "-> 10.96.0.50:80: ") {
			t.Errorf("a difference that there is no cause for: %s", line)
		}
	}
}

// record is a line of a log.
func record(at time.Duration, change func(*flow.Record)) string {
	when := capturetest.Epoch.Add(at)
	draw := 0.9
	r := &flow.Record{
		Version: 1, Time: &when, Node: "node-a", Verdict: "dnat", Reason: "balanced", Protocol: "TCP",
		Source: "10.244.1.9:40000", Destination: "10.96.0.50:80", Service: "default/sticky", Entry: "cluster-ip", Endpoint: "10.244.2.3:8080",
		Candidates: []flow.Candidate{{Endpoint: "10.244.1.2:8080"}, {Endpoint: "10.244.2.2:8080"}, {Endpoint: "10.244.2.3:8080"}},
		Draw:       &draw, Conntrack: "created", Generation: 1,
	}
	if change != nil {
		change(r)
	}
	b, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	return string(b) + "\n"
}

// bound makes it a record of a client that session affinity binds.
func bound(r *flow.Record) {
	r.Reason, r.Draw = "affinity", nil
	r.Candidates = r.Candidates[2:]
}

func TestLogDifferences(t *testing.T) {
	const prefix = "line 1: TCP 10.244.1.9:40000 -> 10.96.0.50:80: "
	for _, tt := range []struct {
		name, log string
		want      []string
	}{
		{"none", record(0, nil), nil},
		{"other draw", record(0, func(r *flow.Record) { *r.Draw = 0.1 }), []string{prefix + "endpoint: 10.244.2.3:8080, now 10.244.1.2:8080"}},
		{"all fields", record(0, func(r *flow.Record) {
			r.Verdict, r.Reason, r.Service, r.Entry, r.Endpoint, r.Candidates, r.Masquerade, r.MasqueradeReason = "reject", "no-endpoints", "default/other", "node-port", "", nil, true, "hairpin"
		}), []string{
			prefix + "verdict: reject, now dnat", prefix + "reason: no-endpoints, now balanced", prefix + "service: default/other, now default/sticky",
			prefix + "entry: node-port, now cluster-ip", prefix + "endpoint: none, now 10.244.2.3:8080",
			prefix + "candidates: none, now 10.244.1.2:8080 10.244.2.2:8080 10.244.2.3:8080",
			prefix + "masquerade: true, now false", prefix + "masqueradeReason: hairpin, now none",
		}},
		{"bound by an earlier record, until it times out", record(0, nil) + record(600*time.Second, bound) + record(1200*time.Second, bound), nil},
		{"bound by the record of a simulation", record(0, func(r *flow.Record) { r.Conntrack = "" }) + record(time.Second, bound), nil},
		{"bound for too long", record(0, nil) + record(601*time.Second, bound),
			[]string{"line 2: TCP 10.244.1.9:40000 -> 10.96.0.50:80: reason: affinity, now balanced", "line 2: TCP 10.244.1.9:40000 -> 10.96.0.50:80: endpoint: 10.244.2.3:8080, now 10.244.1.2:8080",
				"line 2: TCP 10.244.1.9:40000 -> 10.96.0.50:80: candidates: 10.244.2.3:8080, now 10.244.1.2:8080 10.244.2.2:8080 10.244.2.3:8080"}},
		{"bound before the log begins", record(0, bound) + record(time.Second, bound), nil},
		{"flows that were kept or failed bind no client", record(0, func(r *flow.Record) { r.Conntrack = "kept" }) +
			record(time.Second, func(r *flow.Record) { r.Conntrack = "failed" }) + record(2*time.Second, nil) + record(3*time.Second, bound), nil},
		{"flows decided together do not know of each other", record(0, nil) + record(0, nil) + record(1, bound), nil},
		{"kept, with the endpoint and masquerade of another decision", record(0, func(r *flow.Record) {
			r.SetKept(netip.MustParseAddrPort("10.244.2.2:8080"), true)
		}), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lines, _ := compared(t, cluster(t, nil), tt.log)
			wantLines(t, lines, tt.want...)
		})
	}
}

// TestLogNodes: other nodes and other generations.
func TestLogNodes(t *testing.T) {
	elsewhere := func(r *flow.Record) { r.Node, r.Endpoint = "node-b", "1.2.3.4:5" }
	later := func(r *flow.Record) { r.Generation, r.Endpoint = 2, "1.2.3.4:5"; r.Conntrack = "failed" }
	log := record(0, elsewhere) + record(0, nil) + record(0, later)
	lines, l := compared(t, cluster(t, nil), log)
	wantLines(t, lines, "line 3: TCP 10.244.1.9:40000 -> 10.96.0.50:80: endpoint: 1.2.3.4:5, now 10.244.2.3:8080")
	var b strings.Builder
	if _, err := l.Summary().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	const want = `3 records, 2 decided again: 1 would be decided differently
       1  of other nodes
  the log covers several service tables, and not all of them may match the objects: 1 of generation 1, 1 of generation 2
`
	if b.String() != want {
		t.Errorf("have\n%s\nwant\n%s", b.String(), want)
	}

	for _, tt := range []struct {
		log        string
		generation uint64
		want       string
	}{
		{log, 1, ""},
		{log, 9, `no record of node "node-a" is of generation 9: there are 1 of generation 1, 1 of generation 2`},
		{record(0, elsewhere), 0, `no record is of node "node-a": there are those of node-b; name one with --node`},
		{"\n", 0, "there is no record in it"},
	} {
		l, err := NewLog(cluster(t, nil))
		if err != nil {
			t.Fatal(err)
		}
		l.Generation = tt.generation
		err = l.Run(strings.NewReader(tt.log), func(d *Difference) error { return fmt.Errorf("difference: %s", d) })
		if err == nil {
			err = l.Check()
		}
		if text := fmt.Sprint(err); tt.want == "" && err != nil || tt.want != "" && text != tt.want {
			t.Errorf("generation %d: %v, want %q", tt.generation, err, tt.want)
		}
	}
}

// TestLogNonsense: a line that is no flow log is reported with its number.
func TestLogNonsense(t *testing.T) {
	good := record(0, nil)
	for _, tt := range []struct{ log, want string }{
		{good + "{", "line 2: not a record of a flow log: unexpected end of JSON input"},
		{good + "{}", "line 2: a record of version 0: only version 1 of the flow log is known"},
		{`{"version":2}`, "line 1: a record of version 2"},
		{`{"version":1,"verdict":7}`, "line 1: not a record of a flow log: cannot unmarshal number"},
		{`{"version":1,"protocol":"ICMP"}`, `line 1: protocol "ICMP"`},
		{`{"version":1,"protocol":"TCP","source":"here"}`, `line 1: source "here": want an address with a port`},
		{`{"version":1,"protocol":"TCP","source":"1.2.3.4:5","destination":"there"}`, `line 1: destination "there": want an address with a port`},
		{`{"version":1,"protocol":"TCP","source":"1.2.3.4:5","destination":"[::1]:5"}`, `of different families`},
	} {
		l, err := NewLog(cluster(t, nil))
		if err != nil {
			t.Fatal(err)
		}
		err = l.Run(strings.NewReader(tt.log), func(*Difference) error { return nil })
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %q", tt.log, err, tt.want)
		}
	}
	node := *cluster(t, nil).Node()
	node.Detector = decision.Detector{Bridge: "cni0"}
	table := cluster(t, nil)
	if _, err := NewLog(table.Next(table.Built(), node)); err == nil || !strings.Contains(err.Error(), "set another --detect-local-mode") {
		t.Errorf("a detector by interface: %v", err)
	}
}
