package experiment_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// TestPage: the page has the texts of the file as text, and all tables and charts.
func TestPage(t *testing.T) {
	results, _ := run(t, load(t, "heavy-tail", 1))
	const script = "<script>alert('x')</script> & \"more\""
	results.Title, results.File, results.Missing = script, append(results.File, "# "+script...), 2
	both, dir := &experiment.Both{Simulated: results, Live: results}, t.TempDir()
	if err := both.Write(dir); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, experiment.FileReport))
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]struct {
		page           string
		tables, charts int
		incomplete     int
	}{"report": {string(results.Report()), 3, 7, 1}, "both": {string(page), 1, 8, 2}} {
		if strings.Contains(p.page, "<script") || strings.Count(p.page, "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &#34;more&#34;") != 3 {
			t.Errorf("%s: the title or the file has markup of the file:\n%s", name, p.page)
		}
		if tables, charts := strings.Count(p.page, "</table>"), strings.Count(p.page, "</svg>"); tables != p.tables || charts != p.charts {
			t.Errorf("%s: %d tables and %d charts, want %d and %d", name, tables, charts, p.tables, p.charts)
		}
		if n := strings.Count(p.page, "Incomplete: 2 runs are missing"); n != p.incomplete {
			t.Errorf("%s: %d lines about missing runs, want %d", name, n, p.incomplete)
		}
		if strings.Contains(p.page, "%!") || !strings.HasSuffix(p.page, "</html>\n") {
			t.Errorf("%s: not complete:\n%s", name, p.page)
		}
	}
}

// TestPlots: each chart of the page is a file for papers, as SVG and PDF, and a specification of Vega-Lite with the values of the summary.
func TestPlots(t *testing.T) {
	t.Parallel()
	plain, _ := run(t, load(t, "heavy-tail", 1))
	swept, _ := runSwept(t)
	for _, tt := range []struct {
		results *experiment.Results
		some    string
	}{{plain, "max_mean-over-time jain-over-time connect_p99-over-time open-over-time connect_p99 response_mean"}, {swept, "connect_p99-by-load jain-by-load"}} {
		dir := t.TempDir()
		if err := tt.results.Write(dir); err != nil {
			t.Fatal(err)
		}
		files := tree(t, dir)
		n := 0
		for name := range files {
			if base, ok := strings.CutSuffix(name, ".svg"); ok && len(files[base+".vl.json"]) > 0 && bytes.HasPrefix(files[base+".pdf"], []byte("%PDF-1.4")) {
				n++
			}
		}
		if want := strings.Count(string(tt.results.Report()), "</svg>"); n != want {
			t.Errorf("%s: %d plots with all files, want %d", tt.results.Name, n, want)
		}
		for name := range strings.FieldsSeq(tt.some) {
			if len(files["plots/"+name+".svg"]) == 0 {
				t.Errorf("%s: no plot %s", tt.results.Name, name)
			}
		}
	}
	var spec struct {
		Data struct {
			Values []struct {
				Algorithm          string
				X, Mean, Low, High float64
			}
		}
	}
	dir := t.TempDir()
	if err := swept.Write(dir); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(readFile(t, dir, "plots/connect_p99-by-load.vl.json")), &spec); err != nil {
		t.Fatal(err)
	}
	rows, found := swept.Summary(), 0
	for _, v := range spec.Data.Values {
		for _, row := range rows {
			if row.Algorithm != v.Algorithm || row.Point != fmt.Sprintf("load=%v", v.X) {
				continue
			}
			found++
			if m := row.Metrics["connect_p99"]; v.Mean != m.Mean*1000 || v.High != (m.Mean+m.Half)*1000 || v.Low > v.Mean {
				t.Errorf("%+v, want %+v in milliseconds", v, m)
			}
		}
	}
	if len(spec.Data.Values) != len(rows) || len(rows) != 4 || found != 4 {
		t.Errorf("%d values of %d rows", len(spec.Data.Values), len(rows))
	}
}

// TestPlotsOfParameters: of several parameters, the first one with numbers is the horizontal axis, and each combination of the others has a
// plot. Without numbers there are bars.
func TestPlotsOfParameters(t *testing.T) {
	t.Parallel()
	const duration, endpoints, rate = "{field: duration, values: [1s, 2s]}", "{field: 'cluster.services[0].endpoints', values: [2, 4]}", "{field: workload.arrivals.rate, values: [50, 100]}"
	for _, tt := range []struct {
		sweep string
		want  []string
	}{
		{rate, []string{"jain-by-rate"}},
		{duration + ", " + rate, []string{"jain-by-rate-duration=1s", "jain-by-rate-duration=2s"}},
		{endpoints + ", " + duration + ", " + rate, []string{"jain-by-endpoints-duration=1s,rate=100", "jain-by-endpoints-duration=1s,rate=50", "jain-by-endpoints-duration=2s,rate=100", "jain-by-endpoints-duration=2s,rate=50"}},
		{duration, []string{"response_mean-duration=1s", "response_mean-duration=2s"}},
	} {
		results, dir := run(t, parse(t, small+"columns: [jain]\nsweep: ["+tt.sweep+"]\n"))
		var names []string
		for name, data := range tree(t, dir) {
			base, ok := strings.CutSuffix(strings.TrimPrefix(name, "plots/"), ".vl.json")
			if !ok || strings.HasPrefix(base, "connect") {
				continue
			}
			names = append(names, base)
			var spec struct {
				Data struct{ Values []any }
			}
			if err := json.Unmarshal(data, &spec); err != nil {
				t.Fatal(err)
			}
			if want := len(results.Summary()) / len(tt.want); len(spec.Data.Values) != want {
				t.Errorf("%s: %d values, want %d", base, len(spec.Data.Values), want)
			}
		}
		slices.Sort(names)
		if !slices.Equal(names, tt.want) {
			t.Errorf("%s: plots %v, want %v", tt.sweep, names, tt.want)
		}
	}
}
