package chart

import (
	"encoding/json"
	"fmt"
	"html"
	"strings"
	"unicode/utf8"
)

// colours are those of Okabe and Ito, which people with colour blindness tell apart, with a grey instead of their yellow, which is too
// light for lines on white. Dashes tell lines apart in print without colours.
var (
	colours = []string{"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F"}
	dashes  = []string{"", "7 3", "2 2", "8 3 2 3"}
)

func colour(number int) string { return colours[number%len(colours)] }

func dash(number int) string { return dashes[(number+number/len(colours))%len(dashes)] }

// look is how an element of a file looks: empty and 0 are the defaults of SVG.
type look struct {
	fill, stroke, dash string
	opacity, width     float64
}

func lookOf(class string, number int) look {
	switch class {
	case "grid":
		return look{stroke: "#D0D0D0", width: 0.7}
	case "error":
		return look{fill: "none", stroke: "#000000"}
	case "band":
		return look{fill: colour(number), opacity: 0.18}
	case "bar":
		return look{fill: colour(number), opacity: 0.8}
	}
	return look{fill: "none", stroke: colour(number), width: 1.5, dash: dash(number)}
}

// attributes are those of an element of an SVG file, which has no style sheet: programs for papers read few of them.
func attributes(class string, number int) string {
	l := lookOf(class, number)
	var all []string
	add := func(name string, value any, given bool) {
		if given {
			all = append(all, fmt.Sprintf("%s=\"%v\"", name, value))
		}
	}
	add("fill", l.fill, l.fill != "")
	add("fill-opacity", l.opacity, l.opacity > 0)
	add("stroke", l.stroke, l.stroke != "")
	add("stroke-width", l.width, l.width > 0)
	add("stroke-dasharray", l.dash, l.dash != "")
	return strings.Join(all, " ")
}

// SVG is the chart as a file for a paper: black on white, with a legend, and without its title, which belongs into the caption.
func (c *Chart) SVG() []byte {
	out := &svg{file: true}
	end := (&plot{canvas: out}).complete(c)
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" viewBox="0 %g %[1]g %[2]g" font-family="Helvetica, Arial, sans-serif" font-size="12">
<title>%[4]s</title>
<rect y="%[3]g" width="%[1]g" height="%[2]g" fill="#FFFFFF"/>
%[5]s</svg>
`, width, end-above, above, html.EscapeString(c.Title), out.b.String())
}

// complete draws a chart with its legend, and returns where it ends.
func (p *plot) complete(c *Chart) float64 {
	p.draw(c)
	return p.legend(c)
}

// above is where a file begins: the title of a page is above that.
const above = 14.0

// legend draws the names of lines, in as many rows as they need, and returns where it ends.
func (p *plot) legend(c *Chart) float64 {
	if len(c.Bars) > 0 {
		return height - bottom + 26
	}
	const sample, gap, row, letter = 24.0, 18.0, 18.0, 7.0 // a letter's width is an estimate
	x, y := left, height+12
	for _, s := range c.Lines {
		w := sample + 6 + letter*float64(utf8.RuneCountInString(s.Name))
		if x > left && x+w > width-right {
			x, y = left, y+row
		}
		p.horizontal("line", s.Number, x, y-4, x+sample)
		p.text(x+sample+6, y, "start", s.Name)
		x += w + gap
	}
	return y + 8
}

// VegaLite is the chart as a specification of Vega-Lite, version 5, with its values.
func (c *Chart) VegaLite() ([]byte, error) {
	type object = map[string]any
	var values []object
	var names, shades []string
	add := func(name string, number int) { names, shades = append(names, name), append(shades, colour(number)) }
	for _, s := range c.Lines {
		add(s.Name, s.Number)
		for _, q := range s.Points {
			values = append(values, object{"algorithm": s.Name, "x": q.X, "mean": q.Y, "low": q.Low, "high": q.High})
		}
	}
	for _, b := range c.Bars {
		add(b.Name, b.Number)
		values = append(values, object{"algorithm": b.Name, "mean": b.Y, "low": b.Low, "high": b.High})
	}
	scale := object{"zero": len(c.Bars) > 0 || fromZero(c.vertical())}
	mean, high := object{"field": "mean", "type": "quantitative", "title": c.Y, "scale": scale}, object{"field": "high"}
	low := object{"field": "low", "type": "quantitative", "title": c.Y, "scale": scale}
	color := object{"field": "algorithm", "type": "nominal", "title": nil, "sort": nil, "scale": object{"domain": names, "range": shades}}
	x := object{"field": "x", "type": "quantitative", "title": c.X}
	if c.LogX {
		x["scale"] = object{"type": "log"}
	}
	layers := []object{
		{"mark": object{"type": "area", "opacity": 0.18}, "encoding": object{"y": low, "y2": high}},
		{"mark": "line", "encoding": object{"y": mean}},
	}
	if len(c.Bars) > 0 {
		color["legend"] = nil
		x = object{"field": "algorithm", "type": "nominal", "title": nil, "sort": nil, "axis": object{"labelAngle": 0}}
		layers = []object{
			{"mark": object{"type": "bar", "opacity": 0.8}, "encoding": object{"y": mean}},
			{"mark": "rule", "encoding": object{"y": low, "y2": high, "color": object{"value": "black"}}},
		}
	}
	data, err := json.MarshalIndent(object{
		"$schema": "https://vega.github.io/schema/vega-lite/v5.json", "description": c.Title, "width": width - left - right, "height": height - top - bottom,
		"data": object{"values": values}, "encoding": object{"x": x, "color": color}, "layer": layers,
	}, "", " ")
	return append(data, '\n'), err
}
