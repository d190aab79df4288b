package top

import (
	"context"
	"fmt"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// requestTimeout is the timeout of a request.
const requestTimeout = 10 * time.Second

// snapshot is what was known at a time.
type snapshot struct {
	at       time.Time
	services *observe.Services
	stats    []observe.Stats
	// flows are those that were counted until then; see the keys below.
	flows map[string]uint64
}

type snapshotMsg struct {
	*snapshot
	err error
}

// serviceKey names a service port in one family, endpointKey one of its endpoints.
func serviceKey(s *observe.Service) string { return s.Service + " " + s.Protocol + " " + s.Family }

func endpointKey(s *observe.Service, e *observe.Endpoint) string {
	return serviceKey(s) + " " + e.Endpoint
}

// noServiceKey is the key of flows for no service.
const noServiceKey = ""

// fetch requests a snapshot.
func (m *Model) fetch() tea.Cmd {
	return func() tea.Msg {
		ctx, stop := context.WithTimeout(m.ctx, requestTimeout)
		defer stop()
		services, err := m.observer.Services(ctx, m.options.Query)
		if err != nil {
			return snapshotMsg{err: err}
		}
		stats, err := m.observer.Stats(ctx)
		if err != nil {
			return snapshotMsg{err: err}
		}
		return snapshotMsg{snapshot: newSnapshot(m.options.Now(), services, stats)}
	}
}

func newSnapshot(at time.Time, services *observe.Services, stats []observe.Stats) *snapshot {
	s := &snapshot{at: at, services: services, stats: stats, flows: make(map[string]uint64)}
	for i := range services.Services {
		service := &services.Services[i]
		s.flows[serviceKey(service)] = service.Flows.Total
		for j := range service.Endpoints {
			s.flows[endpointKey(service, &service.Endpoints[j])] = service.Endpoints[j].Flows.Total
		}
	}
	for _, node := range stats {
		s.flows[noServiceKey] += node.Reasons[decision.NotAService.String()]
	}
	return s
}

// rate is how many flows there were in a second, between the last two snapshots; not ok: it
// is not known, as at the start, or after a daemon was restarted.
func (m *Model) rate(key string) (float64, bool) {
	if m.before == nil || m.seen == nil {
		return 0, false
	}
	before, known := m.before.flows[key]
	now := m.seen.flows[key]
	seconds := m.seen.at.Sub(m.before.at).Seconds()
	if !known || now < before || seconds <= 0 {
		return 0, false
	}
	return float64(now-before) / seconds, true
}

// servicesRate is that of all services which the last two snapshots have.
func (m *Model) servicesRate() (sum float64, ok bool) {
	for i := range m.seen.services.Services {
		if rate, known := m.rate(serviceKey(&m.seen.services.Services[i])); known {
			sum, ok = sum+rate, true
		}
	}
	return sum, ok
}

// rateText renders the rate of a key.
func (m *Model) rateText(key string) string { return perSecond(m.rate(key)) }

// perSecond renders a rate; not ok: it is not known.
func perSecond(rate float64, ok bool) string {
	switch {
	case !ok:
		return "-"
	case rate > 0 && rate < 9.95:
		return fmt.Sprintf("%.1f", rate)
	}
	return fmt.Sprintf("%.0f", rate)
}

// service finds a service in what was seen last; nil: it is not there any more.
func (m *Model) service(key string) *observe.Service {
	if m.seen == nil {
		return nil
	}
	for i := range m.seen.services.Services {
		if s := &m.seen.services.Services[i]; serviceKey(s) == key {
			return s
		}
	}
	return nil
}
