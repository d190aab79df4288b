// Package chart draws lines with bands of confidence and bars with error bars: as SVG for a page, whose classes decide on colours and
// fonts, so that there is light and dark; as an SVG or PDF file for a paper; and as a specification of Vega-Lite.
package chart

import (
	"fmt"
	"html"
	"math"
	"slices"
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

// Chart is a chart of bars that begin at 0 or, if there are none, of lines over an axis of numbers.
type Chart struct {
	Title string
	// X and Y are the labels of the axes; bars have no X.
	X, Y string
	// LogX: the horizontal axis is logarithmic, for points with an X above 0, and has the points' X as marks.
	LogX  bool
	Lines []Series
	Bars  []Bar
}

const (
	width, height            = 640.0, 300.0
	left, right, top, bottom = 62.0, 12.0, 30.0, 40.0
)

// canvas is what a picture is drawn on. Coordinates are from the top left. A class is that of a style sheet, a number that of a series;
// below 0: of none.
type canvas interface {
	horizontal(class string, number int, x0, y, x1 float64)
	band(number int, points []position)
	line(number int, name string, points []position)
	bar(number int, name string, x, y, width, height float64)
	errorBar(x, low, high float64)
	// text has the anchor start, middle or end. upright is text in the middle of the left edge, read from below.
	text(x, y float64, anchor, text string)
	upright(y float64, text string)
}

type position struct{ x, y float64 }

// plot maps values to the picture. Products are converted before they are added: a machine that fuses both would draw other last digits.
type plot struct {
	canvas
	x0, x1, y0, y1 float64
	logX           bool
}

func (p *plot) x(v float64) float64 {
	if p.logX {
		return left + float64(math.Log(v/p.x0)/math.Log(p.x1/p.x0)*(width-left-right))
	}
	return left + float64((v-p.x0)/(p.x1-p.x0)*(width-left-right))
}

func (p *plot) y(v float64) float64 {
	return height - bottom - float64((v-p.y0)/(p.y1-p.y0)*(height-top-bottom))
}

// HTML is the chart as part of a page.
func (c *Chart) HTML() string {
	out := new(svg)
	p := &plot{canvas: out}
	fmt.Fprintf(&out.b, "<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"%s\">\n", width, height, html.EscapeString(c.Title))
	p.text(left, 16, "start", c.Title)
	p.draw(c)
	out.b.WriteString("</svg>\n")
	if len(c.Bars) == 0 {
		out.b.WriteString(legend(c.Lines))
	}
	return out.b.String()
}

// draw draws the axes and what is between them.
func (p *plot) draw(c *Chart) {
	if len(c.Bars) > 0 {
		p.bars(c)
	} else {
		p.lines(c)
	}
}

func (p *plot) lines(c *Chart) {
	p.x0, p.x1, p.logX = math.Inf(1), math.Inf(-1), c.LogX
	for _, s := range c.Lines {
		for _, q := range s.Points {
			p.x0, p.x1 = min(p.x0, q.X), max(p.x1, q.X)
		}
	}
	if p.x0 > p.x1 { // no points
		p.x0, p.x1 = 0, 1
	}
	p.x0, p.x1 = widened(p.x0, p.x1)
	p.grid(c.Y, p.vertical(c.vertical()))
	for _, v := range p.marks(c) {
		p.text(p.x(v), height-bottom+16, "middle", label(v))
	}
	p.text((left+width-right)/2, height-6, "middle", c.X)
	for _, s := range c.Lines {
		var area []position
		for _, q := range s.Points {
			area = append(area, position{p.x(q.X), p.y(q.High)})
		}
		for _, q := range slices.Backward(s.Points) {
			area = append(area, position{p.x(q.X), p.y(q.Low)})
		}
		p.band(s.Number, area)
	}
	for _, s := range c.Lines {
		var points []position
		for _, q := range s.Points {
			points = append(points, position{p.x(q.X), p.y(q.Y)})
		}
		p.line(s.Number, s.Name, points)
	}
}

// marks are those of the horizontal axis.
func (p *plot) marks(c *Chart) (all []float64) {
	if !c.LogX {
		return slices.DeleteFunc(ticks(p.x0, p.x1), func(v float64) bool { return v < p.x0 || v > p.x1 })
	}
	for _, s := range c.Lines {
		for _, q := range s.Points {
			all = append(all, q.X)
		}
	}
	slices.Sort(all)
	const apart = 40.0 // so that labels do not overlap
	return slices.CompactFunc(all, func(a, b float64) bool { return math.Abs(p.x(b)-p.x(a)) < apart })
}

// vertical is the range of the values of lines; without points 0 to 1.
func (c *Chart) vertical() (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, s := range c.Lines {
		for _, q := range s.Points {
			low, high = min(low, q.Y, q.Low), max(high, q.Y, q.High)
		}
	}
	if low > high {
		return 0, 1
	}
	return low, high
}

// fromZero reports whether an axis for such values begins at 0, which is below them.
func fromZero(low, high float64) bool { return low > 0 && low < high*0.7 }

func (p *plot) bars(c *Chart) {
	p.x0, p.x1 = 0, float64(len(c.Bars))
	high := 0.0
	for _, b := range c.Bars {
		high = max(high, b.Y, b.High)
	}
	p.grid(c.Y, p.vertical(0, high))
	for i, b := range c.Bars {
		x, w := p.x(float64(i)+0.2), p.x(float64(i)+0.8)-p.x(float64(i)+0.2)
		p.bar(b.Number, b.Name+": "+label(b.Y), x, p.y(b.Y), w, p.y(0)-p.y(b.Y))
		if b.High > b.Low {
			p.errorBar(x+w/2, p.y(b.Low), p.y(b.High))
		}
		p.text(x+w/2, height-bottom+16, "middle", b.Name)
	}
}

// vertical chooses the vertical axis, and returns its marks.
func (p *plot) vertical(low, high float64) []float64 {
	if fromZero(low, high) {
		low = 0
	}
	marks := ticks(widened(low, high))
	p.y0, p.y1 = marks[0], marks[len(marks)-1]
	return marks
}

// grid draws the vertical axis with its marks and its label.
func (p *plot) grid(y string, marks []float64) {
	for _, v := range marks {
		p.horizontal("grid", -1, left, p.y(v), width-right)
		p.text(left-6, p.y(v)+4, "end", label(v))
	}
	p.upright((top+height-bottom)/2, y)
}

func legend(all []Series) string {
	var b strings.Builder
	b.WriteString("<p class=\"legend\">")
	for _, s := range all {
		fmt.Fprintf(&b, "<span class=\"s%d\"><i></i>%s</span> ", s.Number, html.EscapeString(s.Name))
	}
	return b.String() + "</p>\n"
}

// widened is a range that has marks: values that are the same but for their rounding have none between them.
func widened(low, high float64) (from, to float64) {
	if least := max(math.Abs(low), math.Abs(high)); high-low <= 1e-9*least || high == low {
		return low, low + max(1, 1e-6*least)
	}
	return low, high
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
