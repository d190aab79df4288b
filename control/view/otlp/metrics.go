package otlp

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
)

// metricPipe exports metrics from time to time. They are totals: what a failed request had is in the
// next one.
type metricPipe struct {
	*counts
	exporter  metric.Exporter
	described *resource.Resource
	provider  *metric.MeterProvider // nil: not started
}

// openMetrics exports metrics.
func (e *Exporter) openMetrics(described *resource.Resource) error {
	exporter, err := otlpmetricgrpc.New(context.Background(), otlpmetricgrpc.WithEndpointURL(e.config.Endpoint))
	if err != nil {
		return err
	}
	e.metrics = &metricPipe{counts: e.newCounts(Metrics), exporter: exporter, described: described}
	return nil
}

// start exports the gatherer's metrics from now on.
func (m *metricPipe) start(from prometheus.Gatherer) {
	all := bridge.NewMetricProducer(bridge.WithGatherer(prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := from.Gather()
		if err != nil {
			m.log.Warn("some metrics are missing in the export to the OpenTelemetry collector", "error", err)
		}
		return families, nil
	})))
	reader := metric.NewPeriodicReader(countedExporter{m.exporter, m.counts}, metric.WithProducer(all))
	m.provider = metric.NewMeterProvider(metric.WithResource(m.described), metric.WithReader(reader))
}

// flush exports once more.
func (m *metricPipe) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	_ = m.provider.Shutdown(ctx) // the exporter counts failures
}

// countedExporter counts exports.
type countedExporter struct {
	metric.Exporter
	counts *counts
}

func (x countedExporter) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	err := x.Exporter.Export(ctx, m)
	x.counts.attempted(err)
	if err != nil {
		x.counts.unsent.Add(1)
	} else {
		x.counts.delivered.Add(1)
	}
	return nil // counted, and logged
}

// scrapeTimeout is of one scrape, and maxScrape the maximum size of a response in bytes: a daemon has some ten
// thousand time series at most.
const (
	scrapeTimeout = 10 * time.Second
	maxScrape     = 64 << 20
)

// Scrape gathers the metrics of a daemon at their URL.
func Scrape(url string) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("GET %s: %s", url, response.Status)
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(io.LimitReader(response.Body, maxScrape))
		if err != nil {
			return nil, fmt.Errorf("GET %s: %w", url, err)
		}
		list := make([]*dto.MetricFamily, 0, len(families))
		for _, f := range families {
			list = append(list, f)
		}
		slices.SortFunc(list, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
		return list, nil
	})
}
