package flows

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	benchcluster "github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// collector is a real OpenTelemetry collector, which writes what it receives to files.
type collector struct {
	*e2etest.Daemon
	t   *testing.T
	dir string
}

// collectorConfig has the collector append, so that a restarted one continues.
const collectorConfig = `
receivers:
  otlp:
    protocols:
      grpc: {endpoint: %[1]q%[3]s}
exporters:
  file/logs: {path: %[2]s/logs, append: true}
  file/traces: {path: %[2]s/traces, append: true}
  file/metrics: {path: %[2]s/metrics, append: true}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    logs: {receivers: [otlp], exporters: [file/logs]}
    traces: {receivers: [otlp], exporters: [file/traces]}
    metrics: {receivers: [otlp], exporters: [file/metrics]}
`

// requireCollector ends a test without the program.
func requireCollector(t *testing.T) (program string) {
	t.Helper()
	return clustertest.RequireProgram(t, benchcluster.OTelCollector)
}

// startCollector starts a collector that listens at an address of the namespace, with further settings of
// its server, and writes to files in the directory.
func startCollector(t *testing.T, program string, ns *netns.Namespace, address, settings, dir string) *collector {
	t.Helper()
	config := e2etest.WriteFile(t, "otelcol.yaml", fmt.Appendf(nil, collectorConfig, address, dir, settings))
	return &collector{e2etest.StartDaemon(t, ns, exec.Command(program, "--config", config)), t, dir}
}

// attributes are those of OTLP's JSON, with text for each value.
type attributes map[string]string

func (a *attributes) UnmarshalJSON(b []byte) error {
	var list []struct {
		Key   string
		Value struct {
			StringValue *string
			IntValue    *string
			BoolValue   *bool
			DoubleValue *float64
		}
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	*a = make(attributes)
	for _, l := range list {
		switch v := l.Value; {
		case v.StringValue != nil:
			(*a)[l.Key] = *v.StringValue
		case v.IntValue != nil:
			(*a)[l.Key] = *v.IntValue
		case v.BoolValue != nil:
			(*a)[l.Key] = strconv.FormatBool(*v.BoolValue)
		case v.DoubleValue != nil:
			(*a)[l.Key] = strconv.FormatFloat(*v.DoubleValue, 'g', -1, 64)
		}
	}
	return nil
}

type exportedResource struct{ Attributes attributes }

// exportedSpan is a span of a decision.
type exportedSpan struct {
	Node, Service     string // of the resource
	TraceID           string
	SpanID            string
	Name              string
	StartTimeUnixNano int64 `json:",string"`
	EndTimeUnixNano   int64 `json:",string"`
	Attributes        attributes
	Events            []struct {
		Name         string
		TimeUnixNano int64 `json:",string"`
	}
	Status struct{ Code int }
}

// exportedLog is the log record of an event.
type exportedLog struct {
	Node         string
	EventName    string
	TraceID      string
	SpanID       string
	TimeUnixNano int64 `json:",string"`
	SeverityText string
	Body         struct{ StringValue string }
	Attributes   attributes
}

// eachLine reads a file of the collector. The last line may not be complete.
func (c *collector) eachLine(file string, read func([]byte) error) {
	c.t.Helper()
	b, err := os.ReadFile(filepath.Join(c.dir, file))
	if err != nil && !os.IsNotExist(err) {
		c.t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		if bytes.HasSuffix(line, []byte("\n")) {
			if err := read(line); err != nil {
				c.t.Fatalf("%s: %v: %s", file, err, line)
			}
		}
	}
}

// spans are those received so far.
func (c *collector) spans() (list []exportedSpan) {
	c.t.Helper()
	c.eachLine("traces", func(line []byte) error {
		var data struct {
			ResourceSpans []struct {
				Resource   exportedResource
				ScopeSpans []struct{ Spans []exportedSpan }
			}
		}
		err := json.Unmarshal(line, &data)
		for _, r := range data.ResourceSpans {
			for _, s := range r.ScopeSpans {
				for _, span := range s.Spans {
					span.Node, span.Service = r.Resource.Attributes["k8s.node.name"], r.Resource.Attributes["service.name"]
					list = append(list, span)
				}
			}
		}
		return err
	})
	return list
}

// logs are the log records received so far.
func (c *collector) logs() (list []exportedLog) {
	c.t.Helper()
	c.eachLine("logs", func(line []byte) error {
		var data struct {
			ResourceLogs []struct {
				Resource  exportedResource
				ScopeLogs []struct{ LogRecords []exportedLog }
			}
		}
		err := json.Unmarshal(line, &data)
		for _, r := range data.ResourceLogs {
			for _, s := range r.ScopeLogs {
				for _, l := range s.LogRecords {
					l.Node = r.Resource.Attributes["k8s.node.name"]
					list = append(list, l)
				}
			}
		}
		return err
	})
	return list
}

// total is the sum of a node's latest values of a counter, and whether there are any.
func (c *collector) total(node, metric string) (sum float64, found bool) {
	c.t.Helper()
	c.eachLine("metrics", func(line []byte) error {
		var data struct {
			ResourceMetrics []struct {
				Resource     exportedResource
				ScopeMetrics []struct {
					Metrics []struct {
						Name string
						Sum  struct {
							IsMonotonic bool
							DataPoints  []struct{ AsDouble float64 }
						}
					}
				}
			}
		}
		err := json.Unmarshal(line, &data)
		for _, r := range data.ResourceMetrics {
			for _, s := range r.ScopeMetrics {
				for _, m := range s.Metrics {
					if r.Resource.Attributes["k8s.node.name"] != node || m.Name != metric {
						continue
					}
					sum, found = 0, true
					for _, p := range m.Sum.DataPoints {
						sum += p.AsDouble
					}
				}
			}
		}
		return err
	})
	return sum, found
}
