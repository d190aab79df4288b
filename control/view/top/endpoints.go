package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/paper/unit"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// endpointsView shows a service: its addresses, and the distribution of its flows.
type endpointsView struct{ service string } // its key

func (v endpointsView) name() string { name, _, _ := strings.Cut(v.service, " "); return name }

var endpointColumns = []column{
	{name: "ENDPOINT"},
	{name: "FLOWS/S", right: true},
	{name: "TOTAL", right: true, least: 6, rank: 2},
	{name: "EXPECTED", right: true},
	{name: "OBSERVED", right: true},
	{name: "SHARE", least: shareWidth, rank: 1}, // or why it has none
	{name: "UNANSWERED", right: true, rank: 3},
	{name: "REFUSED", right: true, rank: 4},
	{name: "RESET", right: true, rank: 6},
	{name: "FAILED", right: true, rank: 8},
	{name: "OPEN", right: true, rank: 5},
	{name: "NODE", rank: 7},
}

const shareWidth = 14

func (v endpointsView) content(m *Model, p *page) content {
	c := content{empty: "No endpoints.", orders: []string{"as in kube-proxy's chains", "flows/s", "total"}}
	s := m.service(v.service)
	if s == nil {
		c.empty = "This service no longer exists."
		return c
	}
	c.above = m.about(s)
	endpoints := make([]*observe.Endpoint, 0, len(s.Endpoints))
	for i := range s.Endpoints {
		endpoints = append(endpoints, &s.Endpoints[i])
	}
	m.sortEndpoints(s, endpoints, p.sort)
	var keys []string
	var cells [][]cell
	for _, e := range endpoints {
		if matches(p.filter, e.Endpoint, e.Pod, e.Node) {
			keys = append(keys, e.Endpoint)
			cells = append(cells, m.endpointCells(s, e))
		}
	}
	c.head, c.rows = m.rows(endpointColumns, keys, cells)
	return c
}

func (v endpointsView) enter(_ *Model, key string) view {
	return &flowsView{service: v.name(), endpoint: key}
}

func (m *Model) sortEndpoints(s *observe.Service, endpoints []*observe.Endpoint, sort int) {
	by := []func(e *observe.Endpoint) float64{
		nil,
		func(e *observe.Endpoint) float64 { rate, _ := m.rate(endpointKey(s, e)); return rate },
		func(e *observe.Endpoint) float64 { return float64(e.Flows.Total) },
	}[sort]
	if by != nil {
		slices.SortStableFunc(endpoints, descending(by))
	}
}

// descending compares by a number, the largest first.
func descending[T any](by func(T) float64) func(a, b T) int {
	return func(a, b T) int { return cmp.Compare(by(b), by(a)) }
}

// about describes the service, above its endpoints.
func (m *Model) about(s *observe.Service) []cell {
	address := fmt.Sprintf("%s port %d, %s", s.ClusterIP, s.Port, s.Protocol)
	if s.NodePort != 0 {
		address += fmt.Sprintf(", node port %d", s.NodePort)
	}
	for _, a := range slices.Concat(s.ExternalIPs, s.LoadBalancerIPs) {
		address += ", " + a.String()
	}
	address += fmt.Sprintf("; policies: internal %s, external %s", s.InternalPolicy, s.ExternalPolicy)
	if s.AffinitySeconds > 0 {
		address += fmt.Sprintf("; session affinity %d s", s.AffinitySeconds)
	}
	f := &s.Flows
	counts := fmt.Sprintf("%s: %d selected at random", quantity.Count(f.Total, "flow"), f.Drawn)
	if f.Affinity > 0 {
		counts += fmt.Sprintf(", %d by affinity", f.Affinity)
	}
	counts += fmt.Sprintf("; %d open; ended flows: %s sent, %s received", f.Open, unit.Bytes(f.BytesSent), unit.Bytes(f.BytesReceived))
	lines := []cell{{text: address}, {text: counts}}
	if reasons := why(s); reasons != "" {
		lines = append(lines, cell{"errors: " + reasons, text.Red})
	}
	if f.Outdated+f.UnknownEndpoint+f.NotTranslated > 0 {
		lines = append(lines, cell{fmt.Sprintf("by the observed proxy: %d to outdated endpoints, %d to unknown endpoints, %d not translated", f.Outdated, f.UnknownEndpoint, f.NotTranslated), text.Yellow})
	}
	return append(lines, m.fit(s))
}

// significance is the p-value below which a distribution is reported (see [observe.Fit]). minDraws is
// the number of expected selections per endpoint below which the test is not valid.
const (
	significance = 0.01
	minDraws     = 5
)

// fit compares the distribution of random selections with equal probabilities.
func (m *Model) fit(s *observe.Service) cell {
	if s.Balance != "" {
		return cell{"Endpoints are selected by " + s.Balance + ".", text.Dim}
	}
	fit := s.Fit
	if fit == nil || fit.Draws == 0 {
		return cell{"No random selections yet.", text.Dim}
	}
	draws := quantity.Count(fit.Draws, "random selection") + " since " + m.at(fit.Since)
	least := float64(fit.Draws)
	for i := range s.Endpoints {
		if e := s.Endpoints[i].Expected; e > 0 {
			least = min(least, e*float64(fit.Draws))
		}
	}
	test := fmt.Sprintf("chi-square %.3g, degrees of freedom %d, p %.2g", fit.ChiSquare, fit.DegreesOfFreedom, fit.PValue)
	switch {
	case fit.DegreesOfFreedom == 0:
		return cell{draws + ": only one endpoint.", text.Dim}
	case least < minDraws:
		return cell{draws + ": too few to test for equal probabilities.", text.Dim}
	case fit.PValue < significance:
		return cell{draws + ", not consistent with equal probabilities: " + test + ".", text.Red}
	}
	return cell{draws + ", consistent with equal probabilities: " + test + ".", text.Green}
}

func (m *Model) endpointCells(s *observe.Service, e *observe.Endpoint) []cell {
	name, color := e.Endpoint, text.Color("")
	if e.Pod != "" {
		name = e.Pod + " " + e.Endpoint
	}
	expected, observed, bar := "-", "-", cell{}
	if s.Fit != nil && (e.Expected > 0 || e.Observed > 0) {
		expected, observed = percent(e.Expected), percent(e.Observed)
		bar.text = share(e.Observed, e.Expected, shareWidth)
	} else if s.Balance != "" {
		observed = percent(e.Observed)
		bar.text = share(e.Observed, 0, shareWidth)
	}
	switch {
	case e.Removed:
		bar, color = cell{"removed", text.Yellow}, text.Dim
	case e.Excluded != "":
		bar, color = cell{strings.ReplaceAll(e.Excluded, "-", " "), text.Yellow}, text.Dim
	}
	return []cell{
		{name, color}, {text: m.rateText(endpointKey(s, e))}, {text: fmt.Sprint(e.Flows.Total)},
		{text: expected}, {text: observed}, bar,
		alarmCell(e.Flows.Unanswered, text.Yellow), alarmCell(e.Flows.Refused, text.Red), alarmCell(e.Flows.Reset, text.Red), alarmCell(e.Flows.Failed, text.Red),
		{text: fmt.Sprint(e.Flows.Open)}, {text: e.Node},
	}
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }
