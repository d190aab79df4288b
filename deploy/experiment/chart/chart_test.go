package chart

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestTicks(t *testing.T) {
	for _, tt := range []struct {
		low, high float64
		want      []float64
	}{
		{0, 1, []float64{0, 0.2, 0.4, 0.6, 0.8, 1}},
		{0, 7, []float64{0, 2, 4, 6, 8}},
		{0.93, 1, []float64{0.92, 0.94, 0.96, 0.98, 1}},
		{3, 230, []float64{0, 50, 100, 150, 200, 250}},
	} {
		got := ticks(tt.low, tt.high)
		if !slices.EqualFunc(got, tt.want, func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }) {
			t.Errorf("ticks(%v, %v) = %v, want %v", tt.low, tt.high, got, tt.want)
		}
	}
}

// elements counts the elements of a picture by name and class, and fails if it is not well-formed, or has
// a coordinate that is no number.
func elements(t *testing.T, picture string) map[string]int {
	t.Helper()
	if strings.Contains(picture, "NaN") || strings.Contains(picture, "Inf") {
		t.Errorf("a coordinate is no number in\n%s", picture)
	}
	counts := make(map[string]int)
	d := xml.NewDecoder(strings.NewReader("<all>" + picture + "</all>"))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return counts
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, picture)
		}
		if e, ok := token.(xml.StartElement); ok {
			name := e.Name.Local
			for _, a := range e.Attr {
				if a.Name.Local == "class" {
					name += " " + a.Value
				}
			}
			counts[name]++
		}
	}
}

var (
	lines = &Chart{Title: "Load & <more>", X: "seconds", Y: "max/mean", Lines: []Series{
		{"random", 0, []Point{{0, 1, 1, 1}, {30, 2, 1.5, 2.5}, {60, 4, 3, 5}}},
		{"lc", 1, []Point{{0, 1, 1, 1}, {60, 1, 1, 1}}},
	}}
	bars = &Chart{Title: "Refused", Y: "%", Bars: []Bar{{"random", 0, 10, 8, 12}, {"lc", 1, 0, 0, 0}}}
)

func TestLines(t *testing.T) {
	got := lines.HTML()
	counts := elements(t, got)
	if counts["polyline line s0"] != 1 || counts["polyline line s1"] != 1 || counts["polygon band s0"] != 1 || counts["span s1"] != 1 {
		t.Errorf("elements %v", counts)
	}
	// The first point is at the left end, and the last one at the right end, at 4 of 0 to 5.
	if want := `class="line s0" points="62,214 345,168 628,76"`; !strings.Contains(got, want) {
		t.Errorf("no %s in\n%s", want, got)
	}
}

// TestLogarithmic: equal ratios are equal distances, and of marks that are close to each other the first one is labelled.
func TestLogarithmic(t *testing.T) {
	c := &Chart{Title: "Nodes", X: "nodes", Y: "max/mean", LogX: true, Lines: []Series{{"rr", 0, []Point{{1, 1, 1, 1}, {10, 1, 1, 1}, {11, 1, 1, 1}, {100, 1, 1, 1}}}}}
	got := string(c.SVG())
	elements(t, got)
	for _, want := range []string{`x="62" y="276" text-anchor="middle">1<`, `x="345" y="276" text-anchor="middle">10<`, `x="628" y="276" text-anchor="middle">100<`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	if strings.Contains(got, ">11<") {
		t.Error("the labels of 10 and 11 overlap")
	}
	if spec, err := c.VegaLite(); err != nil || !bytes.Contains(spec, []byte(`"type": "log"`)) {
		t.Errorf("%v\n%s", err, spec)
	}
}

func TestBars(t *testing.T) {
	got := bars.HTML()
	if counts := elements(t, got); counts["rect bar s0"] != 1 || counts["rect bar s1"] != 1 || counts["path error"] != 1 {
		t.Errorf("elements %v", counts)
	}
	if want := `y="106.7" width="169.8" height="153.3"`; !strings.Contains(got, want) { // 10 of 15
		t.Errorf("no %s in\n%s", want, got)
	}
}

// TestDegenerate: pictures without values, or with one, are well-formed.
func TestDegenerate(t *testing.T) {
	for _, c := range []Chart{
		{},
		{Lines: []Series{{"a", 0, []Point{{5, 0, 0, 0}}}, {"b", 1, nil}}},
		{Bars: []Bar{{}}},
		{Lines: []Series{{"a", 0, []Point{{7, 0.2, 0.2, 0.2}, {math.Nextafter(7, 8), math.Nextafter(0.2, 0), 0.2, 0.2}}}}},
		{Lines: []Series{{"a", 0, []Point{{0, 1e300, 1e300, 1e300}}}}},
		{Lines: []Series{{"a", 0, []Point{{0, 1e-9, 1e-9, 1e-9}, {1e-9, 1e12, 1e12, 1e12}}}}},
	} {
		elements(t, c.HTML())
		elements(t, string(c.SVG()))
		operators(t, c.PDF())
		if _, err := c.VegaLite(); err != nil {
			t.Error(err)
		}
	}
}

// TestSVG: a file has what the page has, with colours of its own, a legend, and no class that only a style sheet would explain.
func TestSVG(t *testing.T) {
	got := string(lines.SVG())
	counts := elements(t, got)
	if counts["polyline"] != 2 || counts["polygon"] != 2 || strings.Contains(got, "class=") || !strings.HasPrefix(got, `<svg xmlns="http://www.w3.org/2000/svg" width="640" height="306" viewBox="0 14 640 306"`) {
		t.Errorf("elements %v of\n%s", counts, got)
	}
	for _, want := range []string{
		`<title>Load &amp; &lt;more&gt;</title>`, ">random</text>", ">lc</text>", ">max/mean</text>", ">seconds</text>",
		`stroke="#0072B2" stroke-width="1.5" points="62,214 345,168 628,76"`, `stroke="#D55E00" stroke-width="1.5" stroke-dasharray="7 3" points=`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	if got := string(bars.SVG()); strings.Count(got, `fill-opacity="0.8"`) != 2 || strings.Contains(got, "class=") || !strings.Contains(got, ">random</text>") {
		t.Errorf("bars:\n%s", got)
	}
	// Sixteen lines differ in colour or dash.
	looks := make(map[string]bool)
	for n := range 16 {
		looks[attributes("line", n)] = true
	}
	if len(looks) != 16 {
		t.Errorf("%d different lines", len(looks))
	}
	// Names that do not fit are in further rows, within the picture.
	var many Chart
	for n := range 16 {
		many.Lines = append(many.Lines, Series{Name: strings.Repeat("x", 20), Number: n})
	}
	if got := string(many.SVG()); !strings.Contains(got, `height="396" viewBox="0 14 640 396"`) || !strings.Contains(got, `y="402"`) {
		t.Errorf("many names:\n%s", got)
	}
}

// operators returns the operators of a page, and fails if the file is not as its table of objects says.
func operators(t *testing.T, file []byte) string {
	t.Helper()
	text := string(file)
	_, end, _ := strings.Cut(text, "startxref\n")
	var table int
	if _, err := fmt.Sscanf(end, "%d\n%%%%EOF", &table); err != nil || !strings.HasPrefix(text[table:], "xref\n0 7\n") {
		t.Fatalf("no table at %d: %v", table, err)
	}
	for i, line := range strings.Split(text[table:], "\n")[3:9] {
		var offset int
		if _, err := fmt.Sscanf(line, "%010d 00000 n ", &offset); err != nil || !strings.HasPrefix(text[offset:], fmt.Sprintf("%d 0 obj\n", i+1)) || len(line) != 19 {
			t.Errorf("object %d is not at %q", i+1, line)
		}
	}
	_, stream, _ := strings.Cut(text, "/Length ")
	var length int
	if _, err := fmt.Sscanf(stream, "%d >>\nstream\n", &length); err != nil {
		t.Fatal(err)
	}
	_, content, _ := strings.Cut(stream, "stream\n")
	if len(content) < length || !strings.HasPrefix(content[length:], "endstream") {
		t.Fatalf("the stream does not have %d bytes", length)
	}
	if content = content[:length]; strings.Contains(content, "NaN") || strings.Contains(content, "Inf") {
		t.Errorf("a coordinate is no number in\n%s", content)
	}
	return content
}

// TestPDF: the page has the points, colours, dashes and texts of the SVG file, and the same chart the same bytes.
func TestPDF(t *testing.T) {
	file := lines.PDF()
	got := operators(t, file)
	for _, want := range []string{
		"1 0 0 1 0 320 cm\n", // the legend ends there
		"0.000 0.447 0.698 RG 1.5 w [] 0 d\n62 -214 m\n345 -168 l\n628 -76 l\nS\n", "0.835 0.369 0.000 RG 1.5 w [7 3] 0 d\n",
		"q /band gs 0.000 0.447 0.698 rg\n62 -214 m\n345 -145 l\n628 -30 l\n628 -122 l\n345 -191 l\n62 -214 l\nh f\nQ\n",
		"(random) Tj", "(seconds) Tj", "0 1 -1 0 12 ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	for _, want := range []string{"/MediaBox [0 0 640 306]", "/band << /ca 0.18 >>", "/bar << /ca 0.8 >>", "/BaseFont /Helvetica", "/Title (Load & <more>)"} {
		if !bytes.Contains(file, []byte(want)) {
			t.Errorf("no %s in\n%s", want, file)
		}
	}
	if !bytes.Equal(file, lines.PDF()) || bytes.Contains(file, []byte("Date")) {
		t.Error("the same chart has other bytes")
	}
	if got := operators(t, bars.PDF()); strings.Count(got, "q /bar gs") != 2 || strings.Count(got, "0.000 0.000 0.000 RG 1 w") != 1 {
		t.Errorf("bars:\n%s", got)
	}
	positions := regexp.MustCompile(`\d+\.?\d*,\d+\.?\d*`).FindAllString(string(lines.SVG()), -1)
	for _, at := range positions {
		if want := strings.ReplaceAll(at, ",", " -"); !strings.Contains(got, "\n"+want+" m\n") && !strings.Contains(got, "\n"+want+" l\n") {
			t.Errorf("position %s of SVG is not in\n%s", at, got)
		}
	}
	if len(positions) < 20 {
		t.Errorf("positions %v", positions)
	}
	if got := escaped("a(b)\\ ±5 µs … 7–8"); got != "a\\(b\\)\\\\ \xb15 \xb5s ? 7\x968" {
		t.Errorf("escaped: %q", got)
	}
	if w := widthOf("Wil 10"); w != 33.3 { // 944+222+222+278+556+556 thousandths of 12 points
		t.Errorf("width %v", w)
	}
}

// TestVegaLite: the specification has all values and names.
func TestVegaLite(t *testing.T) {
	for _, tt := range []struct {
		chart  *Chart
		values int
		marks  string
		zero   bool
	}{{lines, 5, "area line", true}, {bars, 2, "bar rule", true}, {&Chart{Lines: []Series{{"a", 0, []Point{{0, 8, 8, 8}, {1, 9, 9, 9}}}}}, 2, "area line", false}} {
		data, err := tt.chart.VegaLite()
		if err != nil {
			t.Fatal(err)
		}
		var spec struct {
			Schema string `json:"$schema"`
			Data   struct {
				Values []map[string]any `json:"values"`
			} `json:"data"`
			Layer []struct {
				Mark     any `json:"mark"`
				Encoding struct {
					Y struct {
						Scale struct{ Zero bool } `json:"scale"`
					} `json:"y"`
				} `json:"encoding"`
			} `json:"layer"`
		}
		if err := json.Unmarshal(data, &spec); err != nil {
			t.Fatal(err)
		}
		marks := ""
		for _, l := range spec.Layer {
			if m, ok := l.Mark.(map[string]any); ok {
				l.Mark = m["type"]
			}
			marks = strings.TrimSpace(marks + " " + l.Mark.(string))
		}
		if !strings.HasSuffix(spec.Schema, "/v5.json") || len(spec.Data.Values) != tt.values || marks != tt.marks || spec.Layer[0].Encoding.Y.Scale.Zero != tt.zero && len(tt.chart.Lines) > 0 {
			t.Errorf("%d values, marks %s of\n%s", len(spec.Data.Values), marks, data)
		}
		if v := spec.Data.Values[1]; v["low"] == nil || v["high"] == nil || v["mean"] == nil || v["algorithm"] == nil {
			t.Errorf("value %v", v)
		}
	}
}
