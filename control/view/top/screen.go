package top

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// cursorWidth is the room for the cursor, in front of rows.
const cursorWidth = 2

// View implements [tea.Model].
func (m *Model) View() tea.View {
	v := tea.NewView(m.text())
	v.AltScreen, v.MouseMode = true, tea.MouseModeCellMotion
	return v
}

// text is what the screen shows: exactly as many lines as the terminal has, none wider than it.
func (m *Model) text() string {
	p := m.page()
	c := p.content(m, p)
	lines := m.top(c)
	if m.help {
		lines = append(lines, "")
		for _, k := range keys {
			lines = append(lines, fmt.Sprintf("  %-8s  %s", k.key, k.what))
		}
	} else {
		lines = append(lines, m.body(c)...)
	}
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines[:max(0, m.height-1)], m.bottom(c))
	for i, line := range lines {
		lines[i] = ansi.Truncate(m.options.Style.Seal.Open(line), m.width, "…")
	}
	return strings.Join(lines, "\n")
}

// titles is how many lines each page has on top, besides warnings.
const titles = 2

// top are those lines.
func (m *Model) top(c content) []string {
	title := "nfqproxy top"
	if s := m.seen; s != nil {
		open := uint64(0)
		for i := range s.services.Services {
			open += s.services.Services[i].Flows.Open
		}
		title += fmt.Sprintf("  %s  %s  %s flows/s, %d open", m.at(s.at), nodesInWords(s.services.Nodes), perSecond(m.servicesRate()), open)
		if rate, _ := m.rate(noServiceKey); rate > 0 {
			title += fmt.Sprintf("; for no service %s flows/s", m.rateText(noServiceKey))
		}
	}
	if m.paused {
		title += "  " + m.paint(text.Yellow, "paused")
	}
	return append([]string{title, m.breadcrumb(c)}, m.warnings()...)
}

func nodesInWords(nodes []string) string {
	if len(nodes) == 1 {
		return nodes[0]
	}
	return fmt.Sprintf("%d nodes", len(nodes))
}

// breadcrumb is the path of views.
func (m *Model) breadcrumb(c content) string {
	var names []string
	for _, p := range m.pages {
		names = append(names, p.name())
	}
	line := strings.Join(names, " > ")
	p := m.page()
	if p.sort > 0 && p.sort < len(c.orders) {
		line += "  by " + c.orders[p.sort]
	}
	switch {
	case m.typing:
		line += "  /" + p.filter + "_"
	case p.filter != "":
		line += "  only with " + fmt.Sprintf("%q", p.filter)
	}
	return m.paint(text.Dim, line)
}

// warnings are the reasons why the data may be outdated or incomplete.
func (m *Model) warnings() []string {
	var all []string
	if m.trouble != nil {
		all = append(all, m.paint(text.Red, fmt.Sprintf("no response since %s, retrying every second: %s", m.at(m.troubleSince), m.trouble)))
	}
	if m.seen == nil {
		return all
	}
	if n := m.seen.services.Lost; n > 0 {
		all = append(all, m.paint(text.Yellow, quantity.Count(n, "flow")+" not counted: queue overflow on a node"))
	}
	for _, node := range m.seen.stats {
		if !node.Kernel.Following {
			all = append(all, m.paint(text.Yellow, fmt.Sprintf("%s: flow life cycles are not available: %s", node.Node, node.Kernel.Why)))
		}
	}
	return all
}

// body is the page, with the rows that fit.
func (m *Model) body(c content) []string {
	p := m.page()
	lines := m.fixedLines(c)
	room := m.visibleRows(c)
	if c.head != "" {
		lines = append(lines, strings.Repeat(" ", cursorWidth)+c.head)
	}
	if len(c.rows) == 0 {
		empty := c.empty
		if p.filter != "" {
			empty = fmt.Sprintf("Nothing matches %q: esc shows all.", p.filter)
		}
		return append(lines, "", strings.Repeat(" ", cursorWidth)+empty)
	}
	if c.head == "" {
		p.offset = max(0, min(p.offset, len(c.rows)-room))
		for _, r := range c.rows[p.offset:min(len(c.rows), p.offset+room)] {
			lines = append(lines, r.text)
		}
		return lines
	}
	p.index = p.position(c.rows)
	p.offset = max(min(p.offset, p.index), p.index-room+1, 0)
	p.offset = max(0, min(p.offset, len(c.rows)-room))
	for i := p.offset; i < min(len(c.rows), p.offset+room); i++ {
		lines = append(lines, m.selectable(c.rows[i].text, i == p.index))
	}
	return lines
}

// reverse is the SGR parameter of the row with the cursor.
const reverse = "7"

// selectable renders a row, with the cursor if it is there.
func (m *Model) selectable(text string, chosen bool) string {
	switch {
	case !chosen:
		return strings.Repeat(" ", cursorWidth) + text
	case m.options.Style.Color:
		text = "> " + ansi.Strip(text)
		return m.options.Style.Seal.Paint(reverse, text+strings.Repeat(" ", max(0, m.width-ansi.StringWidth(text))))
	}
	return "> " + text
}

// leastRows is the minimum number of rows on a screen of usual size.
const leastRows = 4

// fixedLines are the fixed lines, wrapped; those that do not fit are left out.
func (m *Model) fixedLines(c content) []string {
	var lines []string
	for _, a := range c.above {
		for line := range strings.SplitSeq(ansi.Wrap(a.text, m.width, ""), "\n") {
			lines = append(lines, m.paint(a.color, strings.TrimRight(line, " ")))
		}
	}
	return lines[:max(0, min(len(lines), m.height-titles-len(m.warnings())-2-leastRows))]
}

// visibleRows is how many rows, or lines, of a page can be seen.
func (m *Model) visibleRows(c content) int {
	room := m.height - titles - len(m.warnings()) - len(m.fixedLines(c)) - 1
	if c.head != "" {
		room--
	}
	return max(1, room)
}

// bottom is the last line: the keys, and the position in the list.
func (m *Model) bottom(c content) string {
	line := "q quit  ? help  enter in  esc back  / filter  s sort  p pause  f flows"
	switch {
	case m.help:
		line = "any key goes back"
	case m.typing:
		line = "type a filter, then enter; esc shows all"
	case c.head == "":
		line = "q quit  ? help  ↑↓ scroll  esc back  p pause"
	}
	if n := len(c.rows); n > m.visibleRows(c) && !m.help {
		last := min(n, m.page().offset+m.visibleRows(c))
		line = fmt.Sprintf("%d-%d of %d  ", m.page().offset+1, last, n) + line
	}
	return m.paint(text.Dim, line)
}
