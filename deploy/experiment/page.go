package experiment

import (
	"bytes"
	_ "embed"
	"fmt"
	"html"
	"strings"
)

//go:embed report.css
var style string

// page is an HTML page that loads nothing. It is written without html/template, which calls methods by their names: the
// linker would keep all methods of all types, and the program would be half as large again.
type page struct{ bytes.Buffer }

// markup is HTML, not text.
type markup string

// put writes a format. Of its arguments, strings are text and escaped.
func (p *page) put(format string, args ...any) {
	for i, a := range args {
		if text, is := a.(string); is {
			args[i] = html.EscapeString(text)
		}
	}
	fmt.Fprintf(p, format, args...)
}

// newPage begins the page of an experiment.
func newPage(name, title string) *page {
	p := new(page)
	p.put(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>%s: %s</title>
<style>
%s</style>
</head>
<body>
<h1>%[1]s</h1>
<p>%[2]s</p>
`, name, title, markup(style))
	return p
}

func (p *page) heading(text string) { p.put("<h2>%s</h2>\n", text) }

func (p *page) dim(text string) { p.put("<p class=\"dim\">%s</p>\n", text) }

func (p *page) table(t *Table) {
	row := func(element markup, cells []string) {
		p.put("<tr>")
		for _, cell := range cells {
			p.put("<%s>%s</%[1]s>", element, cell)
		}
		p.put("</tr>\n")
	}
	p.put("<div class=\"wide\"><table><thead>")
	row("th", t.Head)
	p.put("</thead><tbody>\n")
	for _, cells := range t.Rows {
		row("td", cells)
	}
	p.put("</tbody></table></div>\n")
	for _, line := range strings.FieldsFunc(t.Note, func(r rune) bool { return r == '\n' }) {
		p.dim(line)
	}
}

// charts writes charts of package chart, which escapes the texts in them.
func (p *page) charts(plots []plot) {
	p.put("<div class=\"charts\">")
	for _, one := range plots {
		p.put("<div>%s</div>", markup(one.HTML()))
	}
	p.put("</div>\n")
}

// end writes the file of the experiment, its scripts and what ran it, and returns the page.
func (p *page) end(file []byte, scripts []Source, runs ...*Run) []byte {
	p.heading("Experiment")
	p.put("<pre>%s</pre>\n", string(file))
	for _, s := range scripts {
		p.put("<h3>%s</h3>\n<pre>%s</pre>\n", s.Name, string(s.Text))
	}
	for _, r := range runs {
		m := &r.Machine
		p.put("<p>nfqproxy %s, %s; %s, %s, %d CPUs (%s), Linux %s; digest %s</p>\n", r.Version, r.Backend, m.Go, m.Platform, m.CPUs, m.Model, m.Kernel, r.Digest)
	}
	p.put("</body>\n</html>\n")
	return p.Bytes()
}
