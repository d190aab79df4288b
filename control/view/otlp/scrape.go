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
)

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
