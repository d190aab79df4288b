package top

import (
	"cmp"
	"context"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/terminal"
	"github.com/nfqproxy/nfqproxy/control/view/text"
)

// Model is the state of the screen; see bubbletea.
type Model struct {
	ctx      context.Context // of the requests; bubbletea has no better place for it
	observer observe.Observer
	options  Options

	width, height int

	seen, before *snapshot // the last two; nil: none yet
	pending      bool      // a snapshot is requested
	trouble      error     // of the last request; nil: it succeeded
	troubleSince time.Time

	pages  []*page // the last is shown
	stream *stream // of flows; nil: none
	read   func(*stream) tea.Cmd
	paused bool
	help   bool
	typing bool // a filter
}

// page is a view with its cursor and scroll position.
type page struct {
	view
	cursor string // key of the row
	index  int    // where that row was
	offset int    // of the first row, or line, that is shown
	filter string
	sort   int // index into the view's orders
}

// view is what a page shows.
type view interface {
	// name is where we are, as the breadcrumb shows it.
	name() string
	// content renders it; p has the filter and the order.
	content(m *Model, p *page) content
	// enter returns the view that a row opens; nil: none.
	enter(m *Model, key string) view
}

// content is a page's text.
type content struct {
	above  []cell // lines that stay; those that are too long are wrapped
	head   string // names of columns; empty: no rows to select, only text
	rows   []row
	empty  string // why there are no rows
	orders []string
}

// row is a line that can be chosen.
type row struct {
	key  string
	text string
}

// New returns the model. The end of the context cancels its requests.
func New(ctx context.Context, o observe.Observer, options Options) *Model {
	if options.Now == nil {
		options.Now = time.Now
	}
	options.Zone = cmp.Or(options.Zone, time.Local)
	// The screen's own: what carries it does not come from outside.
	options.Style.Seal = terminal.NewSeal()
	return &Model{ctx: ctx, observer: o, options: options, read: readStream, width: 80, height: 24, pages: []*page{{view: servicesView{}}}}
}

// selectBusiest sets the cursor to the busiest service, if there is one and the user has not moved it.
func (p *page) selectBusiest(byTotal []*observe.Service) {
	if p.cursor == "" && len(byTotal) > 0 && byTotal[0].Flows.Total > 0 {
		p.cursor = serviceKey(byTotal[0])
	}
}

// page is the one that is shown.
func (m *Model) page() *page { return m.pages[len(m.pages)-1] }

// interval is the time between two requests.
const interval = time.Second

type tickMsg struct{}

func tick() tea.Cmd { return tea.Tick(interval, func(time.Time) tea.Msg { return tickMsg{} }) }

// Init implements [tea.Model].
func (m *Model) Init() tea.Cmd {
	m.pending = true
	return tea.Batch(m.fetch(), tick())
}

// Update implements [tea.Model].
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tickMsg:
		return m, tea.Batch(tick(), m.refresh())
	case snapshotMsg:
		m.pending = false
		m.note(msg.err)
		if msg.err == nil && !m.paused {
			m.before, m.seen = m.seen, msg.snapshot
			if m.before == nil {
				m.pages[0].selectBusiest(m.ordered(byTotal))
			}
		}
	case storyMsg:
		for _, p := range m.pages {
			if s, ok := p.view.(*storyView); ok && s.id == msg.id {
				s.take(msg)
			}
		}
	case streamMsg:
		return m, m.takeFlows(msg)
	case tea.KeyPressMsg:
		return m, m.key(msg)
	case tea.PasteMsg:
		if m.typing {
			m.page().filter += msg.Content
		}
	case tea.MouseWheelMsg:
		m.wheel(msg)
	}
	return m, nil
}

// refresh requests a new snapshot.
func (m *Model) refresh() tea.Cmd {
	if m.paused {
		return nil
	}
	var all []tea.Cmd
	if !m.pending {
		m.pending = true
		all = append(all, m.fetch())
	}
	if s, ok := m.page().view.(*storyView); ok && s.mayChange() {
		all = append(all, m.fetchStory(s))
	}
	return tea.Batch(append(all, m.keepStream())...)
}

// note records the error of the last request.
func (m *Model) note(err error) {
	if err != nil && m.trouble == nil {
		m.troubleSince = m.options.Now()
	}
	m.trouble = err
}

// open shows a view on top of the page.
func (m *Model) open(v view) tea.Cmd {
	m.pages = append(m.pages, &page{view: v})
	switch v := v.(type) {
	case *storyView:
		return m.fetchStory(v)
	case *flowsView:
		return m.keepStream()
	}
	return nil
}

// back leaves the page.
func (m *Model) back() {
	if len(m.pages) == 1 {
		return
	}
	if _, ok := m.page().view.(*flowsView); ok {
		m.endStream()
	}
	m.pages = m.pages[:len(m.pages)-1]
}

// at renders a time of the day.
func (m *Model) at(t time.Time) string { return t.In(m.options.Zone).Format("15:04:05") }

func (m *Model) paint(c text.Color, text string) string { return m.options.Style.Paint(c, text) }
