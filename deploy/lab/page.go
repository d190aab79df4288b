package lab

import (
	"fmt"
	"io"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// page writes what the demo shows.
type page struct {
	w      io.Writer
	style  flow.Style
	scenes int
	checks int
	failed int
}

func newPage(w io.Writer, style flow.Style) *page { return &page{w: w, style: style} }

const labelWidth = 10 // of the left column

func (p *page) printf(format string, args ...any) { fmt.Fprintf(p.w, format, args...) }

// paint gives text in a colour (an SGR parameter), where there are colours.
func (p *page) paint(color, text string) string {
	if !p.style.Color {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// scene begins a scene.
func (p *page) scene(title string) {
	p.scenes++
	p.printf("\n%s\n\n", p.paint("1", fmt.Sprintf("%d  %s", p.scenes, title)))
}

// row writes one line with a label.
func (p *page) row(label, format string, args ...any) {
	p.printf("  %s%s\n", p.paint("2", fmt.Sprintf("%-*s", labelWidth, label)), fmt.Sprintf(format, args...))
}

// block writes lines of their own width, which may be long.
func (p *page) block(text string) {
	for line := range strings.Lines(text) {
		p.printf("    %s", line)
	}
}

// check writes an expectation and whether it was met.
func (p *page) check(ok bool, format string, args ...any) {
	p.checks++
	mark := p.paint("32", "✓")
	if !ok {
		p.failed++
		mark = p.paint("31", "✗")
	}
	p.printf("  %s %s\n", mark, fmt.Sprintf(format, args...))
}

// summary ends the page; the error says that something was not as it should be.
func (p *page) summary() error {
	if p.failed > 0 {
		p.printf("\n%s\n", p.paint("31", fmt.Sprintf("%d of %d checks failed.", p.failed, p.checks)))
		return fmt.Errorf("demo: %d of %d checks failed", p.failed, p.checks)
	}
	p.printf("\n%s\n", p.paint("32", fmt.Sprintf("All %d checks passed.", p.checks)))
	return nil
}
