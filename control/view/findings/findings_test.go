package findings

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// service is Service shop/web with endpoints of these counts, of open flows and of new ones.
func service(protocol string, fit *observe.Fit, open, selected []uint64) observe.Service {
	s := observe.Service{Service: "shop/web:http", Namespace: "shop", Name: "web", Protocol: protocol, Fit: fit}
	sum := uint64(0)
	for _, n := range selected {
		sum += n
	}
	for i := range open {
		s.Endpoints = append(s.Endpoints, observe.Endpoint{
			Endpoint: fmt.Sprintf("10.244.1.%d:8080", i+1), Flows: observe.Flows{Open: open[i]}, Expected: 1 / float64(len(open)), Observed: float64(selected[i]) / float64(max(sum, 1)),
		})
	}
	if fit != nil {
		fit.Draws, fit.DegreesOfFreedom = sum, len(open)-1
	}
	return s
}

func removed(s observe.Service) observe.Service {
	s.Endpoints[0].Removed = true
	return s
}

// since has the removal of the first endpoint among the changes, and another one after it.
func since(s observe.Service, at time.Time) observe.Service {
	change := func(at time.Time, endpoint, change string) observe.Change {
		return observe.Change{Time: at, Endpoints: []observe.EndpointChange{{Endpoint: endpoint, Change: change}}}
	}
	s.Changes = []observe.Change{change(at, s.Endpoints[0].Endpoint, observe.EndpointRemoved), change(time.Now(), s.Endpoints[1].Endpoint, observe.EndpointUsable)}
	return s
}

func sticky(s observe.Service) observe.Service {
	s.AffinitySeconds = 10800
	return s
}

// TestServices: what counts as a finding, and what does not.
func TestServices(t *testing.T) {
	for name, tt := range map[string]struct {
		service observe.Service
		want    string // the beginning of code and text; empty: no finding
	}{
		"no flows":               {service("TCP", nil, []uint64{0, 0}, []uint64{0, 0}), ""},
		"even":                   {service("TCP", &observe.Fit{PValue: 0.5}, []uint64{30, 28}, []uint64{500, 504}), ""},
		"uneven":                 {service("TCP", &observe.Fit{PValue: 1e-9}, []uint64{30, 28}, []uint64{700, 300}), "NFQ042 new flows to shop/web:http are not spread evenly: 10.244.1.1:8080 gets 70 % of 1000, and should get 50 %"},
		"uneven by chance":       {service("TCP", &observe.Fit{PValue: 1e-3}, []uint64{30, 28}, []uint64{550, 450}), ""},
		"too few to test":        {service("TCP", &observe.Fit{PValue: 1e-9}, []uint64{1, 0}, []uint64{8, 0}), ""},
		"old connections":        {service("TCP", &observe.Fit{PValue: 0.5}, []uint64{90, 10}, []uint64{500, 504}), "NFQ043 new connections to shop/web:http are spread evenly, but open ones are not: 10.244.1.2:8080 has 10 of 100"},
		"few old connections":    {service("TCP", &observe.Fit{PValue: 0.5}, []uint64{9, 0}, []uint64{500, 504}), ""},
		"affinity":               {sticky(service("TCP", &observe.Fit{PValue: 0.5}, []uint64{90, 10}, []uint64{500, 504})), ""},
		"stuck UDP":              {removed(service("UDP", nil, []uint64{3, 2}, []uint64{0, 0})), "NFQ044 3 UDP flows to shop/web:http still go to 10.244.1.1:8080"},
		"stuck UDP, known since": {since(removed(service("UDP", nil, []uint64{3, 2}, []uint64{0, 0})), time.Now().Add(-time.Minute)), "NFQ044 3 UDP flows to shop/web:http still go to 10.244.1.1:8080"},
		"UDP, just removed":      {since(removed(service("UDP", nil, []uint64{3, 2}, []uint64{0, 0})), time.Now().Add(-20*time.Second)), ""},
		"UDP that has gone":      {removed(service("UDP", nil, []uint64{0, 2}, []uint64{0, 0})), ""},
		"TCP to a removed one":   {removed(service("TCP", nil, []uint64{3, 2}, []uint64{0, 0})), ""},
		"ports":                  {service("TCP", nil, []uint64{52_000}, []uint64{0}), "NFQ047 52000 flows are open to 10.244.1.1:8080"},
		"fewer ports":            {service("TCP", nil, []uint64{51_000}, []uint64{0}), ""},
	} {
		t.Run(name, func(t *testing.T) { one(t, ofServices([]observe.Service{tt.service}, time.Now()), tt.want) })
	}
}

// one checks that there is one finding with this beginning; empty: none.
func one(t *testing.T, found []diagnose.Finding, want string) {
	t.Helper()
	switch {
	case want == "" && len(found) == 0:
	case want == "" || len(found) != 1 || !strings.HasPrefix(string(found[0].Code)+" "+found[0].Text, want):
		t.Errorf("%+v, want %q", found, want)
	case found[0].Do == "" || found[0].Object == "":
		t.Errorf("no remedy or no object: %+v", found[0])
	}
}

func TestTables(t *testing.T) {
	now := time.Now()
	table := func(node, digest string, age time.Duration) observe.Table {
		return observe.Table{Node: node, Digest: digest, Built: now.Add(-age)}
	}
	for name, tt := range map[string]struct {
		tables []observe.Table
		want   string
	}{
		"one node":       {[]observe.Table{table("a", "1", time.Hour)}, ""},
		"same":           {[]observe.Table{table("a", "1", time.Hour), table("b", "1", time.Minute)}, ""},
		"older version":  {[]observe.Table{table("a", "1", time.Hour), table("b", "", time.Minute)}, ""},
		"differ just so": {[]observe.Table{table("a", "1", time.Hour), table("b", "2", 9*time.Second)}, ""},
		"differ":         {[]observe.Table{table("a", "1", time.Hour), table("b", "2", 11*time.Second), table("c", "1", time.Hour)}, "NFQ049 nodes have had different services or endpoints for 11s: a, c | b"},
	} {
		t.Run(name, func(t *testing.T) { one(t, ofTables(tt.tables, now), tt.want) })
	}
}

// flows are flows to shop/web, of which some were repeated.
func flows(n, repeated int) (records []*flow.Record) {
	for i := range n {
		r := &flow.Record{Node: "node-a", Service: "shop/web:http", Protocol: "TCP", Source: "10.244.1.9:4000", SourcePod: "shop/client", Life: &flow.Life{State: flow.Answered, Answered: true}}
		if i < repeated {
			r.Life.Repeated = 1
		}
		records = append(records, r)
	}
	return records
}

func TestFlows(t *testing.T) {
	for name, tt := range map[string]struct {
		records []*flow.Record
		want    string
	}{
		"none":         {flows(100, 0), ""},
		"few":          {flows(20, 4), ""},
		"a small part": {flows(200, 9), ""},
		"many":         {flows(100, 5), "NFQ046 clients retransmitted the first packet of 5 of 100 recent flows to shop/web:http after"},
	} {
		t.Run(name, func(t *testing.T) { one(t, ofFlows(tt.records), tt.want) })
	}
}

// TestProxy: of what an observed proxy does against the objects, what is normal for a short time counts later only.
func TestProxy(t *testing.T) {
	change := func(n int, change func(*flow.Record)) []*flow.Record {
		list := flows(n, 0)
		for _, r := range list {
			r.Proxy, r.Reason, r.Endpoint, r.Pod = "kube-proxy (iptables)", decision.ByProxy.String(), "10.244.1.2:80", "shop/web-1"
			change(r)
		}
		return list
	}
	outdated := func(seconds float64) []*flow.Record {
		return change(1, func(r *flow.Record) { r.Outdated = seconds })
	}
	for name, tt := range map[string]struct {
		records []*flow.Record
		want    string
	}{
		"healthy":        {change(3, func(*flow.Record) {}), ""},
		"a little late":  {outdated(4.9), ""},
		"late":           {slices.Concat(outdated(4.9), outdated(7.25), outdated(6)), "NFQ090 kube-proxy (iptables) on node-a sent 2 recent flows to shop/web:http to endpoints that had been out of use for more than 5s: shop/web-1; at most for 7.2s"},
		"unknown":        {change(1, func(r *flow.Record) { r.Reason, r.Pod = "unknown-endpoint", "" }), "NFQ091 kube-proxy (iptables) on node-a sent 1 recent flow to shop/web:http to an address that is not its endpoint in any service table that the node keeps: 10.244.1.2:80"},
		"not translated": {change(2, func(r *flow.Record) { r.Reason, r.Pod, r.Endpoint = "not-translated", "", "" }), "NFQ092 kube-proxy (iptables) on node-a did not translate 2 recent flows to shop/web:http"},
		"from before":    {change(2, func(r *flow.Record) { r.Reason, r.Life.Incomplete = "not-translated", true }), ""},
	} {
		t.Run(name, func(t *testing.T) { one(t, ofProxy(tt.records), tt.want) })
	}
}

func TestStatus(t *testing.T) {
	status := observetest.Status()
	one(t, ofStatus([]observe.Status{status}, nil, nil), "")
	full := *status.Daemon
	full.Connections = &observe.Connections{Entries: 900, Limit: 1000}
	status.Daemon = &full
	one(t, ofStatus([]observe.Status{status}, flows(3, 0), nil), "NFQ045 the connection table of "+status.Node+" has 900 entries of 1000: new connections fail when it is full; most recent flows are from shop/client (3)")
	full.Connections = &observe.Connections{Entries: 900}
	one(t, ofStatus([]observe.Status{status}, nil, nil), "")
	status.Problems = []observe.Problem{{Code: observe.ProblemWorkerStuck, Text: "the worker of queue 100 makes no progress"}}
	one(t, ofStatus([]observe.Status{status}, nil, nil), "NFQ048 "+status.Node+": the worker of queue 100 makes no progress (worker-stuck)")
}

// TestObserved takes everything from an observer, and passes its errors on.
func TestObserved(t *testing.T) {
	c := observetest.NewCluster()
	records, err := Recent(t.Context(), c)
	if err != nil || len(records) == 0 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	found, err := Observed(t.Context(), c, records)
	if err != nil {
		t.Fatal(err)
	}
	one(t, found, "NFQ042 ")
	c.Fail(errors.New("away"))
	if _, err := Observed(context.Background(), c, nil); err == nil {
		t.Error("no error of an observer that does not answer")
	}
}

// TestDoctor: findings of objects and of what is observed are in one list; questions need objects.
func TestDoctor(t *testing.T) {
	objects, err := manifest.Load([]string{"../../../control/paper/diagnose/testdata/shop.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	objects.Services[0].Spec.Selector = map[string]string{"app": "wbe"}
	c := observetest.NewCluster()
	d := &Doctor{Observer: c}
	list, err := d.Findings(t.Context())
	if err != nil || len(list.Findings) != 1 || list.Findings[0].Code != diagnose.Uneven {
		t.Errorf("without objects: %+v, %v", list, err)
	}
	var wrong *observe.Error
	if _, err := d.Why(t.Context(), diagnose.Question{From: "shop/client", To: "web.shop:80"}); !errors.As(err, &wrong) || wrong.Status != 404 {
		t.Errorf("without objects: %v", err)
	}
	d.Objects = func(context.Context) (*manifest.Objects, servicetable.NodeConfig, error) {
		return objects, servicetable.NodeConfig{}, nil
	}
	list, err = d.Findings(t.Context())
	if err != nil || len(list.Findings) < 2 || list.Findings[0].Code != diagnose.SelectorMatchesNothing || !slices.ContainsFunc(list.Findings, func(f diagnose.Finding) bool { return f.Code == diagnose.Uneven }) {
		t.Errorf("%+v, %v", list, err)
	}
	if a, err := d.Why(t.Context(), diagnose.Question{From: "shop/client", To: "web.shop:80"}); err != nil || !a.Works {
		t.Errorf("%+v, %v", a, err)
	}
	for _, tt := range []struct {
		q     diagnose.Question
		field string
	}{
		{diagnose.Question{From: "shop/clinet", To: "web.shop:80"}, "from"},
		{diagnose.Question{From: "shop/client", To: "wbe.shop:80"}, "to"},
		{diagnose.Question{From: "shop/client", To: "web.shop:80", Protocol: "icmp"}, "protocol"},
		{diagnose.Question{From: "shop/client", To: "web.shop:80", Node: "node-z"}, "node"},
	} {
		var invalid *diagnose.QuestionError
		if _, err := d.Why(t.Context(), tt.q); !errors.As(err, &invalid) || invalid.Field != tt.field {
			t.Errorf("%+v: %v, want an error of %s", tt.q, err, tt.field)
		}
	}
	d.Objects = func(context.Context) (*manifest.Objects, servicetable.NodeConfig, error) {
		return nil, servicetable.NodeConfig{}, errors.New("damaged")
	}
	if _, err := d.Findings(t.Context()); err == nil {
		t.Error("no error for objects that cannot be read")
	}
}
