package metrics

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"

	"sigs.k8s.io/yaml"
)

// TestAlerts: Prometheus can read the expressions, and the series and buckets in them are exported.
func TestAlerts(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/helm/nfqproxy/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr         string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		t.Fatal(err)
	}
	var series map[string]map[string][]string
	synctest.Test(t, func(t *testing.T) { series = exported(t, example()) })
	bounds := []string{"+Inf"}
	for _, b := range convergenceBuckets {
		bounds = append(bounds, fmt.Sprint(b))
	}
	series["nfqproxy_convergence_seconds_bucket"]["le"] = bounds
	series["nfqproxy_convergence_seconds_count"] = series["nfqproxy_convergence_seconds_bucket"]
	var names, expressions []string
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s: want a severity, a summary and a description", r.Alert)
			}
			names, expressions = append(names, r.Alert), append(expressions, r.Expr)
		}
	}
	if len(names) == 0 {
		t.Fatal("no alerts")
	}
	for i, p := range parse(t, expressions) {
		if p.Error != "" || len(p.Selectors) == 0 {
			t.Errorf("%s: %s", names[i], p.Error)
		}
		for _, s := range p.Selectors {
			values, there := series[s.Metric]
			if !there {
				t.Errorf("%s: %s is not exported", names[i], s.Metric)
			}
			for _, m := range s.Matchers {
				if full := regexp.MustCompile("^(?:" + m.Value + ")$"); !slices.ContainsFunc(values[m.Label], full.MatchString) {
					t.Errorf("%s: no time series of %s has label %s like %s", names[i], s.Metric, m.Label, m.Value)
				}
			}
		}
	}
}
