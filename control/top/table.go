package top

import (
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// column is a column of a list. The first one takes the room that others leave.
type column struct {
	name  string
	right bool
	least int
	// rank says which columns get room first; those with 0 are always there.
	rank int
}

// cell is a value, without escape sequences.
type cell struct {
	text  string
	color flow.Color // empty: none
}

func (m *Model) paintCell(c cell) string {
	if c.color == "" {
		return c.text
	}
	return m.paint(c.color, c.text)
}

// leastFirst is the width that the first column should have.
const leastFirst = 20

// layout renders a list in a width: the line of the columns' names, and the rows.
func (m *Model) layout(width int, columns []column, cells [][]cell) (head string, lines []string) {
	widths := make([]int, len(columns))
	for i, c := range columns {
		widths[i] = max(c.least, ansi.StringWidth(c.name))
		for _, r := range cells {
			widths[i] = max(widths[i], ansi.StringWidth(r[i].text))
		}
	}
	shown := fit(width, columns, widths)
	var names []cell
	for _, c := range columns {
		names = append(names, cell{text: c.name})
	}
	head = m.line(columns, widths, shown, names)
	for _, r := range cells {
		lines = append(lines, m.line(columns, widths, shown, r))
	}
	return head, lines
}

// fit says which columns have room, the most important first, and gives the first one what
// they leave, or what it needs.
func fit(width int, columns []column, widths []int) []bool {
	first := min(widths[0], leastFirst)
	rest := width - first
	shown := make([]bool, len(columns))
	order := make([]int, len(columns))
	for i := range columns {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return columns[a].rank - columns[b].rank })
	for _, i := range order {
		switch needs := widths[i] + gap; {
		case i == 0:
			shown[i] = true
		case columns[i].rank == 0 || needs <= rest:
			shown[i] = true
			rest -= needs
		}
	}
	widths[0] = max(1, min(widths[0], first+rest))
	return shown
}

// gap is between columns.
const gap = 2

// line renders one line.
func (m *Model) line(columns []column, widths []int, shown []bool, cells []cell) string {
	var b strings.Builder
	for i, c := range cells {
		if !shown[i] {
			continue
		}
		if i > 0 {
			b.WriteString(strings.Repeat(" ", gap))
		}
		text := ansi.Truncate(strings.Map(printable, c.text), widths[i], "…")
		padding := strings.Repeat(" ", widths[i]-ansi.StringWidth(text))
		text = m.paintCell(cell{text, c.color})
		if columns[i].right {
			text = padding + text
		} else {
			text += padding
		}
		b.WriteString(text)
	}
	return strings.TrimRight(b.String(), " ")
}
