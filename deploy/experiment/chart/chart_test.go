package chart

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
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

func TestLines(t *testing.T) {
	got := Lines("Load & <more>", "seconds", "max/mean", []Series{
		{"random", 0, []Point{{0, 1, 1, 1}, {30, 2, 1.5, 2.5}, {60, 4, 3, 5}}},
		{"lc", 1, []Point{{0, 1, 1, 1}, {60, 1, 1, 1}}},
	})
	counts := elements(t, got)
	if counts["polyline line s0"] != 1 || counts["polyline line s1"] != 1 || counts["polygon band s0"] != 1 || counts["span s1"] != 1 {
		t.Errorf("elements %v", counts)
	}
	// The first point is at the left end, and the last one at the right end, at 4 of 0 to 5.
	if want := `class="line s0" points="62,214 345,168 628,76"`; !strings.Contains(got, want) {
		t.Errorf("no %s in\n%s", want, got)
	}
}

func TestBars(t *testing.T) {
	got := Bars("Refused", "%", []Bar{{"random", 0, 10, 8, 12}, {"lc", 1, 0, 0, 0}})
	if counts := elements(t, got); counts["rect bar s0"] != 1 || counts["rect bar s1"] != 1 || counts["path error"] != 1 {
		t.Errorf("elements %v", counts)
	}
	if want := `y="106.7" width="169.8" height="153.3"`; !strings.Contains(got, want) { // 10 of 15
		t.Errorf("no %s in\n%s", want, got)
	}
}

// TestDegenerate: pictures without values, or with one, are well-formed.
func TestDegenerate(t *testing.T) {
	elements(t, Lines("", "", "", nil))
	elements(t, Lines("", "", "", []Series{{"a", 0, []Point{{5, 0, 0, 0}}}, {"b", 1, nil}}))
	elements(t, Bars("", "", nil))
	elements(t, Bars("", "", []Bar{{}}))
	elements(t, Lines("", "", "", []Series{{"a", 0, []Point{{0, 1e-9, 1e-9, 1e-9}, {1e-9, 1e12, 1e12, 1e12}}}}))
}
