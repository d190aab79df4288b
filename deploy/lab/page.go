package lab

import (
	"fmt"
	"io"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/exitcode"
	"github.com/nfqproxy/nfqproxy/control/view/text"
)

// page is the output of the demo.
type page struct {
	w      io.Writer
	style  text.Style
	scenes int
	checks int
	failed int
}

func newPage(w io.Writer, style text.Style) *page { return &page{w: w, style: style} }

const labelWidth = 10 // of the left column

// legend explains the symbols of decisions and walks.
const legend = `Each decision comes with its walk through kube-proxy's chains, rule by rule:
  ->  the rule matches: the walk continues in another chain, or ends
  .   the rule does not match
  *   the rule marks the packet for masquerading, and the walk continues
A decision ends with the source address: "masq: -" for an unchanged one, or "masq:
ADDRESS (reason)" for the new one.
`

func (p *page) printf(format string, args ...any) { fmt.Fprintf(p.w, format, args...) }

// scene begins a scene.
func (p *page) scene(title string) {
	p.scenes++
	p.printf("\n%s\n\n", p.style.Paint(text.Bold, fmt.Sprintf("%d  %s", p.scenes, title)))
}

// row writes one line with a label.
func (p *page) row(label, format string, args ...any) {
	p.printf("  %s%s\n", p.style.Paint(text.Dim, fmt.Sprintf("%-*s", labelWidth, label)), fmt.Sprintf(format, args...))
}

// block writes lines that may be long.
func (p *page) block(text string) {
	for line := range strings.Lines(text) {
		p.printf("    %s", line)
	}
}

// check writes an expectation with its result.
func (p *page) check(ok bool, format string, args ...any) {
	p.checks++
	mark := p.style.Paint(text.Green, "✓")
	if !ok {
		p.failed++
		mark = p.style.Paint(text.Red, "✗")
	}
	p.printf("  %s %s\n", mark, fmt.Sprintf(format, args...))
}

// summary ends the page; it returns an error if a check failed.
func (p *page) summary() error {
	if p.failed > 0 {
		p.printf("\n%s\n", p.style.Paint(text.Red, fmt.Sprintf("%d of %d checks failed.", p.failed, p.checks)))
		return exitcode.Negative(fmt.Errorf("demo: %d of %d checks failed", p.failed, p.checks))
	}
	p.printf("\n%s\n", p.style.Paint(text.Green, fmt.Sprintf("All %d checks passed.", p.checks)))
	return nil
}
