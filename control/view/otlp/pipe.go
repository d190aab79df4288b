package otlp

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	collogspb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

const (
	// batch is the maximum number of records of a request: less than 1 MiB, and collectors take 4.
	batch = 512
	// gather is how long records wait for others, and gatherStep how often it is checked whether there
	// are enough for a request.
	gather, gatherStep = time.Second, 50 * time.Millisecond
	// firstRetry and lastRetry bound the time between two attempts to send a request.
	firstRetry, lastRetry = time.Second, 30 * time.Second
)

// counts are those of one signal.
type counts struct {
	signal, endpoint string
	log              *slog.Logger

	delivered, evicted, rejected, overflow, unsent atomic.Uint64
	// problem is why the latest request failed; nil: it did not.
	problem atomic.Pointer[string]
}

func (c *counts) state() State {
	x := State{
		Signal: c.signal, Delivered: c.delivered.Load(),
		Evicted: c.evicted.Load(), Rejected: c.rejected.Load(), Overflow: c.overflow.Load(), Unsent: c.unsent.Load(),
	}
	if p := c.problem.Load(); p != nil {
		x.Error = *p
	}
	return x
}

// attempted notes the result of a request, and logs it if it is another one than before.
func (c *counts) attempted(err error) {
	if err == nil {
		if c.problem.Swap(nil) != nil {
			c.log.Info("the OpenTelemetry collector takes "+c.signal+" again", "endpoint", c.endpoint)
		}
		return
	}
	text := err.Error()
	if c.problem.Swap(&text) == nil {
		c.log.Warn("cannot export "+c.signal+" to the OpenTelemetry collector; trying again, unless it has rejected them", "endpoint", c.endpoint, "error", err)
	}
}

func (e *Exporter) newCounts(signal string) *counts {
	return &counts{signal: signal, endpoint: e.config.Endpoint, log: e.config.Log}
}

// pipe exports one signal that is made of the events of flows.
type pipe struct {
	*counts
	// decisions: only the first event of each flow is exported.
	decisions bool
	sample    float64
	rate      int
	// request makes a request of records: each call of the result sends it.
	request func([]*flow.Record) func(context.Context) error
	// partial is how many records the collector rejected of the latest request that it took.
	partial int
	// close releases the connection.
	close func(context.Context) error
	queue *queue
}

func (e *Exporter) newPipe(signal string) *pipe {
	return &pipe{counts: e.newCounts(signal), sample: e.config.Sample, rate: e.config.Records, queue: newQueue(e.config.Buffer)}
}

// add adds a pipe to those that Start starts. request and shutdown are its request and its close.
func (e *Exporter) add(p *pipe, request func([]*flow.Record) func(context.Context) error, shutdown func(context.Context) error) {
	p.request, p.close = request, shutdown
	e.pipes = append(e.pipes, p)
}

// made is what the SDK makes of the records of a request: log records, or spans. Embedded in a processor of the
// SDK, which appends to the list, it has nothing to flush.
type made[T any] struct{ list []T }

func (m *made[T]) Shutdown(context.Context) error   { return nil }
func (m *made[T]) ForceFlush(context.Context) error { return nil }

// requests returns the request of a pipe: convert has the SDK make its value of one record, and export sends all.
func (m *made[T]) requests(convert func(*flow.Record), export func(context.Context, []T) error) func([]*flow.Record) func(context.Context) error {
	return func(records []*flow.Record) func(context.Context) error {
		m.list = nil
		for _, r := range records {
			convert(r)
		}
		list := m.list
		return func(ctx context.Context) error { return export(ctx, list) }
	}
}

// countRejected is an interceptor that takes the number of rejected records out of a response: the
// exporters do not return it.
func (p *pipe) countRejected(ctx context.Context, method string, request, response any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	err := invoke(ctx, method, request, response, conn, options...)
	switch r := response.(type) {
	case *collogspb.ExportLogsServiceResponse:
		p.partial, r.PartialSuccess = int(r.GetPartialSuccess().GetRejectedLogRecords()), nil
	case *coltracepb.ExportTraceServiceResponse:
		p.partial, r.PartialSuccess = int(r.GetPartialSuccess().GetRejectedSpans()), nil
	}
	return err
}

// run exports until the context ends, and then, for at most flushTime, what is left.
func (p *pipe) run(ctx context.Context) {
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(flushTime, cancel) })()
	for stopping := false; !stopping; {
		p.queue.wait(ctx)
		p.gather(ctx)
		stopping = ctx.Err() != nil // one last time, then
		for more := true; more; {
			began := time.Now()
			records := p.queue.take(batch)
			more = len(records) == batch
			if n := p.deliver(sending, records); !stopping {
				p.pause(ctx, began, n)
			}
		}
	}
}

// gather waits until there are enough events for a request, but not for long.
func (p *pipe) gather(ctx context.Context) {
	for end := time.Now().Add(gather); time.Now().Before(end) && p.queue.len() < batch; {
		wait(ctx, gatherStep)
		if ctx.Err() != nil {
			return
		}
	}
}

// pause keeps to the rate limit after a request with records.
func (p *pipe) pause(ctx context.Context, began time.Time, records int) {
	wait(ctx, time.Until(began.Add(time.Duration(records)*time.Second/time.Duration(p.rate))))
}

func wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// deliver sends the records that are in the sample, until the collector takes or rejects them or the
// context ends. It returns their number.
func (p *pipe) deliver(ctx context.Context, records []*flow.Record) int {
	records = slices.DeleteFunc(records, func(r *flow.Record) bool { return !sampled(traceID(r), p.sample) })
	if len(records) == 0 {
		return 0
	}
	n := uint64(len(records))
	send := p.request(records)
	interval := backoff.NewExponentialBackOff()
	interval.InitialInterval, interval.MaxInterval = firstRetry, lastRetry
	_, err := backoff.Retry(ctx, func() (none struct{}, err error) {
		if ctx.Err() != nil {
			return none, ctx.Err()
		}
		p.partial = 0
		err = send(ctx)
		p.attempted(err)
		if err != nil && !temporary(err) {
			err = backoff.Permanent(err)
		}
		return none, err
	}, backoff.WithBackOff(interval), backoff.WithMaxElapsedTime(0))
	switch {
	case err == nil:
		rejected := min(n, uint64(p.partial))
		p.rejected.Add(rejected)
		p.delivered.Add(n - rejected)
	case ctx.Err() != nil:
		p.unsent.Add(n)
	default:
		p.rejected.Add(n)
	}
	return len(records)
}

// temporary reports whether a request may succeed later: see "Failures" of OTLP/gRPC in
// OpenTelemetry's specification.
func temporary(err error) bool {
	s, _ := status.FromError(err)
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss:
		return true
	case codes.ResourceExhausted: // otherwise the request is too large
		for _, d := range s.Details() {
			if _, ok := d.(*errdetails.RetryInfo); ok {
				return true
			}
		}
	}
	return false
}

// State is the state of the export of one signal.
type State struct {
	Signal    string // logs, traces or metrics
	Delivered uint64
	// Evicted records were not sent before newer ones needed their memory: the collector was away or too
	// slow. Rejected ones were not accepted by it. Overflow counts flows that were lost on the node before any reader
	// could see them. Unsent records were left at the end; of metrics, those of failed requests.
	Evicted, Rejected, Overflow, Unsent uint64
	// Error is the reason why the latest request failed; empty: it did not.
	Error string
}

// Lost is the number of items that were not delivered.
func (s *State) Lost() uint64 { return s.Evicted + s.Rejected + s.Overflow + s.Unsent }

var (
	descDelivered = prometheus.NewDesc("nfqproxy_otlp_delivered_total", "Log records and spans that the OpenTelemetry collector took, and exports of all metrics.", []string{"signal"}, nil)
	descLost      = prometheus.NewDesc("nfqproxy_otlp_lost_total", "Log records and spans that were not delivered, and failed exports of all metrics. Reason evicted: newer ones needed their memory, because the collector was away or slow; rejected: by the collector; overflow: the flow memory's input overflowed on the node; unsent: the request failed, or the export ended.", []string{"signal", "reason"}, nil)
	descFailing   = prometheus.NewDesc("nfqproxy_otlp_failing", "1 if the latest request failed.", []string{"signal"}, nil)
)

// Describe implements [prometheus.Collector].
func (e *Exporter) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descDelivered, descLost, descFailing} {
		to <- d
	}
}

// Collect implements [prometheus.Collector].
func (e *Exporter) Collect(to chan<- prometheus.Metric) {
	for _, x := range e.States() {
		to <- prometheus.MustNewConstMetric(descDelivered, prometheus.CounterValue, float64(x.Delivered), x.Signal)
		for reason, n := range map[string]uint64{"evicted": x.Evicted, "rejected": x.Rejected, "overflow": x.Overflow, "unsent": x.Unsent} {
			to <- prometheus.MustNewConstMetric(descLost, prometheus.CounterValue, float64(n), x.Signal, reason)
		}
		failing := 0.0
		if x.Error != "" {
			failing = 1
		}
		to <- prometheus.MustNewConstMetric(descFailing, prometheus.GaugeValue, failing, x.Signal)
	}
}
