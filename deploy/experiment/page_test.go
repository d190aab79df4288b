package experiment_test

import (
	"os"
	"path/filepath"
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
