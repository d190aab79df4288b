package otlp

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

func TestCheck(t *testing.T) {
	for change, want := range map[string]string{
		"":                             "",
		"endpoint=https://[fd00::1]:1": "",
		"endpoint=http://collector/":   "",
		"endpoint=collector:4317":      `endpoint "collector:4317": want http://HOST:PORT`,
		"endpoint=http://":             `endpoint "http://": want http://HOST:PORT`,
		"endpoint=http://h/v1/logs":    `endpoint "http://h/v1/logs": want http://HOST:PORT`,
		"endpoint=http://user:pw@h":    `endpoint "http://user:pw@h": want http://HOST:PORT`,
		"signals=":                     "no signals: want one or more of logs, metrics, traces",
		"signals=logs profiles":        `signal "profiles": want one of logs, metrics, traces`,
		"sample=0":                     "sample 0: want more than 0, and at most 1",
		"sample=1.1":                   "sample 1.1: want more than 0, and at most 1",
		"sample=NaN":                   "sample NaN: want more than 0, and at most 1",
	} {
		c := Config{Endpoint: "http://h:4317", Signals: Signals(), Sample: 0.5}
		switch what, value, _ := strings.Cut(change, "="); what {
		case "endpoint":
			c.Endpoint = value
		case "signals":
			c.Signals = strings.Fields(value)
		case "sample":
			if _, err := fmt.Sscan(value, &c.Sample); err != nil {
				t.Fatal(err)
			}
		}
		text := ""
		if err := c.Check(); err != nil {
			text = err.Error()
		}
		if !strings.HasPrefix(text, want) || want == "" && text != "" {
			t.Errorf("%s: error %q, want %q", change, text, want)
		}
	}
}

// TestEnvironment: what the library would replace by a default is an error.
func TestEnvironment(t *testing.T) {
	for _, e := range []struct{ name, value, want string }{
		{"OTEL_EXPORTER_OTLP_CERTIFICATE", "/none/ca.pem", "no such file"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "no value", "no value"},
		{"OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "soon"},
		{"OTEL_RESOURCE_ATTRIBUTES", "key", "OTEL_RESOURCE_ATTRIBUTES"},
	} {
		t.Run(e.name, func(t *testing.T) {
			t.Setenv(e.name, e.value)
			x, err := Open(Config{Endpoint: "https://127.0.0.1:1", Signals: Signals(), Sample: 1, Log: slog.New(slog.DiscardHandler)})
			if err == nil {
				x.Close()
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), e.want) {
				t.Errorf("error %q, want %q", err, e.want)
			}
		})
	}
}

func record() *flow.Record {
	at, queue, draw, waited := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), uint16(100), 0.25, 0.5
	return &flow.Record{
		Version: 1, ID: "abc-1", Event: flow.Answered, Time: &at, Emitted: &at, Node: "node-a", Queue: &queue, Verdict: "dnat", Reason: "balanced", Protocol: "TCP",
		Source: "10.244.1.2:40000", Destination: "10.96.0.20:80", SourcePod: "default/shell", Service: "default/web:http", Entry: "cluster-ip",
		Endpoint: "10.244.2.2:8080", Candidates: []flow.Candidate{{Endpoint: "10.244.2.2:8080", Probability: 1}}, Excluded: []flow.Excluded{}, Draw: &draw,
		Generation: math.MaxUint64, TableAge: 1.5, Stages: &flow.Stages{Waited: &waited, Decided: 0.25, Written: 0.125, Accepted: 0.0625},
		Life: &flow.Life{State: flow.Answered, Since: at, Answered: true, Sent: &flow.Count{Packets: 2, Bytes: 120}, Repeated: 3},
	}
}

func TestAttributes(t *testing.T) {
	have := make(map[string]any)
	for _, a := range attributes(record()) {
		if _, twice := have[string(a.Key)]; twice {
			t.Errorf("%s is there twice", a.Key)
		}
		have[string(a.Key)] = a.Value.AsInterface()
	}
	const at = "2026-03-01T12:00:00Z"
	want := map[string]any{
		"network.transport": "tcp", "network.type": "ipv4", "source.address": "10.244.1.2", "source.port": int64(40000),
		"destination.address": "10.96.0.20", "destination.port": int64(80), "k8s.namespace.name": "default", "k8s.service.name": "web",
		"nfqproxy.id": "abc-1", "nfqproxy.event": "answered", "nfqproxy.emitted": at, "nfqproxy.time": at, "nfqproxy.queue": int64(100), "nfqproxy.verdict": "dnat",
		"nfqproxy.reason": "balanced", "nfqproxy.local": false, "nfqproxy.source_pod": "default/shell", "nfqproxy.service": "default/web:http",
		"nfqproxy.entry": "cluster-ip", "nfqproxy.endpoint": "10.244.2.2:8080", "nfqproxy.candidates.count": int64(1), "nfqproxy.excluded.count": int64(0),
		"nfqproxy.draw": 0.25, "nfqproxy.masquerade": false, "nfqproxy.generation": int64(math.MaxInt64), "nfqproxy.table_age": 1.5,
		"nfqproxy.stages.waited": 0.5, "nfqproxy.stages.decided": 0.25, "nfqproxy.stages.written": 0.125, "nfqproxy.stages.accepted": 0.0625,
		"nfqproxy.life.state": "answered", "nfqproxy.life.since": at, "nfqproxy.life.answered": true, "nfqproxy.life.over": false,
		"nfqproxy.life.sent.packets": int64(2), "nfqproxy.life.sent.bytes": int64(120), "nfqproxy.life.duration": 0.0, "nfqproxy.life.repeated": int64(3),
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("(-want +have)\n%s", diff)
	}
	v6 := &flow.Record{Protocol: "UDP", Source: "[fd00::1]:53", Destination: "[fd00::2]:54"}
	if list := attributes(v6); !slices.Contains(list, attribute.String("network.type", "ipv6")) || !slices.Contains(list, attribute.String("destination.address", "fd00::2")) {
		t.Errorf("IPv6: %v", list)
	}
}

// TestTraceID: the node that translates and the next one, which sees the translated tuple, have one ID.
func TestTraceID(t *testing.T) {
	first := record()
	later := first.Time.Add(2 * time.Second)
	next := &flow.Record{Node: "node-b", ID: "xyz-1", Time: &later, Verdict: "accept", Protocol: "TCP", Source: first.Source, Destination: first.Endpoint}
	if traceID(first) != traceID(next) {
		t.Error("the next node has another ID")
	}
	masqueraded := record()
	masqueraded.Masquerade, masqueraded.MasqueradeAddress = true, "172.21.0.2"
	next.Source = "172.21.0.2:40000"
	if traceID(masqueraded) != traceID(next) {
		t.Error("masqueraded, with the same port: the next node has another ID")
	}
	masqueraded.Life.SeenSource, next.Source = "172.21.0.2:1024", "172.21.0.2:1024"
	if traceID(masqueraded) != traceID(next) {
		t.Error("masqueraded, with a port of the kernel: the next node has another ID")
	}
	distinct := map[string]bool{}
	for name, change := range map[string]func(*flow.Record){
		"protocol": func(r *flow.Record) { r.Protocol = "UDP" }, "source": func(r *flow.Record) { r.Source = "10.244.1.2:40001" },
		"endpoint": func(r *flow.Record) { r.Endpoint = "10.244.2.3:8080" }, "hour": func(r *flow.Record) { *r.Time = r.Time.Add(time.Hour) }, "none": func(*flow.Record) {},
	} {
		r := record()
		change(r)
		if id := traceID(r).String(); distinct[id] {
			t.Errorf("%s: the same ID", name)
		} else {
			distinct[id] = true
		}
	}
	if a, b := record(), record(); spanID(a) != spanID(b) || !spanID(a).IsValid() {
		t.Error("the events of a flow have several span IDs")
	}
}

func TestSample(t *testing.T) {
	const flows = 20000
	in := map[float64]int{1: 0, 0.5: 0, 0.01: 0}
	for i := range flows {
		r := record()
		r.Source = fmt.Sprintf("10.244.%d.%d:%d", i%7, i%250, i)
		for share := range in {
			if sampled(traceID(r), share) {
				in[share]++
				if !sampled(traceID(r), 1) {
					t.Fatal("a smaller sample is not part of a larger one")
				}
			}
		}
	}
	for share, n := range in {
		// Six standard deviations.
		if deviation := 6*math.Sqrt(flows*share*(1-share)) + 1e-9; math.Abs(float64(n)-flows*share) > deviation {
			t.Errorf("%d of %d flows are in a sample of %g", n, flows, share)
		}
	}
}

// TestTemporary: a request is sent again where OTLP's specification allows it.
func TestTemporary(t *testing.T) {
	throttled, err := status.New(codes.ResourceExhausted, "later").WithDetails(&errdetails.RetryInfo{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []struct {
		err  error
		want bool
	}{
		{status.Error(codes.Unavailable, ""), true},
		{fmt.Errorf("traces export: %w", status.Error(codes.DeadlineExceeded, "")), true},
		{throttled.Err(), true},
		{status.Error(codes.ResourceExhausted, "message larger than max"), false},
		{status.Error(codes.Unimplemented, ""), false},
		{status.Error(codes.Unauthenticated, ""), false},
		{errors.New("no status"), false},
	} {
		if temporary(e.err) != e.want {
			t.Errorf("%v: temporary is %t", e.err, !e.want)
		}
	}
}
