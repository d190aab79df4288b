package findings

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// lagTime is when the nodes are asked.
var lagTime = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// changed is a change of one endpoint on node-a, some time ago.
func changed(ago time.Duration, endpoint, what string, more func(*observe.EndpointChange)) observe.Change {
	e := observe.EndpointChange{Endpoint: endpoint, Change: what}
	more(&e)
	return observe.Change{Node: "node-a", Time: lagTime.Add(-ago), Endpoints: []observe.EndpointChange{e}}
}

func awaited(e *observe.EndpointChange) { e.RulesAwaited = true }

func written(e *observe.EndpointChange) { e.Rules = &lagTime }

func lagStatus() []observe.Status {
	return []observe.Status{{Node: "node-z"}, {Node: "node-a", Daemon: &observe.Daemon{Observed: "kube-proxy (nftables)", Time: lagTime}}}
}

// TestLags: changes that the rules of an observed proxy lack are a finding after some time, unless a later change shows that
// the proxy has written all, or takes them back.
func TestLags(t *testing.T) {
	const one2, two = "10.244.1.2:80", "10.244.1.3:80"
	elsewhere := changed(20*time.Second, two, observe.EndpointAdded, written)
	elsewhere.Node = "node-b"
	for name, tt := range map[string]struct {
		changes, others []observe.Change // of the Service and of another one
		want            string
	}{
		"written":    {changes: []observe.Change{changed(time.Hour, one2, observe.EndpointRemoved, written)}},
		"not known":  {changes: []observe.Change{changed(time.Hour, one2, observe.EndpointRemoved, func(*observe.EndpointChange) {})}},
		"just now":   {changes: []observe.Change{changed(14*time.Second, one2, observe.EndpointRemoved, awaited)}},
		"removed":    {changes: []observe.Change{changed(20*time.Second, one2, observe.EndpointRemoved, awaited)}, want: "NFQ093 the rules of kube-proxy (nftables) on node-a have missed changes of shop/web:http for 20s: they still lead to 10.244.1.2:80"},
		"added":      {changes: []observe.Change{changed(20*time.Second, one2, observe.EndpointAdded, awaited)}, want: "NFQ093 the rules of kube-proxy (nftables) on node-a have missed changes of shop/web:http for 20s: they do not lead to 10.244.1.2:80 yet"},
		"with flows": {changes: []observe.Change{changed(20*time.Second, one2, observe.EndpointAdded, func(e *observe.EndpointChange) { e.RulesAwaited, e.FirstFlow = true, &observe.ChangeFlow{} })}},
		"replaced": {
			changes: []observe.Change{changed(time.Hour, one2, observe.EndpointAdded, written), changed(90*time.Second, two, observe.EndpointAdded, awaited), changed(80*time.Second, one2, observe.EndpointExcluded, awaited), changed(time.Second, one2, observe.EndpointRemoved, func(*observe.EndpointChange) {})},
			want:    "NFQ093 the rules of kube-proxy (nftables) on node-a have missed changes of shop/web:http for 1m30s: they still lead to 10.244.1.2:80, and do not lead to 10.244.1.3:80 yet",
		},
		"taken back":             {changes: []observe.Change{changed(90*time.Second, one2, observe.EndpointExcluded, awaited), changed(89*time.Second, one2, observe.EndpointUsable, awaited)}},
		"a later one is written": {changes: []observe.Change{changed(90*time.Second, one2, observe.EndpointRemoved, awaited), changed(60*time.Second, two, observe.EndpointAdded, written)}},
		"that of another":        {changes: []observe.Change{changed(90*time.Second, one2, observe.EndpointRemoved, awaited)}, others: []observe.Change{changed(60*time.Second, two, observe.EndpointAdded, written)}},
		"that of another node": {
			changes: []observe.Change{changed(90*time.Second, one2, observe.EndpointRemoved, awaited), elsewhere},
			want:    "NFQ093 the rules of kube-proxy (nftables) on node-a have missed changes of shop/web:http for 1m30s: they still lead to",
		},
		"several": {
			changes: []observe.Change{changed(20*time.Second, one2, observe.EndpointRemoved, awaited)}, others: []observe.Change{changed(90*time.Second, two, observe.EndpointRemoved, awaited)},
			want: "NFQ093 the rules of kube-proxy (nftables) on node-a have missed changes of shop/other for 1m30s: they still lead to 10.244.1.3:80; and those of 1 more service port",
		},
	} {
		t.Run(name, func(t *testing.T) {
			one(t, ofLags(lags([]observe.Service{{Service: "shop/web:http", Changes: tt.changes}, {Service: "shop/other", Changes: tt.others}}, lagStatus())), tt.want)
		})
	}
}

// changedServices is an observer of services.
type changedServices struct {
	observe.Observer
	list   []observe.Service
	others []observe.Service
}

func (c changedServices) Services(_ context.Context, q observe.ServiceQuery) (*observe.Services, error) {
	if q.Service == "" {
		return &observe.Services{Services: slices.Concat(c.list, c.others)}, nil
	}
	return &observe.Services{Services: slices.Clone(c.list)}, nil
}

// TestLagInAnswer: rules that lack changes make an answer a partial one, and a failure if they lead to nothing that is left.
func TestLagInAnswer(t *testing.T) {
	const before, after = "10.244.1.2:80", "10.244.1.3:80"
	added := changed(90*time.Second, after, observe.EndpointAdded, awaited)
	later := []observe.Service{{Service: "shop/other", Family: "IPv4", Changes: []observe.Change{changed(time.Minute, "10.244.1.9:80", observe.EndpointAdded, written)}}}
	for name, tt := range map[string]struct {
		node      string
		changes   []observe.Change
		others    []observe.Service
		endpoints []string
		outcome   diagnose.Outcome
		headline  string
	}{
		"written":                    {"node-a", []observe.Change{changed(90*time.Second, after, observe.EndpointAdded, written)}, nil, []string{after}, diagnose.Works, "works, as far as the objects show"},
		"another node":               {"node-b", []observe.Change{added}, nil, []string{after}, diagnose.Works, "works, as far as the objects show"},
		"that of another is written": {"node-a", []observe.Change{added}, later, []string{after}, diagnose.Works, "works, as far as the objects show"},
		"one is gone":                {"node-a", []observe.Change{changed(90*time.Second, before, observe.EndpointRemoved, awaited)}, nil, []string{after}, diagnose.Partly, "works, but the rules of kube-proxy (nftables) on node-a have missed changes of shop/web:http for 1m30s: they still lead to 10.244.1.2:80 (NFQ093)"},
		"one is new":                 {"node-a", []observe.Change{added}, nil, []string{before, after}, diagnose.Partly, "works, but the rules"},
		"all are new":                {"node-a", []observe.Change{added, changed(80*time.Second, before, observe.EndpointRemoved, awaited)}, nil, []string{after}, diagnose.Fails, "does not work"},
		// It may still answer.
		"not ready": {"node-a", []observe.Change{added, changed(80*time.Second, before, observe.EndpointExcluded, awaited)}, nil, []string{after}, diagnose.Partly, "works, but the rules"},
	} {
		t.Run(name, func(t *testing.T) {
			d := &Doctor{Observer: changedServices{list: []observe.Service{{Service: "shop/web:http", Family: "IPv4", Changes: tt.changes}}, others: tt.others}}
			a := &diagnose.Answer{Works: true, Node: tt.node, Record: &flow.Record{Service: "shop/web:http", Destination: "10.96.0.20:80"}}
			for _, e := range tt.endpoints {
				a.Endpoints = append(a.Endpoints, diagnose.Endpoint{Address: e})
			}
			if err := d.addLag(t.Context(), lagStatus(), a); err != nil {
				t.Fatal(err)
			}
			if a.Settle(); a.Outcome != tt.outcome || !strings.HasPrefix(a.Headline, tt.headline) {
				t.Errorf("%s: %s, want %s: %s", a.Outcome, a.Headline, tt.outcome, tt.headline)
			}
		})
	}
}
