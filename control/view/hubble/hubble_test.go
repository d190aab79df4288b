package hubble

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

var update = flag.Bool("update", false, "write the golden files anew")

// records are flows of every kind and with every event.
func records(t testing.TB) []*flow.Record {
	t.Helper()
	data, err := os.ReadFile("testdata/records.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var list []*flow.Record
	for line := range bytes.Lines(data) {
		r := &flow.Record{}
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(r); err != nil {
			t.Fatalf("testdata/records.jsonl:%d: %v", len(list)+1, err)
		}
		list = append(list, r)
	}
	return list
}

// export encodes the records, and between them what may be missing.
func export(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	e := NewEncoder(&b)
	missed := []observe.Missed{
		{Node: "node-a", Missed: 10, Why: observe.MissedSlow}, {Node: "node-a", Missed: 11, Why: observe.MissedSampled},
		{Node: "node-a", Missed: 12, Why: observe.MissedLost}, {Node: "node-a", Missed: 13, Why: observe.MissedLeftOut}, // no loss: not exported
	}
	for i, r := range records(t) {
		if err := e.Encode(observe.Item{Record: r}); err != nil {
			t.Fatal(err)
		}
		if i < len(missed) {
			if err := e.Encode(observe.Item{Missed: &missed[i]}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return b.String()
}

func compareGolden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s: -golden +got (-update writes it anew):\n%s", name, diff)
	}
}

func TestEncode(t *testing.T) { compareGolden(t, "testdata/hubble.jsonl", export(t)) }

// runHubble runs "hubble observe" on lines of JSON.
func runHubble(t *testing.T, input string, args ...string) (shown, complaints string) {
	t.Helper()
	c := exec.Command(clustertest.RequireProgram(t, cluster.Hubble), append([]string{"observe", "--input-file", "-"}, args...)...)
	c.Env = []string{"HOME=" + t.TempDir()} // no configuration of who runs the test
	c.Stdin = strings.NewReader(input)
	var stdout, stderr strings.Builder
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		t.Fatalf("%v: %v\n%s", c.Args, err, &stderr)
	}
	return stdout.String(), stderr.String()
}

// observeWith gives what hubble shows of the export. It parses strictly at first: a field or
// a name that it does not know is a complaint.
func observeWith(t *testing.T, args ...string) string {
	t.Helper()
	shown, complaints := runHubble(t, export(t), args...)
	if complaints != "" {
		t.Fatalf("%v: %s", args, complaints)
	}
	return shown
}

// TestHubbleHearsOfNodes: an unreachable node is reported on standard error.
func TestHubbleHearsOfNodes(t *testing.T) {
	var b strings.Builder
	if err := NewEncoder(&b).Encode(observe.Item{Missed: &observe.Missed{Node: "node-c", Why: "unreachable"}}); err != nil {
		t.Fatal(err)
	}
	for format, want := range map[string]string{"jsonpb": b.String(), "compact": "N/A [node-c]: 1 nodes are unavailable: node-c\n"} {
		if shown, reported := runHubble(t, b.String(), "-o", format); shown != "" || reported != want {
			t.Errorf("-o %s: %s%s\nwant %s", format, shown, reported, want)
		}
	}
}

// TestHubbleReadsIt: the real command takes the export and shows what is meant.
func TestHubbleReadsIt(t *testing.T) {
	compareGolden(t, "testdata/hubble.txt", observeWith(t, "--print-node-name", "--ip-translation=false"))
	compareGolden(t, "testdata/hubble-names.txt", observeWith(t, "-o", "dict"))
}

// TestHubbleReadsAll: nothing of the export gets lost on the way through Hubble's types.
func TestHubbleReadsAll(t *testing.T) {
	parse := func(text string) (list []any) {
		for line := range strings.Lines(text) {
			var v any
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			list = append(list, v)
		}
		return list
	}
	if diff := cmp.Diff(parse(export(t)), parse(observeWith(t, "-o", "jsonpb"))); diff != "" {
		t.Errorf("-exported +as Hubble has it:\n%s", diff)
	}
}

// TestHubbleFilters: the fields are where Hubble's filters look for them.
func TestHubbleFilters(t *testing.T) {
	for _, c := range []struct {
		args  []string
		lines int // without those of lost events, which no filter takes away
		each  string
	}{
		{[]string{"--verdict", "DROPPED"}, 6, " DROPPED "},
		{[]string{"--verdict", "TRANSLATED"}, 4, " post-xlate-fwd TRANSLATED "},
		{[]string{"--to-service", "kube-system/kube-dns"}, 5, "kube-system/"},
		{[]string{"--from-service", "kube-system/kube-dns"}, 1, "kube-system/coredns-1:53"},
		{[]string{"--from-pod", "default/shell", "--to-pod", "default/web-2"}, 8, "default/web-2:8080"},
		{[]string{"--protocol", "sctp"}, 5, "SCTP"},
		{[]string{"--tcp-flags", "SYN,ACK"}, 1, "SYN, ACK"},
		{[]string{"--type", "drop"}, 6, " DROPPED "},
		{[]string{"--identity", "host"}, 6, "(host)"},
		{[]string{"--ipv6"}, 5, "fd00:10"},
		{[]string{"--drop-reason-desc", "SERVICE_BACKEND_NOT_FOUND"}, 2, "Service backend not found"},
		{[]string{"--port", "30030"}, 1, "no-local-endpoints"},
		{[]string{"--traffic-direction", "ingress"}, 10, ""},
		{[]string{"--node-name", "node-a"}, 38, ""},
		{[]string{"--since", "2026-11-21T10:00:30Z", "--until", "2026-11-21T10:00:31Z"}, 2, "192.0.2.80:443"},
	} {
		ip := "--ip-translation=" + map[bool]string{true: "false", false: "true"}[c.args[0] == "--ipv6"]
		lines := strings.Split(strings.TrimSuffix(observeWith(t, append(c.args, ip)...), "\n"), "\n")
		lines = slices.DeleteFunc(lines, func(l string) bool { return l == "" || strings.Contains(l, "EVENTS LOST") })
		if len(lines) != c.lines {
			t.Errorf("%v: %d flows, want %d:\n%s", c.args, len(lines), c.lines, strings.Join(lines, "\n"))
		}
		for _, l := range lines {
			if !strings.Contains(l, c.each) {
				t.Errorf("%v: want %q in %s", c.args, c.each, l)
			}
		}
	}
}

// TestEveryEvent: every event in SCHEMA.md has a text, and the records
// have them all.
func TestEveryEvent(t *testing.T) {
	schema, err := os.ReadFile("../../../datapath/flow/SCHEMA.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(schema), "### States and events")
	section, _, _ = strings.Cut(section, "## Count")
	events := regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|").FindAllStringSubmatch(section, -1)
	if len(events) < 15 {
		t.Fatalf("found %d events in SCHEMA.md, want 15 at least", len(events))
	}
	for _, e := range events {
		var event flow.Event
		if err := event.UnmarshalText([]byte(e[1])); err != nil || event == flow.Unknown {
			t.Fatalf("event %s: %v", e[1], err)
		}
		_, isPacket := packets[event]
		if !isPacket && notices[event] == "" && !event.IsDecision() && event != flow.Repeated {
			t.Errorf("event %s has no text", event)
		}
		if !slices.ContainsFunc(records(t), func(r *flow.Record) bool { return r.Event == event }) {
			t.Errorf("no record in testdata has event %s", event)
		}
	}
}

// TestUUIDs: no two lines have the same, and a line has the same whenever it is written.
func TestUUIDs(t *testing.T) {
	version8 := regexp.MustCompile("^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")
	seen := make(map[string]bool)
	for _, r := range records(t) {
		flows, err := Flows(r)
		if err != nil {
			t.Fatal(err)
		}
		again, _ := Flows(r)
		for i, f := range flows {
			u := f.GetFlow().GetUuid()
			switch {
			case r.ID == "" && u != "":
				t.Errorf("a record without an ID has UUID %s", u)
			case r.ID == "":
			case !version8.MatchString(u):
				t.Errorf("%q is no UUID of version 8", u)
			case seen[u]:
				t.Errorf("%s %s: UUID %s again", r.ID, r.Event, u)
			case again[i].GetFlow().GetUuid() != u:
				t.Errorf("%s %s: UUID %s, then %s", r.ID, r.Event, u, again[i].GetFlow().GetUuid())
			}
			seen[u] = true
		}
	}
}

func TestBadRecords(t *testing.T) {
	good := flow.Record{ID: "7", Protocol: "TCP", Source: "10.0.0.1:1", Destination: "10.0.0.2:80", Verdict: "dnat"}
	yearZero := time.Date(0, 12, 31, 0, 0, 0, 0, time.UTC)
	for want, spoil := range map[string]func(*flow.Record){
		`flow record 7: field source is "10.0.0.1": want an address and a port, like 10.96.0.10:53 or [fd00::10]:53`: func(r *flow.Record) { r.Source = "10.0.0.1" },
		`flow record 7: field destination is "": want an address and a port, like 10.96.0.10:53 or [fd00::10]:53`:    func(r *flow.Record) { r.Destination = "" },
		`flow record 7: field endpoint is "web:80": want an address and a port, like 10.96.0.10:53 or [fd00::10]:53`: func(r *flow.Record) { r.Endpoint = "web:80" },
		`flow record 7: field protocol is "ICMP": want TCP, UDP or SCTP`:                                             func(r *flow.Record) { r.Protocol = "ICMP" },
		`flow record 7: time 0000-12-31 00:00:00 +0000 UTC: want a year from 1 to 9999`:                              func(r *flow.Record) { r.Time = &yearZero },
	} {
		r := good
		spoil(&r)
		if err := NewEncoder(&strings.Builder{}).Encode(observe.Item{Record: &r}); err == nil || err.Error() != want {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}

func TestWriteError(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	w.Close()
	if err := NewEncoder(w).Encode(observe.Item{Missed: &observe.Missed{}}); err == nil {
		t.Error("no error from a file that is closed")
	}
}

// FuzzFlows: the flows of any record can be written, and there is one at least.
func FuzzFlows(f *testing.F) {
	for _, r := range records(f) {
		data, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r flow.Record
		if json.Unmarshal(data, &r) != nil {
			return
		}
		flows, err := Flows(&r)
		if err != nil {
			return
		}
		if len(flows) == 0 {
			t.Fatal("no flow")
		}
		if err := NewEncoder(io.Discard).Encode(observe.Item{Record: &r}); err != nil {
			t.Fatal(err)
		}
		for _, l := range flows {
			if _, err := proto.Marshal(l); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestTimes: each event has its own time.
func TestTimes(t *testing.T) {
	decided := time.Date(2026, 11, 21, 11, 0, 0, 0, time.FixedZone("", 3600))
	since, counted := decided.Add(time.Minute), decided.Add(time.Hour)
	for _, c := range []struct {
		event flow.Event
		life  *flow.Life
		want  time.Time
	}{
		{0, nil, decided},
		{flow.Decided, &flow.Life{State: flow.Established, Since: since}, decided},
		{flow.Repeated, &flow.Life{State: flow.Unanswered, Since: since}, since},
		{flow.Established, &flow.Life{State: flow.Established, Since: since, CountedAt: &counted}, since},
		{flow.Gone, &flow.Life{State: flow.Closed, Since: since, CountedAt: &counted}, counted},
		{flow.Gone, &flow.Life{State: flow.Closed, Since: since}, since},
	} {
		flows, err := Flows(&flow.Record{Event: c.event, Time: &decided, Life: c.life, Protocol: "UDP", Source: "10.0.0.1:1", Destination: "10.0.0.2:80", Verdict: "accept"})
		if err != nil {
			t.Fatal(err)
		}
		if got := flows[len(flows)-1].GetTime().AsTime(); !got.Equal(c.want) {
			t.Errorf("%s: %v, want %v", c.event, got, c.want)
		}
	}
}
