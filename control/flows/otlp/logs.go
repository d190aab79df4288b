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

	"github.com/nfqproxy/nfqproxy/control/view/flowtext"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// scope is the instrumentation scope of what this package exports.
const scope = "github.com/nfqproxy/nfqproxy"

// collectedLogs keeps the records that the SDK makes.
type collectedLogs struct{ records []log.Record }

func (c *collectedLogs) OnEmit(_ context.Context, r *log.Record) error {
	c.records = append(c.records, r.Clone())
	return nil
}

func (c *collectedLogs) Enabled(context.Context, log.EnabledParameters) bool { return true }
func (c *collectedLogs) Shutdown(context.Context) error                      { return nil }
func (c *collectedLogs) ForceFlush(context.Context) error                    { return nil }

// openLogs exports a log record for each event of a flow.
func (e *Exporter) openLogs(described *resource.Resource) error {
	p := e.newPipe(Logs)
	exporter, err := otlploggrpc.New(context.Background(), otlploggrpc.WithEndpointURL(e.config.Endpoint),
		otlploggrpc.WithRetry(otlploggrpc.RetryConfig{}), otlploggrpc.WithDialOption(grpc.WithUnaryInterceptor(p.countRejected)))
	if err != nil {
		return err
	}
	p.close = exporter.Shutdown
	var made collectedLogs
	logger := log.NewLoggerProvider(log.WithResource(described), log.WithProcessor(&made)).Logger(scope, otellog.WithInstrumentationVersion(e.config.Version))
	p.request = func(records []*flow.Record) func(context.Context) error {
		made.records = nil
		for _, r := range records {
			emit(logger, r)
		}
		list := made.records
		return func(ctx context.Context) error { return exporter.Export(ctx, list) }
	}
	e.pipes = append(e.pipes, p)
	return nil
}

// emit makes a log record. It names the span of the flow's decision.
func emit(logger otellog.Logger, r *flow.Record) {
	var l otellog.Record
	l.SetEventName("nfqproxy.flow." + r.Event.String())
	l.SetSeverity(otellog.SeverityInfo)
	if r.Event.IsError() {
		l.SetSeverity(otellog.SeverityWarn)
	}
	l.SetSeverityText(l.Severity().String())
	if at := flowtext.EventTime(r); at != nil {
		l.SetTimestamp(*at)
	}
	if r.Emitted != nil {
		l.SetObservedTimestamp(*r.Emitted)
	}
	var plain flowtext.Style
	l.SetBody(attribute.StringValue(r.Event.String() + ": " + r.Protocol + " " + r.Source + " -> " + r.Destination + "  " + plain.Outcome(r)))
	l.AddAttributes(attributes(r)...)
	logger.Emit(trace.ContextWithSpanContext(context.Background(), spanContext(r)), l)
}
