package top

import (
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/terminal"
	"github.com/nfqproxy/nfqproxy/control/view/text"
)

// column is a column of a list. The first one and those that are flexible take the room that
// others leave.
type column struct {
	name     string
	right    bool
	flexible bool
	least    int
	// rank is the order in which columns get space; those with 0 are always shown.
	rank int
}

// cell is a value, without escape sequences.
type cell struct {
	text  string
	color text.Color // empty: none
}

// minFlexible is the width that a flexible column gets before columns that may be left out;
// the first one gets a third of the line and others a quarter, if they need so much.
const minFlexible = 20

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

// fit selects the columns that fit, the most important first, and shortens flexible ones as
// far as needed: what others leave goes to the one that lacks most.
func fit(width int, columns []column, widths []int) []bool {
	shown, rest := make([]bool, len(columns)), width+gap
	needs := slices.Clone(widths)
	for i, c := range columns {
		if i == 0 {
			widths[i] = min(widths[i], max(minFlexible, width/3))
		} else if c.flexible {
			widths[i] = min(widths[i], max(minFlexible, width/4))
		}
		if shown[i] = i == 0 || c.rank == 0; shown[i] {
			rest -= widths[i] + gap
		}
	}
	for _, i := range byRank(columns) {
		if !shown[i] && widths[i]+gap <= rest {
			shown[i] = true
			rest -= widths[i] + gap
		}
	}
	widths[0] = max(1, widths[0]+min(0, rest))
	for ; rest > 0; rest-- {
		most := 0
		for i := range columns {
			if shown[i] && needs[i]-widths[i] > needs[most]-widths[most] {
				most = i
			}
		}
		if widths[most] == needs[most] {
			break
		}
		widths[most]++
	}
	return shown
}

// byRank are the columns' indexes, the most important first.
func byRank(columns []column) []int {
	order := make([]int, len(columns))
	for i := range columns {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return columns[a].rank - columns[b].rank })
	return order
}

// shorten cuts a text that is too long. An address's port at its end stays.
func shorten(text string, width int) string {
	port := portSuffix.FindString(text)
	if width < len(port)+4 || ansi.StringWidth(text) <= width {
		return ansi.Truncate(text, width, "…")
	}
	return ansi.Truncate(strings.TrimSuffix(text, port), width-len(port), "…") + port
}

var portSuffix = regexp.MustCompile(`:[0-9]{1,5}$`)

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
		text := shorten(terminal.Replace(c.text), widths[i])
		padding := strings.Repeat(" ", widths[i]-ansi.StringWidth(text))
		text = m.paint(c.color, text)
		if columns[i].right {
			text = padding + text
		} else {
			text += padding
		}
		b.WriteString(text)
	}
	return strings.TrimRight(b.String(), " ")
}

// shades distinguish the endpoints of a bar, also without colours.
var shades = []string{"█", "▒", "▓", "░"}

// spread is a bar of the endpoints' shares of the random selections.
func spread(s *observe.Service, width int) string {
	shares := make([]float64, 0, len(s.Endpoints))
	sum := 0.0
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		share := float64(e.Flows.Drawn)
		if s.Fit != nil || s.Balance != "" {
			share = e.Observed
		}
		shares = append(shares, share)
		sum += share
	}
	if sum == 0 {
		return ""
	}
	var b strings.Builder
	until, done := 0.0, 0
	for i, share := range shares {
		until += share / sum
		end := min(width, int(math.Round(until*float64(width))))
		b.WriteString(strings.Repeat(shades[i%len(shades)], end-done))
		done = end
	}
	return b.String()
}

// share is a bar of one endpoint's share, with a mark at the expected share.
func share(observed, expected float64, width int) string {
	bar := make([]rune, width)
	for i := range bar {
		bar[i] = '·'
		if i < int(math.Round(observed*float64(width))) {
			bar[i] = '█'
		}
	}
	if expected > 0 {
		bar[max(0, min(width, int(math.Round(expected*float64(width))))-1)] = '|'
	}
	return string(bar)
}
