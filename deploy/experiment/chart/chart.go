// Package chart draws lines with bands of confidence and bars with error bars as SVG, for a page of its
// own: colours and fonts are those of classes, so that the page decides on light and dark.
package chart

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Point is a point of a line; the band is from Low to High.
type Point struct{ X, Y, Low, High float64 }

// Series is a line. Lines with the same number have the same colour in all charts: class sN.
type Series struct {
	Name   string
	Number int
	Points []Point
}

// Bar is a bar with its error bar.
type Bar struct {
	Name      string
	Number    int
	Y         float64
	Low, High float64
}

const (
	width, height            = 640.0, 300.0
	left, right, top, bottom = 62.0, 12.0, 30.0, 40.0
)

// plot maps values to the picture.
type plot struct {
	b              strings.Builder
	x0, x1, y0, y1 float64
}

func (p *plot) x(v float64) float64 {
	return left + (v-p.x0)/(p.x1-p.x0)*(width-left-right)
}

func (p *plot) y(v float64) float64 {
	return height - bottom - (v-p.y0)/(p.y1-p.y0)*(height-top-bottom)
}

// Lines draws lines over an axis of numbers. The axes have the labels.
func Lines(title, x, y string, all []Series) string {
	p := &plot{x0: math.Inf(1), x1: math.Inf(-1)}
	low, high := math.Inf(1), math.Inf(-1)
	for _, s := range all {
		for _, q := range s.Points {
			p.x0, p.x1 = min(p.x0, q.X), max(p.x1, q.X)
			low, high = min(low, q.Y, q.Low), max(high, q.Y, q.High)
		}
	}
	if p.x0 > p.x1 { // no points
		p.x0, p.x1, low, high = 0, 1, 0, 1
	}
	if p.x0 == p.x1 {
		p.x1++
	}
	marks := p.vertical(low, high)
	p.begin(title, y, marks)
	for _, v := range ticks(p.x0, p.x1) {
		if v >= p.x0 && v <= p.x1 {
			p.text(p.x(v), height-bottom+16, "middle", label(v))
		}
	}
	p.text((left+width-right)/2, height-6, "middle", x)
	for _, s := range all {
		p.band(s)
	}
	for _, s := range all {
		p.line(s)
	}
	var names []Bar
	for _, s := range all {
		names = append(names, Bar{Name: s.Name, Number: s.Number})
	}
	return p.end() + legend(names)
}

func (p *plot) band(s Series) {
	var forth, back []string
	for i := range s.Points {
		q, r := s.Points[i], s.Points[len(s.Points)-1-i]
		forth = append(forth, at(p.x(q.X), p.y(q.High)))
		back = append(back, at(p.x(r.X), p.y(r.Low)))
	}
	if len(forth) > 0 {
		fmt.Fprintf(&p.b, "<polygon class=\"band s%d\" points=\"%s %s\"/>\n", s.Number, strings.Join(forth, " "), strings.Join(back, " "))
	}
}

func (p *plot) line(s Series) {
	var points []string
	for _, q := range s.Points {
		points = append(points, at(p.x(q.X), p.y(q.Y)))
	}
	fmt.Fprintf(&p.b, "<polyline class=\"line s%d\" points=\"%s\"><title>%s</title></polyline>\n", s.Number, strings.Join(points, " "), html.EscapeString(s.Name))
}

// Bars draws bars that begin at 0.
func Bars(title, y string, all []Bar) string {
	p := &plot{x0: 0, x1: float64(max(len(all), 1))}
	high := 0.0
	for _, b := range all {
		high = max(high, b.Y, b.High)
	}
	p.begin(title, y, p.vertical(0, high))
	for i, b := range all {
		x, w := p.x(float64(i)+0.2), p.x(float64(i)+0.8)-p.x(float64(i)+0.2)
		fmt.Fprintf(&p.b, "<rect class=\"bar s%d\" x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\"><title>%s: %s</title></rect>\n",
			b.Number, coordinate(x), coordinate(p.y(b.Y)), coordinate(w), coordinate(p.y(0)-p.y(b.Y)), html.EscapeString(b.Name), label(b.Y))
		if b.High > b.Low {
			middle := x + w/2
			fmt.Fprintf(&p.b, "<path class=\"error\" d=\"M%s V%s M%s h8 M%s h8\"/>\n", at(middle, p.y(b.Low)), coordinate(p.y(b.High)), at(middle-4, p.y(b.Low)), at(middle-4, p.y(b.High)))
		}
		p.text(x+w/2, height-bottom+16, "middle", b.Name)
	}
	return p.end()
}

// vertical chooses the vertical axis, and returns its marks.
func (p *plot) vertical(low, high float64) []float64 {
	if low > 0 && low < high*0.7 {
		low = 0
	}
	if high <= low {
		high = low + 1
	}
	marks := ticks(low, high)
	p.y0, p.y1 = marks[0], marks[len(marks)-1]
	return marks
}

func (p *plot) begin(title, y string, marks []float64) {
	fmt.Fprintf(&p.b, "<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"%s\">\n", width, height, html.EscapeString(title))
	p.text(left, 16, "start", title)
	for _, v := range marks {
		fmt.Fprintf(&p.b, "<path class=\"grid\" d=\"M%s H%s\"/>\n", at(left, p.y(v)), coordinate(width-right))
		p.text(left-6, p.y(v)+4, "end", label(v))
	}
	fmt.Fprintf(&p.b, "<text class=\"axis\" text-anchor=\"middle\" transform=\"translate(12 %s) rotate(-90)\">%s</text>\n", coordinate((top+height-bottom)/2), html.EscapeString(y))
}

func (p *plot) text(x, y float64, anchor, text string) {
	fmt.Fprintf(&p.b, "<text x=\"%s\" y=\"%s\" text-anchor=\"%s\">%s</text>\n", coordinate(x), coordinate(y), anchor, html.EscapeString(text))
}

func (p *plot) end() string { return p.b.String() + "</svg>\n" }

func legend(all []Bar) string {
	var b strings.Builder
	b.WriteString("<p class=\"legend\">")
	for _, s := range all {
		fmt.Fprintf(&b, "<span class=\"s%d\"><i></i>%s</span> ", s.Number, html.EscapeString(s.Name))
	}
	return b.String() + "</p>\n"
}

// ticks are round numbers, about 5, of which the first is at most low and the last at least high.
func ticks(low, high float64) (all []float64) {
	const about = 5
	raw := (high - low) / about
	unit := math.Pow(10, math.Floor(math.Log10(raw)))
	step := 10 * unit
	for _, f := range []float64{1, 2, 5} {
		if f*unit >= raw*0.999 {
			step = f * unit
			break
		}
	}
	first, last := math.Floor(low/step+1e-9), math.Ceil(high/step-1e-9)
	for i := first; i <= last; i++ {
		all = append(all, i*step)
	}
	return all
}

func label(v float64) string {
	if a := math.Abs(v); a >= 10_000 || a > 0 && a < 0.001 {
		return fmt.Sprintf("%.3g", v)
	}
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.4f", v), "0"), ".")
}

func coordinate(v float64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
}

func at(x, y float64) string { return coordinate(x) + "," + coordinate(y) }
