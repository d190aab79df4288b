package top

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// servicesView lists the services.
type servicesView struct{}

func (servicesView) name() string { return "services" }

var serviceColumns = []column{
	{name: "SERVICE"},
	{name: "FLOWS/S", right: true},
	{name: "TOTAL", right: true, least: 6, rank: 2},
	{name: "OPEN", right: true, least: 5, rank: 4},
	{name: "SPREAD", least: spreadWidth, rank: 1},
	{name: "UNANSWERED", right: true},
	{name: "ERRORS", right: true},
	{name: "WHY", least: 16, rank: 5},
}

const spreadWidth = 10

// byTotal is the order by the number of flows.
const byTotal = 2

func (servicesView) content(m *Model, p *page) content {
	c := content{empty: "No services.", orders: []string{"name", "flows/s", "total", "trouble"}}
	if m.seen == nil {
		c.empty = "Waiting for the first response."
		if m.trouble != nil {
			c.empty = "No response yet."
		}
		return c
	}
	var keys []string
	var cells [][]cell
	for _, s := range m.ordered(p.sort) {
		if !matches(p.filter, s.Service, s.ClusterIP, s.Protocol) {
			continue
		}
		keys = append(keys, serviceKey(s))
		cells = append(cells, m.serviceCells(s))
	}
	c.head, c.rows = m.rows(serviceColumns, keys, cells)
	return c
}

func (servicesView) enter(_ *Model, key string) view { return endpointsView{key} }

// ordered returns the services, sorted.
func (m *Model) ordered(sort int) []*observe.Service {
	var all []*observe.Service
	for i := range m.seen.services.Services {
		all = append(all, &m.seen.services.Services[i])
	}
	by := []func(s *observe.Service) float64{
		nil, // as they come: by name
		func(s *observe.Service) float64 { rate, _ := m.rate(serviceKey(s)); return rate },
		func(s *observe.Service) float64 { return float64(s.Flows.Total) },
		func(s *observe.Service) float64 { return float64(s.Flows.Unanswered + failures(&s.Flows)) },
	}[sort]
	if by != nil {
		slices.SortStableFunc(all, descending(by))
	}
	return all
}

func (m *Model) serviceCells(s *observe.Service) []cell {
	name := s.Service
	if s.Family == "IPv6" {
		name += " (IPv6)"
	}
	return []cell{
		{text: name}, {text: m.rateText(serviceKey(s))}, {text: fmt.Sprint(s.Flows.Total)}, {text: fmt.Sprint(s.Flows.Open)},
		{text: spread(s, spreadWidth)}, alarmCell(s.Flows.Unanswered, text.Yellow), alarmCell(failures(&s.Flows), text.Red), {text: why(s), color: text.Dim},
	}
}

// failures are the flows in states that are errors (see [flow.State.IsError]).
func failures(f *observe.Flows) uint64 {
	return f.Refused + f.Reset + f.Rejected + f.Dropped + f.Failed
}

// alarmCell is a count that should be 0.
func alarmCell(n uint64, color text.Color) cell {
	if n == 0 {
		return cell{text: "0", color: text.Dim}
	}
	return cell{text: fmt.Sprint(n), color: color}
}

// why lists the errors: the reasons of rejected and dropped flows, the most frequent first, then
// the other states: "7 no endpoints, 2 refused".
func why(s *observe.Service) string {
	reasons := slices.SortedFunc(maps.Keys(s.Refused), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.Refused[b], s.Refused[a]), strings.Compare(a, b))
	})
	var words []string
	for _, r := range reasons {
		words = append(words, fmt.Sprintf("%d %s", s.Refused[r], strings.ReplaceAll(r, "-", " ")))
	}
	for _, other := range []struct {
		state flow.State
		flows uint64
	}{{flow.Refused, s.Flows.Refused}, {flow.Reset, s.Flows.Reset}, {flow.Failed, s.Flows.Failed}} {
		if other.flows > 0 {
			words = append(words, fmt.Sprintf("%d %s", other.flows, other.state))
		}
	}
	return strings.Join(words, ", ")
}

// matches reports whether one of the texts contains the filter, ignoring case.
func matches(filter string, texts ...string) bool {
	for _, t := range texts {
		if strings.Contains(strings.ToLower(t), strings.ToLower(filter)) {
			return true
		}
	}
	return false
}

// rows makes rows of a list's cells.
func (m *Model) rows(columns []column, keys []string, cells [][]cell) (string, []row) {
	head, lines := m.layout(m.width-cursorWidth, columns, cells)
	rows := make([]row, len(lines))
	for i, line := range lines {
		rows[i] = row{keys[i], line}
	}
	return head, rows
}
