package metrics

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
)

// dashboard is what is looked at of Grafana's dashboard model.
type dashboard struct {
	UID           string
	Title         string
	SchemaVersion int
	Panels        []panel
	Templating    struct {
		List []struct {
			Name, Type, Definition string
			Query                  any
		}
	}
}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []struct {
		RefID, Expr, LegendFormat string
		Datasource                struct{ Type, UID string }
	}
}

func readDashboard(t *testing.T) *dashboard {
	t.Helper()
	text, err := os.ReadFile("../../../deploy/grafana/nfqproxy.json")
	if err != nil {
		t.Fatal(err)
	}
	d := new(dashboard)
	if err := json.Unmarshal(text, d); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDashboardLayout: panels have IDs of their own, and none lies on another.
func TestDashboardLayout(t *testing.T) {
	d := readDashboard(t)
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 39 {
		t.Errorf("UID %q, title %q, schema %d: want the first two, and Grafana 11's schema, 39, at least", d.UID, d.Title, d.SchemaVersion)
	}
	type cell struct{ x, y int }
	ids, taken := make(map[int]string), make(map[cell]string)
	for _, p := range d.Panels {
		if other, double := ids[p.ID]; double || p.ID <= 0 {
			t.Errorf("panels %q and %q both have ID %d", p.Title, other, p.ID)
		}
		ids[p.ID] = p.Title
		g := p.GridPos
		if p.Title == "" || g.W <= 0 || g.H <= 0 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("panel %d %q at %+v: want a title, and a place within 24 columns", p.ID, p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other, there := taken[cell{x, y}]; there {
					t.Fatalf("panel %q lies on %q at %d, %d", p.Title, other, x, y)
				}
				taken[cell{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("panel %q: want a description and an expression", p.Title)
		}
		var refs []string
		for _, q := range p.Targets {
			if slices.Contains(refs, q.RefID) || q.Datasource.Type != "prometheus" || q.Datasource.UID != "${datasource}" {
				t.Errorf("panel %q, expression %s: data source %+v; want a letter of its own and ${datasource}", p.Title, q.RefID, q.Datasource)
			}
			refs = append(refs, q.RefID)
		}
	}
}

// variables are Grafana's own, and what they may be where the expression is evaluated.
var variables = map[string]string{"$__rate_interval": "5m", "$node": ".*", "$namespace": ".*", "$service": ".*"}

var variable = regexp.MustCompile(`\$\w+`)

// parsed is what Prometheus' parser makes of an expression: see bench/peers/promql.
type parsed struct {
	Error     string
	Selectors []struct {
		Metric   string
		Matchers []struct{ Label, Operator, Value string }
	}
	Labels     []string
	Aggregated bool
}

func parse(t *testing.T, expressions []string) []parsed {
	t.Helper()
	input, err := json.Marshal(expressions)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(clustertest.RequireProgram(t, cluster.PromQL))
	c.Stdin, c.Stderr = bytes.NewReader(input), os.Stderr
	output, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	var list []parsed
	if err := json.Unmarshal(output, &list); err != nil || len(list) != len(expressions) {
		t.Fatalf("%d answers to %d expressions, %v", len(list), len(expressions), err)
	}
	return list
}

// exported are the time series of the example by the name that expressions have for them,
// with the values of their labels. The scraper's own labels may have any.
func exported(t *testing.T, m *Metrics) map[string]map[string][]string {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := make(map[string]map[string][]string)
	for _, f := range families {
		labels := map[string][]string{"instance": {"node-a"}, "job": {"nfqproxy"}}
		for _, metric := range f.GetMetric() {
			for _, l := range metric.GetLabel() {
				labels[l.GetName()] = append(labels[l.GetName()], l.GetValue())
			}
		}
		if f.GetMetric()[0].GetHistogram() == nil {
			series[f.GetName()] = labels
			continue
		}
		labels["le"] = []string{"+Inf"}
		series[f.GetName()+"_bucket"] = labels
	}
	return series
}

// TestDashboardExpressions: Prometheus can read them, and the series in them are exported,
// with such labels and values.
func TestDashboardExpressions(t *testing.T) {
	d := readDashboard(t)
	var series map[string]map[string][]string
	synctest.Test(t, func(t *testing.T) { series = exported(t, example()) })
	var where, expressions, legends []string
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			where = append(where, p.Title+" "+q.RefID)
			legends = append(legends, q.LegendFormat)
			expressions = append(expressions, q.Expr)
		}
	}
	defined := []string{"$__rate_interval"}
	for _, v := range d.Templating.List {
		defined = append(defined, "$"+v.Name)
		if v.Type != "query" {
			continue
		}
		selector, ok := strings.CutPrefix(v.Definition, "label_values(")
		comma := strings.LastIndex(selector, ", ")
		if !ok || comma < 0 {
			t.Fatalf("variable %s: %s: want label_values(SELECTOR, LABEL)", v.Name, v.Definition)
		}
		where = append(where, "variable "+v.Name)
		legends = append(legends, "")
		expressions = append(expressions, "group by ("+strings.TrimSuffix(selector[comma+2:], ")")+") ("+selector[:comma]+")")
	}
	for i, e := range expressions {
		expressions[i] = variable.ReplaceAllStringFunc(e, func(name string) string {
			if !slices.Contains(defined, name) {
				t.Errorf("%s: nothing is called %s", where[i], name)
			}
			return variables[name]
		})
	}
	used := make(map[string]bool)
	for i, p := range parse(t, expressions) {
		complain := func(what, name string) { t.Errorf("%s: %s %q\n%s", where[i], what, name, expressions[i]) }
		if p.Error != "" {
			complain("cannot be parsed:", p.Error)
		}
		var labels []string // of its series
		for _, s := range p.Selectors {
			used[s.Metric] = true
			values, there := series[s.Metric]
			if !there {
				complain("not exported:", s.Metric)
			}
			for l := range values {
				labels = append(labels, l)
			}
			for _, m := range s.Matchers {
				if values[m.Label] == nil {
					complain("the metric does not have label", m.Label)
				}
				if m.Operator == "=" || m.Operator == "=~" {
					full := regexp.MustCompile("^(?:" + m.Value + ")$")
					if !slices.ContainsFunc(values[m.Label], full.MatchString) {
						complain("no time series has label "+m.Label+" like", m.Value)
					}
				}
			}
		}
		for _, l := range p.Labels {
			if !slices.Contains(labels, l) {
				complain("no metric in it has label", l)
			}
		}
		if p.Aggregated {
			labels = p.Labels
		}
		for _, l := range regexp.MustCompile(`{{(.*?)}}`).FindAllStringSubmatch(legends[i], -1) {
			if !slices.Contains(labels, l[1]) {
				complain("the result does not have the legend's label", l[1])
			}
		}
	}
	for name := range series {
		if !used[name] && (strings.HasPrefix(name, "nfqproxy_") || strings.HasPrefix(name, "kubeproxy_")) {
			t.Errorf("%s is on no panel", name)
		}
	}
}
