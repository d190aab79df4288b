package otlp

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploggrpc"
	otellog "go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/vocabulary"
)

// scope is the instrumentation scope of what this package exports.
const scope = "github.com/nfqproxy/nfqproxy"

// madeLogs are the log records that the SDK makes.
type madeLogs struct{ made[log.Record] }

func (m *madeLogs) OnEmit(_ context.Context, r *log.Record) error {
	m.list = append(m.list, r.Clone())
	return nil
}

func (m *madeLogs) Enabled(context.Context, log.EnabledParameters) bool { return true }

// openLogs exports a log record for each event of a flow.
func (e *Exporter) openLogs(described *resource.Resource) error {
	p := e.newPipe(Logs)
	exporter, err := otlploggrpc.New(context.Background(), otlploggrpc.WithEndpointURL(e.config.Endpoint),
		otlploggrpc.WithRetry(otlploggrpc.RetryConfig{}), otlploggrpc.WithDialOption(grpc.WithUnaryInterceptor(p.countRejected)))
	if err != nil {
		return err
	}
	var m madeLogs
	logger := log.NewLoggerProvider(log.WithResource(described), log.WithProcessor(&m)).Logger(scope, otellog.WithInstrumentationVersion(e.config.Version))
	e.add(p, m.requests(func(r *flow.Record) { emit(logger, r) }, exporter.Export), exporter.Shutdown)
	return nil
}

// emit makes a log record. It names the span of the flow's decision.
func emit(logger otellog.Logger, r *flow.Record) {
	var l otellog.Record
	l.SetEventName("nfqproxy.flow." + r.Event.String())
	l.SetSeverity(otellog.SeverityInfo)
	if vocabulary.StateOf(r.Event).IsError() {
		l.SetSeverity(otellog.SeverityWarn)
	}
	l.SetSeverityText(l.Severity().String())
	if at := text.EventTime(r); at != nil {
		l.SetTimestamp(*at)
	}
	if r.Emitted != nil {
		l.SetObservedTimestamp(*r.Emitted)
	}
	var plain text.Style
	l.SetBody(attribute.StringValue(r.Event.String() + ": " + r.Protocol + " " + r.Source + " -> " + r.Destination + "  " + plain.Outcome(r)))
	l.AddAttributes(attributes(r)...)
	logger.Emit(trace.ContextWithSpanContext(context.Background(), spanContext(r)), l)
}
