package top

import (
	"context"
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// storyView shows the details of one flow.
type storyView struct {
	id     string
	record *flow.Record // nil: not known yet
	err    error
}

type storyMsg struct {
	id     string
	record *flow.Record
	err    error
}

func (v *storyView) name() string { return "flow " + v.id }

func (v *storyView) take(msg storyMsg) {
	v.err = msg.err
	if msg.err == nil {
		v.record = msg.record
	}
}

// mayChange reports whether the flow may still change.
func (v *storyView) mayChange() bool {
	return v.record == nil || v.record.Life != nil && !v.record.Life.Over
}

func (m *Model) fetchStory(v *storyView) tea.Cmd {
	return func() tea.Msg {
		ctx, stop := context.WithTimeout(m.ctx, requestTimeout)
		defer stop()
		r, err := m.observer.Flow(ctx, v.id)
		return storyMsg{v.id, r, err}
	}
}

func (v *storyView) content(m *Model, _ *page) content {
	c := content{empty: "Waiting for the response."}
	if v.err != nil {
		c.empty = ""
		c.above = []cell{{v.err.Error(), text.Red}}
	}
	if v.record == nil {
		return c
	}
	text := text.Story(v.record, text.Options{Style: m.options.Style, Zone: m.options.Zone, Now: m.options.Now})
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		for _, part := range wrapHanging(line, m.width) {
			c.rows = append(c.rows, row{text: part})
		}
	}
	return c
}

// wrapHanging wraps a line that is too long; what goes on is indented more than its start. Its
// colours are lost then, as they would have to be begun anew.
func wrapHanging(line string, width int) []string {
	if ansi.StringWidth(line) <= width {
		return []string{line}
	}
	line = ansi.Strip(line)
	indent := min(len(line)-len(strings.TrimLeft(line, " "))+4, width/2)
	first, _, _ := strings.Cut(ansi.Wrap(line, width, ""), "\n")
	rest := strings.TrimLeft(line[len(first):], " ")
	lines := []string{first}
	for part := range strings.SplitSeq(ansi.Wrap(rest, max(1, width-indent), ""), "\n") {
		lines = append(lines, strings.Repeat(" ", indent)+strings.TrimRight(part, " "))
	}
	return lines
}

func (v *storyView) enter(*Model, string) view { return nil }
