package top

import (
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
)

// keys are the keys and their help.
var keys = []struct{ key, what string }{
	{"↑ ↓ j k", "up and down; also the mouse wheel, PgUp, PgDn, g and G"},
	{"enter →", "open a service, an endpoint's flows, a flow"},
	{"esc ←", "back"},
	{"f", "the flows of the service"},
	{"/", "filter by a part of a name or an address; esc removes it"},
	{"s", "next sort order"},
	{"p", "pause and resume"},
	{"?", "this help"},
	{"q", "quit"},
}

// key handles a key.
func (m *Model) key(k tea.KeyPressMsg) tea.Cmd {
	name := k.String()
	switch {
	case name == "ctrl+c":
		return tea.Quit
	case m.help:
		m.help = false
		if name == "q" {
			return tea.Quit
		}
		return nil
	case m.typing:
		m.typeFilter(k)
		return nil
	}
	switch name {
	case "q":
		return tea.Quit
	case "?":
		m.help = true
	case "p", "space":
		m.paused = !m.paused
		return m.refresh()
	case "/":
		m.typing = true
	case "s":
		if orders := m.page().content(m, m.page()).orders; len(orders) > 0 {
			m.page().sort = (m.page().sort + 1) % len(orders)
		}
	case "esc", "left", "h", "backspace":
		if m.page().filter != "" {
			m.page().filter = ""
		} else {
			m.back()
		}
	case "enter", "right", "l":
		return m.enter()
	case "f":
		return m.openFlows()
	default:
		m.scroll(name)
	}
	return nil
}

// scroll moves by a key.
func (m *Model) scroll(name string) {
	page := max(1, m.visibleRows(m.page().content(m, m.page()))-1)
	switch name {
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup", "ctrl+b":
		m.move(-page)
	case "pgdown", "ctrl+f":
		m.move(page)
	case "home", "g":
		m.move(-1 << 30)
	case "end", "G":
		m.move(1 << 30)
	}
}

// wheel moves by the mouse.
func (m *Model) wheel(msg tea.MouseWheelMsg) {
	switch msg.Button {
	case tea.MouseWheelUp:
		m.move(-3)
	case tea.MouseWheelDown:
		m.move(3)
	}
}

func (m *Model) typeFilter(k tea.KeyPressMsg) {
	p := m.page()
	switch k.Code {
	case tea.KeyEnter:
		m.typing = false
	case tea.KeyEsc:
		m.typing, p.filter = false, ""
	case tea.KeyBackspace:
		_, n := utf8.DecodeLastRuneInString(p.filter)
		p.filter = p.filter[:len(p.filter)-n]
	default:
		p.filter += k.Text
	}
}

// enter opens the row at the cursor.
func (m *Model) enter() tea.Cmd {
	p := m.page()
	c := p.content(m, p)
	if c.head == "" || len(c.rows) == 0 {
		return nil
	}
	if v := p.enter(m, c.rows[p.position(c.rows)].key); v != nil {
		return m.open(v)
	}
	return nil
}

// openFlows shows the flows of the service that the page, or the cursor, is about.
func (m *Model) openFlows() tea.Cmd {
	if _, ok := m.page().view.(servicesView); ok {
		m.enter()
	}
	if v, ok := m.page().view.(endpointsView); ok {
		return m.open(&flowsView{service: v.name()})
	}
	return nil
}

// move moves the cursor, or the text.
func (m *Model) move(by int) {
	p := m.page()
	c := p.content(m, p)
	if c.head == "" {
		p.offset = max(0, min(len(c.rows)-m.visibleRows(c), p.offset+by))
		return
	}
	if len(c.rows) == 0 {
		return
	}
	p.index = max(0, min(len(c.rows)-1, p.position(c.rows)+by))
	p.cursor = c.rows[p.index].key
}

// position finds the row that the cursor is on: the same one as before, if it is still
// there, else the one in its place.
func (p *page) position(rows []row) int {
	for i, r := range rows {
		if p.cursor != "" && r.key == p.cursor {
			return i
		}
	}
	return max(0, min(p.index, len(rows)-1))
}
