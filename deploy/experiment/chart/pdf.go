package chart

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// pdf writes the operators of a page of PDF 1.4. Their origin is at the top left, as that of SVG, with y upwards.
type pdf struct{ b bytes.Buffer }

// PDF is the chart as a file for a paper, with the look of [Chart.SVG]: vectors, and text in Helvetica, which each reader has. The same
// chart gives the same bytes.
func (c *Chart) PDF() []byte {
	page := new(pdf)
	end := (&plot{canvas: page}).complete(c)
	content := fmt.Sprintf("1 0 0 1 0 %s cm\n%s", coordinate(end), page.b.String())
	objects := []string{
		"<< /Type /Catalog /Pages 2 0 R >>",
		"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
		fmt.Sprintf("<< /Type /Page /Parent 2 0 R /MediaBox [0 0 %g %s] /Contents 4 0 R /Resources << /Font << /F 5 0 R >> /ExtGState << %s %s >> >> >>",
			width, coordinate(end-above), opacity("band"), opacity("bar")),
		fmt.Sprintf("<< /Length %d >>\nstream\n%sendstream", len(content), content),
		"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
		fmt.Sprintf("<< /Title (%s) >>", escaped(c.Title)),
	}
	var b bytes.Buffer
	b.WriteString("%PDF-1.4\n%\xe2\xe3\xcf\xd3\n") // bytes above 127: the file is not text
	var offsets []int
	for i, o := range objects {
		offsets = append(offsets, b.Len())
		fmt.Fprintf(&b, "%d 0 obj\n%s\nendobj\n", i+1, o)
	}
	table := b.Len()
	fmt.Fprintf(&b, "xref\n0 %d\n0000000000 65535 f \n", len(objects)+1)
	for _, o := range offsets {
		fmt.Fprintf(&b, "%010d 00000 n \n", o)
	}
	fmt.Fprintf(&b, "trailer\n<< /Size %d /Root 1 0 R /Info %d 0 R >>\nstartxref\n%d\n%%%%EOF\n", len(objects)+1, len(objects), table)
	return b.Bytes()
}

// opacity is the state of graphics of a class, which has its name.
func opacity(class string) string {
	return fmt.Sprintf("/%s << /ca %g >>", class, lookOf(class, 0).opacity)
}

// rgb are the operands of a colour as #RRGGBB.
func rgb(colour string) string {
	n, _ := strconv.ParseUint(colour[1:], 16, 24) // a constant of this package
	return fmt.Sprintf("%.3f %.3f %.3f", float64(n>>16)/255, float64(n>>8&255)/255, float64(n&255)/255)
}

// point is a position with y upwards.
func point(x, y float64) string { return coordinate(x) + " " + coordinate(0-y) }

// trace draws the lines between points, and ends with an operator.
func (o *pdf) trace(points []position, operator string) {
	for i, q := range points {
		step := "l"
		if i == 0 {
			step = "m"
		}
		fmt.Fprintf(&o.b, "%s %s\n", point(q.x, q.y), step)
	}
	if len(points) > 0 {
		o.b.WriteString(operator + "\n")
	}
}

func (o *pdf) stroke(class string, number int, lines ...[]position) {
	l := lookOf(class, number)
	if l.width == 0 {
		l.width = 1
	}
	fmt.Fprintf(&o.b, "%s RG %g w [%s] 0 d\n", rgb(l.stroke), l.width, l.dash)
	for _, points := range lines {
		o.trace(points, "S")
	}
}

func (o *pdf) fill(class string, number int, points []position) {
	fmt.Fprintf(&o.b, "q /%s gs %s rg\n", class, rgb(lookOf(class, number).fill))
	o.trace(points, "h f")
	o.b.WriteString("Q\n")
}

func (o *pdf) horizontal(class string, number int, x0, y, x1 float64) {
	o.stroke(class, number, []position{{x0, y}, {x1, y}})
}

func (o *pdf) band(number int, points []position) { o.fill("band", number, points) }

func (o *pdf) line(number int, _ string, points []position) { o.stroke("line", number, points) }

func (o *pdf) bar(number int, _ string, x, y, width, height float64) {
	o.fill("bar", number, []position{{x, y}, {x + width, y}, {x + width, y + height}, {x, y + height}})
}

func (o *pdf) errorBar(x, low, high float64) {
	o.stroke("error", -1, []position{{x, low}, {x, high}}, []position{{x - 4, low}, {x + 4, low}}, []position{{x - 4, high}, {x + 4, high}})
}

const fontSize = 12

func (o *pdf) text(x, y float64, anchor, text string) {
	switch anchor {
	case "middle":
		x -= widthOf(text) / 2
	case "end":
		x -= widthOf(text)
	}
	fmt.Fprintf(&o.b, "BT 0 g /F %d Tf 1 0 0 1 %s Tm (%s) Tj ET\n", fontSize, point(x, y), escaped(text))
}

func (o *pdf) upright(y float64, text string) {
	fmt.Fprintf(&o.b, "BT 0 g /F %d Tf 0 1 -1 0 %s Tm (%s) Tj ET\n", fontSize, point(uprightAt, y+widthOf(text)/2), escaped(text))
}

// widths are those of Helvetica's letters from the space to the tilde, in thousandths of the font's size (Adobe Font Metrics).
var widths = [...]int{
	278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556,
	1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556,
	333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
}

// widthOf is the width of a text in points. Letters that are not in widths are as wide as most.
func widthOf(text string) float64 {
	const most = 556
	sum := 0
	for _, r := range text {
		if i := int(r) - ' '; i >= 0 && i < len(widths) {
			sum += widths[i]
		} else {
			sum += most
		}
	}
	return math.Round(float64(sum)*fontSize/100) / 10 // not fused, and as precise as coordinates
}

// escaped is a text in WinAnsiEncoding, in which most letters of Latin scripts are as in Unicode. Others are question marks.
func escaped(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '(' || r == ')' || r == '\\':
			b.WriteByte('\\')
			b.WriteByte(byte(r))
		case r >= ' ' && r < 0x7f || r >= 0xa0 && r <= 0xff:
			b.WriteByte(byte(r))
		case r == '’':
			b.WriteByte(0x92)
		case r == '–':
			b.WriteByte(0x96)
		default:
			b.WriteByte('?')
		}
	}
	return b.String()
}
