package otlp

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/nodepath"
	"github.com/nfqproxy/nfqproxy/datapath/flow/vocabulary"
)

// reuse bounds how long a tuple means the same connection: its flows of one period have the same trace.
const reuse = time.Hour

// traceID is the ID of a connection's trace. It is made of the tuple that the next node of its path sees,
// so the decisions of all nodes about a connection are in one trace.
func traceID(r *flow.Record) (id trace.TraceID) {
	var period int64
	if r.Time != nil {
		period = r.Time.Unix() / int64(reuse/time.Second)
	}
	source, destination, _ := nodepath.Outgoing(r)
	b := make([]byte, 0, 128)
	for _, text := range []string{r.Protocol, source, destination} {
		b = append(append(b, text...), ' ')
	}
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(b, uint64(period)))
	copy(id[:], sum[:])
	return id
}

// spanID is the ID of the span of a flow's decision.
func spanID(r *flow.Record) (id trace.SpanID) {
	sum := sha256.Sum256([]byte(r.ID))
	copy(id[:], sum[:])
	return id
}

func spanContext(r *flow.Record) trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID(r), SpanID: spanID(r), TraceFlags: trace.FlagsSampled})
}

// sampled reports whether a trace is in a sample of a share of all: by its low 56 bits, as
// OpenTelemetry's samplers do.
func sampled(id trace.TraceID, share float64) bool {
	const all = 1 << 56
	return binary.BigEndian.Uint64(id[8:])%all >= uint64(math.Round((1-share)*all))
}

// idKey is the key of a span's IDs in the context that it is started with.
type idKey struct{}

// givenIDs are the IDs of the context.
type givenIDs struct{}

func (givenIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	c, _ := ctx.Value(idKey{}).(trace.SpanContext)
	return c.TraceID(), c.SpanID()
}

func (g givenIDs) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	_, id := g.NewIDs(ctx)
	return id
}

// madeSpans are the spans that the SDK makes.
type madeSpans struct{ made[sdktrace.ReadOnlySpan] }

func (m *madeSpans) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (m *madeSpans) OnEnd(s sdktrace.ReadOnlySpan)                   { m.list = append(m.list, s) }

// openTraces exports a span for each decision.
func (e *Exporter) openTraces(described *resource.Resource) error {
	p := e.newPipe(Traces)
	p.decisions = true
	exporter, err := otlptracegrpc.New(context.Background(), otlptracegrpc.WithEndpointURL(e.config.Endpoint),
		otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{}), otlptracegrpc.WithDialOption(grpc.WithUnaryInterceptor(p.countRejected)))
	if err != nil {
		return err
	}
	var m madeSpans
	tracer := sdktrace.NewTracerProvider(sdktrace.WithResource(described), sdktrace.WithSampler(sdktrace.AlwaysSample()),
		sdktrace.WithIDGenerator(givenIDs{}), sdktrace.WithSpanProcessor(&m)).Tracer(scope, trace.WithInstrumentationVersion(e.config.Version))
	e.add(p, m.requests(func(r *flow.Record) { span(tracer, r) }, exporter.ExportSpans), exporter.Shutdown)
	return nil
}

// span makes the span of a decision: from the packet's arrival, or else from its reading, until the
// kernel has the verdict. Its events are the stages in between.
func span(tracer trace.Tracer, r *flow.Record) {
	var at time.Time
	if r.Time != nil {
		at = *r.Time
	}
	state := r.Event // the decision
	own := *r
	own.Event, own.Emitted, own.Life, own.Stages, own.Time = 0, nil, nil, nil, nil
	start, end := at, at
	type stage struct {
		name string
		at   time.Time
	}
	var stages []stage
	if s := r.Stages; s != nil {
		read := at.Add(-seconds(s.Decided))
		written := at.Add(seconds(s.Written))
		stages = []stage{{"read", read}, {"decided", at}, {"written", written}}
		start, end = read, written.Add(seconds(s.Accepted))
		if s.Waited != nil {
			start = read.Add(-seconds(*s.Waited))
		}
	}
	name := "decision"
	if r.Service != "" {
		name += " " + r.Service
	}
	_, s := tracer.Start(context.WithValue(context.Background(), idKey{}, spanContext(r)), name,
		trace.WithTimestamp(start), trace.WithSpanKind(trace.SpanKindInternal), trace.WithAttributes(attributes(&own)...))
	for _, stage := range stages {
		s.AddEvent(stage.name, trace.WithTimestamp(stage.at))
	}
	if vocabulary.StateOf(state).IsError() {
		s.SetStatus(otelcodes.Error, state.String()+": "+r.Reason)
	}
	s.SetAttributes(attribute.String("nfqproxy.state", state.String()))
	s.End(trace.WithTimestamp(end))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
