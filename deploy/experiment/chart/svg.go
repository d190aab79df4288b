package chart

import (
	"fmt"
	"html"
	"strings"
)

// svg writes elements of SVG.
type svg struct {
	b    strings.Builder
	file bool // with attributes instead of classes
}

// look are the attributes of an element.
func (o *svg) look(class string, number int) string {
	switch {
	case o.file:
		return attributes(class, number)
	case number < 0:
		return fmt.Sprintf("class=\"%s\"", class)
	}
	return fmt.Sprintf("class=\"%s s%d\"", class, number)
}

func (o *svg) horizontal(class string, number int, x0, y, x1 float64) {
	fmt.Fprintf(&o.b, "<path %s d=\"M%s H%s\"/>\n", o.look(class, number), at(x0, y), coordinate(x1))
}

func (o *svg) band(number int, points []position) {
	if len(points) > 0 {
		fmt.Fprintf(&o.b, "<polygon %s points=\"%s\"/>\n", o.look("band", number), path(points))
	}
}

func (o *svg) line(number int, name string, points []position) {
	fmt.Fprintf(&o.b, "<polyline %s points=\"%s\"><title>%s</title></polyline>\n", o.look("line", number), path(points), html.EscapeString(name))
}

func (o *svg) bar(number int, name string, x, y, width, height float64) {
	fmt.Fprintf(&o.b, "<rect %s x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\"><title>%s</title></rect>\n",
		o.look("bar", number), coordinate(x), coordinate(y), coordinate(width), coordinate(height), html.EscapeString(name))
}

func (o *svg) errorBar(x, low, high float64) {
	fmt.Fprintf(&o.b, "<path %s d=\"M%s V%s M%s h8 M%s h8\"/>\n", o.look("error", -1), at(x, low), coordinate(high), at(x-4, low), at(x-4, high))
}

func (o *svg) text(x, y float64, anchor, text string) {
	fmt.Fprintf(&o.b, "<text x=\"%s\" y=\"%s\" text-anchor=\"%s\">%s</text>\n", coordinate(x), coordinate(y), anchor, html.EscapeString(text))
}

func (o *svg) upright(y float64, text string) {
	fmt.Fprintf(&o.b, "<text text-anchor=\"middle\" transform=\"translate(%g %s) rotate(-90)\">%s</text>\n", uprightAt, coordinate(y), html.EscapeString(text))
}

// uprightAt is the horizontal position of upright text.
const uprightAt = 12.0

func path(points []position) string {
	all := make([]string, len(points))
	for i, q := range points {
		all[i] = at(q.x, q.y)
	}
	return strings.Join(all, " ")
}

func coordinate(v float64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
}

func at(x, y float64) string { return coordinate(x) + "," + coordinate(y) }
