// Package otlp exports flows and metrics to an OpenTelemetry collector, by OTLP over gRPC: a log record
// for each event of a flow, a span for each decision, and the metrics of package metrics.
//
// It follows the flow API of a node, so a slow or absent collector delays no packet. What the queue of a signal
// drops before the collector has taken it is lost, and counted.
//
// Headers, TLS, compression, timeouts and resource attributes come from the environment: see the
// variables OTEL_EXPORTER_OTLP_*, OTEL_METRIC_EXPORT_INTERVAL and OTEL_RESOURCE_ATTRIBUTES in
// OpenTelemetry's specification.
package otlp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// The signals.
const (
	Logs    = "logs"
	Metrics = "metrics"
	Traces  = "traces"
)

// Signals lists the signals.
func Signals() []string { return []string{Logs, Metrics, Traces} }

// Config is the configuration of an export.
type Config struct {
	// Endpoint is the collector's URL: http://HOST:PORT, without TLS, or https://HOST:PORT.
	Endpoint string
	Signals  []string
	// Sample is the share of connections whose log records and spans are exported: more than 0, and
	// at most 1. All nodes select the same connections.
	Sample float64

	Node    string // name of the node
	Version string // of this program
	Log     *slog.Logger
	// Records is the rate limit of each signal, in records per second; 0: 5,000.
	Records int
	// Buffer is how many records of each signal wait for the collector; 0: 16,384, each of about 1 KiB.
	Buffer int
}

// Source is the source of the exported data.
type Source struct {
	// Follow follows the flows of one node: see [remote.Client.Follow].
	Follow  func(ctx context.Context, q observe.FlowQuery, began func(), each func(observe.Item) error) error
	Metrics prometheus.Gatherer
}

// Check validates the fields that users set.
func (c *Config) Check() error {
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.User != nil {
		return fmt.Errorf("endpoint %q: want http://HOST:PORT or, with TLS, https://HOST:PORT of a collector that takes OTLP over gRPC; its usual port is 4317", c.Endpoint)
	}
	if len(c.Signals) == 0 {
		return fmt.Errorf("no signals: want one or more of %s", strings.Join(Signals(), ", "))
	}
	for _, s := range c.Signals {
		if !slices.Contains(Signals(), s) {
			return fmt.Errorf("signal %q: want one of %s", s, strings.Join(Signals(), ", "))
		}
	}
	if !(c.Sample > 0 && c.Sample <= 1) { // NaN is neither
		return fmt.Errorf("sample %v: want more than 0, and at most 1", c.Sample)
	}
	return nil
}

// Exporter exports from its start until it is closed.
type Exporter struct {
	config  Config
	pipes   []*pipe
	metrics *metricPipe // nil: not exported
	stop    context.CancelFunc
	done    sync.WaitGroup
}

// DefaultBuffer is the default of [Config.Buffer].
const DefaultBuffer = 16384

// flushTime is how long Close waits for the collector.
const flushTime = 5 * time.Second

// Open reads the environment, and the files that it names. What it cannot use is an error; an
// unreachable collector is not.
func Open(c Config) (*Exporter, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	c.Records, c.Buffer = cmp.Or(c.Records, 5000), cmp.Or(c.Buffer, DefaultBuffer)
	described, err := resource.New(context.Background(), resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", "nfqproxy"), attribute.String("service.version", c.Version), attribute.String("service.instance.id", c.Node),
		attribute.String("k8s.node.name", c.Node),
	), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	complaints := listenToLibrary(c.Log)
	e := &Exporter{config: c}
	for _, of := range []struct {
		signal string
		open   func(*resource.Resource) error
	}{{Logs, e.openLogs}, {Traces, e.openTraces}, {Metrics, e.openMetrics}} {
		if err == nil && slices.Contains(c.Signals, of.signal) {
			err = of.open(described)
		}
	}
	if err = errors.Join(err, complaints.end()); err != nil {
		e.shutdown()
		return nil, fmt.Errorf("environment of the OpenTelemetry export: %w", err)
	}
	return e, nil
}

// Start exports what happens from now on. It is called at most once; Close has to follow.
func (e *Exporter) Start(s Source) {
	ctx, stop := context.WithCancel(context.Background())
	e.stop = stop
	for _, p := range e.pipes {
		e.done.Go(func() { p.run(ctx) })
	}
	if len(e.pipes) > 0 {
		f := &feed{follow: s.Follow, pipes: e.pipes, began: e.begun, log: e.config.Log}
		e.done.Go(func() { f.run(ctx) })
	} else {
		e.begun()
	}
	if e.metrics != nil {
		e.metrics.start(s.Metrics)
	}
}

// begun reports the start: what happens from now on is exported.
func (e *Exporter) begun() {
	e.config.Log.Info("exporting to an OpenTelemetry collector", "endpoint", e.config.Endpoint, "signals", strings.Join(e.config.Signals, ","))
}

// Close exports what happened until now, for at most five seconds. The rest is lost; it is logged.
func (e *Exporter) Close() {
	if e.stop == nil {
		e.shutdown()
		return // it did not start
	}
	e.stop()
	if e.metrics != nil {
		e.done.Go(e.metrics.flush)
	}
	e.done.Wait()
	e.shutdown()
	for _, x := range e.States() {
		if x.Unsent > 0 && x.Signal != Metrics {
			e.config.Log.Warn("the OpenTelemetry collector did not take the last records in time", "signal", x.Signal, "lost", x.Unsent, "error", x.Error)
		}
	}
}

// shutdown closes the connections.
func (e *Exporter) shutdown() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // there is nothing left to send
	for _, p := range e.pipes {
		_ = p.close(ctx)
	}
	if e.metrics != nil {
		_ = e.metrics.exporter.Shutdown(ctx)
	}
}

// States returns the state of each signal. It is safe for concurrent use.
func (e *Exporter) States() (list []State) {
	for _, p := range e.pipes {
		list = append(list, p.counts.state())
	}
	if e.metrics != nil {
		list = append(list, e.metrics.counts.state())
	}
	return list
}
