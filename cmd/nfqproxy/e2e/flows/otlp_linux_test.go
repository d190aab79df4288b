package flows

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// exporting waits until an export follows the flows of its daemon: those from then on are exported.
func exporting(t *testing.T, export *e2etest.Daemon) {
	t.Helper()
	e2etest.Eventually(t, e2etest.Timeout, "an export", func() bool {
		return strings.Contains(export.Log(), "exporting to an OpenTelemetry collector")
	})
}

// TestOTLP: a real collector gets a span for each decision, a log record for each event, and the
// metrics: those that the flow log and the flow API have, and no others. The decisions of two nodes about
// one connection are in one trace.
func TestOTLP(t *testing.T) {
	t.Parallel()
	program := requireCollector(t)
	c := e2etest.NewCluster(t)
	o := startCollector(t, program, c.Host("node-a"), "0.0.0.0:4317", "", t.TempDir())
	exports := make(map[string]*e2etest.Daemon)
	for _, node := range []string{"node-a", "node-b"} {
		exports[node] = c.Export(node, []string{"OTEL_METRIC_EXPORT_INTERVAL=500", "OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=test"}, "--otlp-endpoint", "http://172.21.0.2:4317")
		exporting(t, exports[node])
	}

	for range 6 {
		for _, from := range []struct{ host, to string }{{"shell", "10.96.0.20:80"}, {"outside", "172.21.0.2:30080"}} {
			conn := c.Dial(from.host, "tcp", e2etest.AnyPort, from.to)
			c.Ask(conn)
			c.Record("dnat", "TCP", conn.LocalAddr(), conn.RemoteAddr())
			_ = conn.Close()
		}
	}
	conn := c.Dial("shell", "udp", e2etest.AnyPort, "10.96.0.30:53")
	c.Ask(conn)
	for _, host := range []string{"shell", "web-2"} { // of both nodes
		c.Sync(host)
	}

	// Nothing happens any more, but for what the kernel still reports of the flows' ends.
	nodes := []string{"node-a", "node-b"}
	e2etest.Eventually(t, e2etest.Timeout, "spans of all flows", func() bool {
		return len(spansByID(t, o)) >= len(flowLog(c, ""))
	})
	histories := make(map[string][]string)
	for _, node := range nodes {
		observer, err := c.NodeObserver(node)
		c.Must(err)
		status, err := observer.Status(t.Context())
		c.Must(err)
		if s := status[0].Daemon.Confinement; s.SystemCalls == 0 {
			t.Errorf("%s is not confined: %s", node, s)
		}
		e2etest.Eventually(t, e2etest.Timeout, "log records of all events of "+node, func() bool {
			events := eventsByID(o)
			for id := range flowLog(c, node) {
				r, err := observer.Flow(t.Context(), id)
				c.Must(err)
				histories[id] = nil
				for _, m := range r.Life.History {
					histories[id] = append(histories[id], "nfqproxy.flow."+m.Event.String())
				}
				if len(events[id]) < len(histories[id]) {
					return false
				}
			}
			return true
		})
	}
	for _, node := range nodes {
		exports[node].Stop(syscall.SIGTERM)
	}

	o.Stop(syscall.SIGTERM) // it writes its files now and then, and at its end

	spans, log := spansByID(t, o), flowLog(c, "")
	for id := range log {
		if _, there := spans[id]; !there {
			t.Errorf("the collector has no span of flow %s, which is in the flow log", id)
		}
	}
	decided := make(map[string]int) // by node
	for id, s := range spans {
		decided[s.Node]++
		// The test may have missed the exports' first attempts to reach the collector.
		if log[id] == nil && s.Attributes["destination.port"] != "4317" {
			t.Errorf("the collector has a span of flow %s, which is not in the flow log: %v", id, s.Attributes)
		}
	}
	for id, r := range log {
		checkSpan(t, spans[id], r)
	}
	checkTraces(t, spans, log)

	events := eventsByID(o)
	for id, want := range histories {
		if have := events[id]; !slices.Equal(have[:min(len(have), len(want))], want) {
			t.Errorf("%s: the collector has the events %q, want %q", id, have, want)
		}
	}
	for _, l := range o.logs() {
		if l.EventName == "nfqproxy.flow.repeated" {
			decided[l.Node]++
		}
		id := l.Attributes["nfqproxy.id"]
		if s := spans[id]; l.TraceID != s.TraceID || l.SpanID != s.SpanID || l.Node != s.Node || l.TimeUnixNano == 0 || !strings.Contains(l.Body.StringValue, l.Attributes["source.address"]) {
			t.Errorf("log record %+v, with the span %+v", l, s)
		}
	}
	for _, node := range nodes {
		if n, _ := o.total(node, "nfqproxy_flows_total"); n != float64(decided[node]) {
			t.Errorf("%s: the collector's metrics have %g decisions, want %d as in its spans and log records", node, n, decided[node])
		}
	}
}

// flowLog is the flow log of a node, or of all: the decision of each flow.
func flowLog(c *e2etest.Cluster, node string) map[string]*flow.Record {
	byID := make(map[string]*flow.Record)
	for _, r := range c.Records() {
		if (node == "" || r.Node == node) && r.Event != flow.Repeated {
			byID[r.ID] = r
		}
	}
	return byID
}

func spansByID(t *testing.T, o *collector) map[string]exportedSpan {
	t.Helper()
	byID := make(map[string]exportedSpan)
	for _, s := range o.spans() {
		byID[s.Attributes["nfqproxy.id"]] = s
	}
	return byID
}

// eventsByID are the names of the log records of each flow, in the order of their arrival.
func eventsByID(o *collector) map[string][]string {
	byID := make(map[string][]string)
	for _, l := range o.logs() {
		id := l.Attributes["nfqproxy.id"]
		byID[id] = append(byID[id], l.EventName)
	}
	return byID
}

func checkSpan(t *testing.T, s exportedSpan, r *flow.Record) {
	t.Helper()
	source, destination := netip.MustParseAddrPort(r.Source), netip.MustParseAddrPort(r.Destination)
	want := attributes{
		"network.transport": strings.ToLower(r.Protocol), "source.address": source.Addr().String(), "source.port": fmt.Sprint(source.Port()),
		"destination.address": destination.Addr().String(), "destination.port": fmt.Sprint(destination.Port()),
		"nfqproxy.verdict": r.Verdict, "nfqproxy.reason": r.Reason, "nfqproxy.endpoint": r.Endpoint, "nfqproxy.service": r.Service, "nfqproxy.source_pod": r.SourcePod,
		"nfqproxy.masquerade": fmt.Sprint(r.Masquerade), "nfqproxy.candidates.count": fmt.Sprint(len(r.Candidates)),
	}
	for key, value := range want {
		if s.Attributes[key] != value {
			t.Errorf("span of %s: %s is %q, want %q", r.ID, key, s.Attributes[key], value)
		}
	}
	at := r.Time.UnixNano()
	var names []string
	last := s.StartTimeUnixNano
	for _, e := range s.Events {
		names = append(names, e.Name)
		if e.TimeUnixNano < last || e.TimeUnixNano > s.EndTimeUnixNano || e.Name == "decided" && e.TimeUnixNano != at {
			t.Errorf("span of %s: event %+v, in %d to %d", r.ID, e, s.StartTimeUnixNano, s.EndTimeUnixNano)
		}
		last = e.TimeUnixNano
	}
	if s.Node != r.Node || s.Service != "nfqproxy" || !slices.Equal(names, []string{"read", "decided", "written"}) {
		t.Errorf("span of %s: %+v", r.ID, s)
	}
	const failed = 2 // STATUS_CODE_ERROR
	if refused := r.Verdict == "reject"; refused != (s.Status.Code == failed) {
		t.Errorf("span of %s: verdict %s, status %d", r.ID, r.Verdict, s.Status.Code)
	}
}

// checkTraces: decisions are in one trace if and only if they are about one connection.
func checkTraces(t *testing.T, spans map[string]exportedSpan, log map[string]*flow.Record) {
	t.Helper()
	traces := make(map[string][]*flow.Record)
	for id, r := range log {
		traces[spans[id].TraceID] = append(traces[spans[id].TraceID], r)
	}
	joined := make(map[string]int) // by the kind of the translating node's decision
	for trace, list := range traces {
		if len(list) == 1 {
			continue
		}
		slices.SortFunc(list, func(a, b *flow.Record) int { return a.Time.Compare(*b.Time) })
		first, second := list[0], list[1]
		if len(list) != 2 || first.Node == second.Node || second.Verdict != "accept" || first.Verdict == "dnat" && second.Destination != first.Endpoint {
			t.Errorf("trace %s has\n%s %s %s > %s %s\n%s %s %s > %s, and %d in all", trace, first.Node, first.Verdict, first.Source, first.Destination, first.Endpoint,
				second.Node, second.Verdict, second.Source, second.Destination, len(list))
		}
		joined[first.MasqueradeReason+" "+first.Verdict]++
	}
	remote := make(map[string]int)
	for _, r := range log {
		if r.Verdict == "dnat" && r.EndpointNode != r.Node {
			remote[r.MasqueradeReason+" dnat"]++
		}
	}
	for _, kind := range []string{" dnat", "external dnat"} {
		if remote[kind] == 0 || joined[kind] != remote[kind] {
			t.Errorf("%d connections of kind %q to another node, of which %d have a trace of both nodes", remote[kind], kind, joined[kind])
		}
	}
}

// TestOTLPLosses: while the collector is away, or does not answer, flows are decided as ever. What the
// memory of flows does not hold until it is back is counted: received and lost are what was decided.
func TestOTLPLosses(t *testing.T) {
	t.Parallel()
	program := requireCollector(t)
	for name, interrupt := range map[string]func(*collector) (resume func() *collector){
		"away": func(o *collector) func() *collector {
			o.Stop(syscall.SIGKILL)
			return nil
		},
		"stuck": func(o *collector) func() *collector {
			if err := syscall.Kill(o.PID(), syscall.SIGSTOP); err != nil {
				o.t.Fatal(err)
			}
			return func() *collector {
				if err := syscall.Kill(o.PID(), syscall.SIGCONT); err != nil {
					o.t.Fatal(err)
				}
				return o
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const address = "127.0.0.1:4317"
			c := e2etest.NewClusterWith(t, []string{"--scope", "services"})
			dir := t.TempDir()
			start := func() *collector { return startCollector(t, program, c.Host("node-a"), address, "", dir) }
			o := start()
			observer, err := c.NodeObserver("node-a")
			c.Must(err)
			export := c.Export("node-a", []string{"OTEL_EXPORTER_OTLP_TIMEOUT=1000"}, "--otlp-endpoint", "http://"+address, "--otlp-buffer", "1024", "--metrics-bind-address", "127.0.0.1:10255")
			exporting(t, export)
			// spans are the export's own metrics of the signal.
			spans := func() (delivered, lost, failing float64) {
				return otlpMetric(c, "delivered_total", ""), otlpMetric(c, "lost_total", ""), otlpMetric(c, "failing", "")
			}
			made := 0
			flows := func(n int) {
				for range n {
					// A port that the kernel selects may have been another flow's.
					from := netip.AddrPortFrom(c.AddressOf("shell", decision.IPv4), uint16(20000+made))
					conn := c.Dial("shell", "udp", from, "10.96.0.40:53")
					_, err := conn.Write([]byte("anybody?"))
					c.Must(err, conn.Close())
					made++
				}
			}
			settled := func() bool {
				delivered, lost, failing := spans()
				return delivered+lost == float64(made) && failing == 0
			}
			flows(20)
			e2etest.Eventually(t, e2etest.Timeout, "20 spans", func() bool { return settled() && len(spansByID(t, o)) == made })

			resume := interrupt(o)
			flows(20) // these are in a request that fails
			e2etest.Eventually(t, e2etest.Timeout, "a failed request", func() bool { _, _, failing := spans(); return failing == 1 })
			e2etest.Eventually(t, e2etest.Timeout, "the failure in the log", func() bool {
				return strings.Contains(export.Log(), "cannot export traces to the OpenTelemetry collector")
			})
			flows(2000)
			if resume == nil {
				o = start()
			} else {
				o = resume()
			}
			flows(20) // a gap is seen after it
			e2etest.Eventually(t, e2etest.Timeout, "a collector that gets spans again", settled)

			delivered, lost, _ := spans()
			if evicted := otlpMetric(c, "lost_total", "evicted"); evicted == 0 || evicted != lost {
				t.Errorf("%g are lost, and %g of them evicted; want evicted ones only", lost, evicted)
			}
			e2etest.Eventually(t, e2etest.Timeout, "all spans in the file", func() bool { return len(spansByID(t, o)) == int(delivered) })
			stats, err := observer.Stats(t.Context())
			c.Must(err)
			if n := stats[0].Verdicts["reject"]; n != uint64(made) {
				t.Errorf("%d flows were decided, want %d", n, made)
			}
		})
	}
}

// otlpMetric is the sum of a metric about spans, of an export with --metrics-bind-address 127.0.0.1:10255.
func otlpMetric(c *e2etest.Cluster, name, reason string) (sum float64) {
	c.T.Helper()
	_, text := c.Get("node-a", 10255, "/metrics")
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "nfqproxy_otlp_"+name+"{") || !strings.Contains(line, `signal="traces"`) || reason != "" && !strings.Contains(line, `reason="`+reason+`"`) {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
		c.Must(err)
		sum += n
	}
	return sum
}

// TestOTLPWithTLS: certificates of both sides are named by the environment. So is the sample: of the
// flows' log records and spans the same are exported.
func TestOTLPWithTLS(t *testing.T) {
	t.Parallel()
	program := requireCollector(t)
	ca := newAuthority(t)
	serverCert, serverKey := ca.issue("collector", nil, "127.0.0.1")
	clientCert, clientKey := ca.issue("daemon", nil)
	c := e2etest.NewClusterWith(t, []string{"--scope", "services"})
	o := startCollector(t, program, c.Host("node-a"), "127.0.0.1:4317", fmt.Sprintf(", tls: {cert_file: %s, key_file: %s, client_ca_file: %s}", serverCert, serverKey, ca.file), t.TempDir())
	export := c.Export("node-a", []string{"OTEL_EXPORTER_OTLP_CERTIFICATE=" + ca.file, "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=" + clientCert, "OTEL_EXPORTER_OTLP_CLIENT_KEY=" + clientKey},
		"--otlp-endpoint", "https://127.0.0.1:4317", "--otlp-signals", "traces,logs", "--otlp-sample", "0.5")
	exporting(t, export)
	const flows = 100 // none or all of them are in the sample by chance of 2^-100
	for i := range flows {
		from := netip.AddrPortFrom(c.AddressOf("shell", decision.IPv4), uint16(20000+i))
		conn := c.Dial("shell", "udp", from, "10.96.0.40:53")
		_, err := conn.Write([]byte("anybody?"))
		c.Must(err, conn.Close())
	}
	c.WaitRecords(flows, "all flows", func(r *flow.Record) bool { return r.Verdict == "reject" })
	e2etest.Eventually(t, e2etest.Timeout, "the first spans", func() bool { return len(o.spans()) > 0 })
	export.Stop(syscall.SIGTERM)
	o.Stop(syscall.SIGTERM)
	spans, events := spansByID(t, o), eventsByID(o)
	if have, want := slices.Sorted(maps.Keys(spans)), slices.Sorted(maps.Keys(events)); !slices.Equal(have, want) || len(have) == flows {
		t.Errorf("spans of the flows %q, log records of %q", have, want)
	}
	if _, found := o.total("node-a", "nfqproxy_flows_total"); found {
		t.Error("metrics are exported, which were not asked for")
	}
}
