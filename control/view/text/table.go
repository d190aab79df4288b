package text

import (
	"fmt"
	"io"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/nfqproxy/nfqproxy/control/view/terminal"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// sampleRows is the number of rows that determine the widths of the columns.
const sampleRows = 500

// column is a column of a table.
type column struct {
	name  string
	least int // the width that is usual, for streams, where little is known at the start
	value func(r *flow.Record) cell
}

// cell is a column's value.
type cell struct {
	text  string
	color Color // empty: none
}

// table writes a line for each record. Each column is as wide as its widest cell so far: columns
// grow but never shrink, so that the lines of a stream stay aligned.
type table struct {
	w       io.Writer
	columns []column
	o       Options
	widths  []int
	waiting []*row // not written yet
	begun   bool   // the headers are written
}

type row struct {
	cells []cell
	below string
}

func newTable(w io.Writer, columns []column, o Options) Printer {
	t := &table{w: w, columns: columns, o: o, widths: make([]int, len(columns))}
	for i, c := range columns {
		if !o.NoHeaders {
			t.widths[i] = ansi.StringWidth(c.name)
		}
		if o.Follow {
			t.widths[i] = max(t.widths[i], c.least)
		}
	}
	return t
}

func (t *table) Print(r *flow.Record) error {
	line := &row{}
	for i, c := range t.columns {
		cell := c.value(r)
		cell.text = terminal.Replace(cell.text)
		if r.Service == "" && cell.color == "" {
			cell.color = Dim // for no service
		}
		if cell.text == "" {
			cell.text = "-"
		}
		line.cells = append(line.cells, cell)
		t.widths[i] = max(t.widths[i], ansi.StringWidth(cell.text))
	}
	line.below = t.o.Style.Steps(r.Steps, "    ", t.o.Walk)
	t.waiting = append(t.waiting, line)
	if len(t.waiting) >= sampleRows || t.begun && !t.o.Follow {
		return t.Flush()
	}
	return nil
}

func (t *table) Flush() error {
	if len(t.waiting) == 0 {
		return nil
	}
	var b strings.Builder
	if !t.begun && !t.o.NoHeaders {
		headers := &row{}
		for _, c := range t.columns {
			headers.cells = append(headers.cells, cell{text: c.name})
		}
		t.write(&b, headers)
	}
	t.begun = true
	for _, r := range t.waiting {
		t.write(&b, r)
	}
	t.waiting = t.waiting[:0]
	_, err := io.WriteString(t.w, b.String())
	return err
}

// write renders a row: the last column is not padded.
func (t *table) write(b *strings.Builder, r *row) {
	for i, c := range r.cells {
		b.WriteString(t.o.Style.Paint(c.color, c.text))
		if i < len(r.cells)-1 {
			fmt.Fprintf(b, "%*s", t.widths[i]-ansi.StringWidth(c.text)+3, "")
		}
	}
	b.WriteString("\n" + r.below)
}

func (t *table) Close() error { return t.Flush() }
