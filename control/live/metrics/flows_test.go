package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// fakeObserver answers the queries of scrapes.
type fakeObserver struct {
	observe.Observer // nil: no other query is made
	stats            []observe.Stats
	services         []observe.Service
	err              error
}

func (f fakeObserver) Stats(context.Context) ([]observe.Stats, error) { return f.stats, f.err }

func (f fakeObserver) Services(context.Context, observe.ServiceQuery) (*observe.Services, error) {
	return &observe.Services{Services: f.services}, f.err
}

// exampleObserver has two service ports, one of which is not chosen by exampleServices.
func exampleObserver() fakeObserver {
	fit := &observe.Fit{PValue: 0.25}
	return fakeObserver{
		stats: []observe.Stats{{
			Readers: 2, Missed: 31,
			Known:       observe.Known{Flows: 100, Open: 40, Capacity: 16384, Forgotten: 32, Lost: 33},
			Generations: observe.Generations{Kept: 34, Oldest: 2, Dropped: 35},
			Kernel:      observe.Kernel{Following: true, Events: 34, Overruns: 35, Resyncs: 36, Paused: true},
		}},
		services: []observe.Service{
			{Namespace: "default", Name: "kubernetes", PortName: "https", Family: "IPv4"},
			{
				Namespace: "shop", Name: "web", PortName: "http", Port: 80, Family: "IPv4", Fit: fit,
				Flows: observe.Flows{Total: 51, Drawn: 6, Affinity: 7, Rejected: 8, Dropped: 9, Failed: 10, Unanswered: 11, Refused: 12, Reset: 13, Open: 14, BytesSent: 15, BytesReceived: 16},
				Endpoints: []observe.Endpoint{
					{
						Endpoint: "10.0.0.1:8080", Pod: "shop/web-1", Expected: 0.5, Observed: 0.75,
						Flows: observe.Flows{Total: 24, Drawn: 17, Affinity: 3, Failed: 4, Unanswered: 18, Refused: 19, Reset: 20, Open: 21, BytesSent: 22, BytesReceived: 23},
					},
					{Endpoint: "10.0.0.2:8080", Expected: 0.5, Observed: 0.25},
					{Endpoint: "10.0.0.3:8080", Removed: true, Flows: observe.Flows{Drawn: 99}},
				},
			},
		},
	}
}

// exampleServices choose the second service of exampleObserver.
func exampleServices() ServiceMetrics { return ServiceMetrics{Services: ServicePatterns{"shop/*"}} }

func TestParseServicePatterns(t *testing.T) {
	for text, want := range map[string]ServicePatterns{
		"":                       nil,
		" ":                      nil,
		"shop/*":                 {"shop/*"},
		"shop/*, default/web":    {"shop/*", "default/web"},
		"*/*":                    {"*/*"},
		"team-*/api-v2,*/*-dns*": {"team-*/api-v2", "*/*-dns*"},
	} {
		if got, err := ParseServicePatterns(text); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"shop":      `service pattern "shop": want NAMESPACE/NAME, where * matches anything: "shop/*", "*/web"`,
		"shop/*,":   `service pattern "": want NAMESPACE/NAME, where * matches anything: "shop/*", "*/web"`,
		"shop/":     `service pattern "shop/": want NAMESPACE/NAME, where * matches anything: "shop/*", "*/web"`,
		"/web":      `service pattern "/web": want NAMESPACE/NAME, where * matches anything: "shop/*", "*/web"`,
		"a/web:80":  `service pattern "a/web:80": invalid character ':': want lower-case letters, digits, - and the wildcard *`,
		"a/b/c":     `service pattern "a/b/c": invalid character '/': want lower-case letters, digits, - and the wildcard *`,
		"Shop/web":  `service pattern "Shop/web": invalid character 'S': want lower-case letters, digits, - and the wildcard *`,
		"a/[":       `service pattern "a/[": invalid character '[': want lower-case letters, digits, - and the wildcard *`,
		"a/w?b,b/é": `service pattern "a/w?b": invalid character '?': want lower-case letters, digits, - and the wildcard *`,
	} {
		if _, err := ParseServicePatterns(text); err == nil || err.Error() != want {
			t.Errorf("%q: %v\nwant %s", text, err, want)
		}
	}
}

func TestServicePatternsMatch(t *testing.T) {
	p := ServicePatterns{"shop/*", "default/web", "*/*-dns"}
	for name, want := range map[string]bool{
		"shop/web": true, "default/web": true, "kube-system/kube-dns": true, "shop/dns": true,
		"default/web2": false, "default/aweb": false, "shop2/web": false, "kube-system/dns": false, "web/shop": false,
	} {
		namespace, service, _ := strings.Cut(name, "/")
		if got := p.Match(namespace, service); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if (ServicePatterns)(nil).Match("shop", "web") {
		t.Error("no pattern names a service")
	}
}

// TestServiceLimit: all services before any endpoint, in order, each with all it has or
// nothing; what is left out is counted.
func TestServiceLimit(t *testing.T) {
	// A service port has 11 series and, once it had draws, 12; an endpoint 9, then 11.
	services := []observe.Service{
		{Namespace: "a", Name: "one", Port: 1, Family: "IPv4", Endpoints: []observe.Endpoint{{Endpoint: "a1"}, {Endpoint: "a2"}}},
		{Namespace: "b", Name: "two", Port: 2, Family: "IPv4", Fit: &observe.Fit{}, Endpoints: []observe.Endpoint{{Endpoint: "b1"}}},
		{Namespace: "c", Name: "three", Port: 3, Family: "IPv4", Endpoints: []observe.Endpoint{{Endpoint: "c1"}}},
	}
	const all = 11 + 12 + 11 + 9 + 9 + 11 + 9
	for limit, want := range map[int]struct {
		there   string
		dropped int
	}{
		0:                         {"one two three a1 a2 b1 c1", 0}, // the default
		all:                       {"one two three a1 a2 b1 c1", 0},
		all - 1:                   {"one two three a1 a2 b1", 9},
		11 + 12 + 11 + 9 + 9:      {"one two three a1 a2", 20},
		11 + 12 + 11 + 9 + 9 + 9:  {"one two three a1 a2", 20}, // c1 would fit, but comes after b1
		11 + 12 + 11 + 9 + 9 + 10: {"one two three a1 a2", 20},
		11 + 12 + 11:              {"one two three", all - 34},
		11 + 12 + 10:              {"one two", all - 23},
		11 + 11:                   {"one", all - 11},
		10:                        {"", all},
	} {
		m := New("")
		m.ReadFlows(fakeObserver{stats: make([]observe.Stats, 1), services: services}, ServiceMetrics{Services: ServicePatterns{"*/*"}, Limit: limit})
		text := exposition(t, m)
		var there []string
		for _, s := range services {
			if strings.Contains(text, fmt.Sprintf(`nfqproxy_service_open_flows{ip_family="IPv4",namespace=%q,port="%d",service=%q} 0`, s.Namespace, s.Port, s.Name)) {
				there = append(there, s.Name)
			}
		}
		for _, s := range services {
			for _, e := range s.Endpoints {
				if strings.Contains(text, fmt.Sprintf(`nfqproxy_service_endpoint_open_flows{endpoint=%q,`, e.Endpoint)) {
					there = append(there, e.Endpoint)
				}
			}
		}
		series := strings.Count(text, "\nnfqproxy_service_") - strings.Count(text, "\nnfqproxy_service_metrics_")
		if got := strings.Join(there, " "); got != want.there || series != all-want.dropped {
			t.Errorf("limit %d: %d series, of %s; want %d, of %s", limit, series, got, all-want.dropped, want.there)
		}
		if line := fmt.Sprintf("nfqproxy_service_metrics_dropped_series{} %d\n", want.dropped); !strings.Contains(text, line) {
			t.Errorf("limit %d: want %s", limit, line)
		}
	}
}

// TestServicesAreOptIn: without patterns no service has metrics, and none are missing.
func TestServicesAreOptIn(t *testing.T) {
	m := New("")
	m.ReadFlows(exampleObserver(), ServiceMetrics{})
	text := exposition(t, m)
	if strings.Contains(text, "nfqproxy_service_") || !strings.Contains(text, "nfqproxy_flow_api_readers{} 2\n") {
		t.Errorf("want metrics of flows, but not of services:\n%s", text)
	}
}

// TestObserverFails: the log names the metrics that are missing; all others are served.
func TestObserverFails(t *testing.T) {
	for want, o := range map[string]fakeObserver{
		"counters of flows: the journal is closed":             {err: errors.New("the journal is closed")},
		"flows of services: the journal is closed":             {err: errors.New("the journal is closed")},
		"counters of flows: want counters of one node, have 2": {stats: make([]observe.Stats, 2)},
	} {
		m := New("v1.2.3")
		m.ReadFlows(o, exampleServices())
		var log strings.Builder
		w := get(m.Handler(HandlerConfig{Log: slog.New(slog.NewTextHandler(&log, nil))}), "/metrics", "")
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "\nnfqproxy_build_info{") || strings.Contains(w.Body.String(), "nfqproxy_known_flows") {
			t.Errorf("%s: %d\n%s", want, w.Code, w.Body)
		}
		if !strings.Contains(log.String(), want) {
			t.Errorf("log: %s\nwant %s", &log, want)
		}
	}
}
