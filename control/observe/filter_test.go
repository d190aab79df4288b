package observe_test

import (
	"errors"
	"net/http"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestParseFlowQuery(t *testing.T) {
	address := func(prefix string, port uint16) observe.AddressPattern {
		return observe.AddressPattern{Prefix: netip.MustParsePrefix(prefix), Port: port}
	}
	tests := []struct {
		name  string
		query observe.FlowQuery
		want  observe.Filter
	}{
		{"nothing", observe.FlowQuery{}, observe.Filter{Limit: 100}},
		{"follow", observe.FlowQuery{Follow: true, Steps: true}, observe.Filter{Follow: true, Steps: true}},
		{"follow since", observe.FlowQuery{Follow: true, Since: "90s"}, observe.Filter{Follow: true, Since: now.Add(-90 * time.Second), Limit: observe.All}},
		{"follow since, some", observe.FlowQuery{Follow: true, Since: "1m", Limit: "7"}, observe.Filter{Follow: true, Since: now.Add(-time.Minute), Limit: 7}},
		{"follow, all before", observe.FlowQuery{Follow: true, Limit: "0"}, observe.Filter{Follow: true, Limit: observe.All}},
		{"all", observe.FlowQuery{Limit: "0"}, observe.Filter{Limit: observe.All}},
		{"since a time", observe.FlowQuery{Since: "2026-02-28T12:00:00.5+01:00"}, observe.Filter{Since: time.Date(2026, 2, 28, 11, 0, 0, 500_000_000, time.UTC), Limit: 100}},
		{"since now", observe.FlowQuery{Since: "0s"}, observe.Filter{Since: now, Limit: 100}},
		{"services", observe.FlowQuery{Service: "web, shop/web,shop/web:http"}, observe.Filter{Limit: 100, Services: []observe.ServicePattern{{"", "web", ""}, {"shop", "web", ""}, {"shop", "web", "http"}}}},
		{"namespaces", observe.FlowQuery{Namespace: "default,kube-system"}, observe.Filter{Limit: 100, Namespaces: []string{"default", "kube-system"}}},
		{"pods", observe.FlowQuery{Pod: "a-1.b,default/a"}, observe.Filter{Limit: 100, Pods: []observe.PodPattern{{"", "a-1.b"}, {"default", "a"}}}},
		{"nodes", observe.FlowQuery{Node: "node-a,ip-10-0-0-1.ec2.internal"}, observe.Filter{Limit: 100, Nodes: []string{"node-a", "ip-10-0-0-1.ec2.internal"}}},
		{"addresses", observe.FlowQuery{Source: "10.0.0.1", Destination: "10.0.0.9/8,[fd00::1]:80,fd00::/8", Endpoint: "10.0.0.2:53,fd00::2"}, observe.Filter{
			Limit: 100, Sources: []observe.AddressPattern{address("10.0.0.1/32", 0)},
			Destinations: []observe.AddressPattern{address("10.0.0.0/8", 0), address("fd00::1/128", 80), address("fd00::/8", 0)},
			Endpoints:    []observe.AddressPattern{address("10.0.0.2/32", 53), address("fd00::2/128", 0)},
		}},
		{"names", observe.FlowQuery{Source: "default/shell,outside:80", Endpoint: "web-1.a:8080"}, observe.Filter{
			Limit: 100, Sources: []observe.AddressPattern{{Name: "default/shell"}, {Name: "outside", Port: 80}},
			Endpoints: []observe.AddressPattern{{Name: "web-1.a", Port: 8080}},
		}},
		{"mapped", observe.FlowQuery{Source: "::ffff:10.0.0.1,[::ffff:10.0.0.1]:80,::ffff:10.0.0.0/104"}, observe.Filter{
			Limit: 100, Sources: []observe.AddressPattern{address("10.0.0.1/32", 0), address("10.0.0.1/32", 80), address("10.0.0.0/8", 0)},
		}},
		{"numbers", observe.FlowQuery{Port: "1,65535", Protocol: "tcp,Udp,SCTP"}, observe.Filter{
			Limit: 100, Ports: []uint16{1, 65535}, Protocols: []decision.Protocol{decision.TCP, decision.UDP, decision.SCTP},
		}},
		{"codes", observe.FlowQuery{Verdict: "accept,dnat,reject,drop", Reason: "affinity,not-filtered", State: "closed,failed"}, observe.Filter{
			Limit: 100, Verdicts: []decision.Verdict{decision.Accept, decision.DNAT, decision.Reject, decision.Drop},
			Reasons: []decision.Reason{decision.Bound, decision.NotFiltered}, States: []flow.State{flow.Closed, flow.Failed},
		}},
		{"events", observe.FlowQuery{Follow: true, Event: "decided,gone"}, observe.Filter{Follow: true, Events: []flow.Event{flow.Decided, flow.Gone}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.query.Parse(now)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tt.want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestParseFlowQueryErrors(t *testing.T) {
	const names = ", of lower-case letters, digits, . and -"
	const address = "want an ADDRESS, a PREFIX such as 10.244.0.0/16, ADDRESS:PORT or [IPV6]:PORT"
	const orName = ", or the NAME of a pod, node or client"
	tests := []struct {
		query          observe.FlowQuery
		field, message string
	}{
		{observe.FlowQuery{Protocol: "tpc"}, "protocol", `protocol "tpc": want TCP, UDP or SCTP`},
		{observe.FlowQuery{Protocol: "TCP,,UDP"}, "protocol", `protocol "TCP,,UDP": a value is empty: want values with commas between them`},
		{observe.FlowQuery{Protocol: " "}, "protocol", `protocol " ": a value is empty: want values with commas between them`},
		{observe.FlowQuery{Verdict: "DNAT"}, "verdict", `verdict "DNAT": want accept, dnat, reject or drop`},
		{observe.FlowQuery{Reason: "unknown"}, "reason", `reason "unknown": want not-a-service, balanced, affinity, no-endpoints, no-local-endpoints, source-not-allowed, foreign-localnet, not-filtered, dropped-by-hand, kernel-copy, service-proxy, unknown-endpoint, not-translated or translation-unknown`},
		{observe.FlowQuery{State: "gone"}, "state", `state "gone": want decided, answered, established, closing, closed, reset, refused, unanswered, expired, removed, rejected, dropped or failed`},
		{observe.FlowQuery{Event: "new", Follow: true}, "event", `event "new": want decided, answered, established, closing, closed, reset, refused, unanswered, expired, removed, rejected, dropped, failed, repeated or gone`},
		{observe.FlowQuery{Event: "gone"}, "event", `event "gone": only streams have events: use follow, or filter by state`},
		{observe.FlowQuery{Service: "web:http"}, "service", `service "web:http": want NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT` + names},
		{observe.FlowQuery{Service: "default/web:"}, "service", `service "default/web:": want NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT` + names},
		{observe.FlowQuery{Service: "/web"}, "service", `service "/web": want NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT` + names},
		{observe.FlowQuery{Service: "a/b/c"}, "service", `service "a/b/c": want NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT` + names},
		{observe.FlowQuery{Service: "default/web:80"}, "service", `service "default/web:80": want the port's name after the colon: filter by its number with port 80`},
		{observe.FlowQuery{Namespace: "Default"}, "namespace", `namespace "Default": want a namespace's name` + names},
		{observe.FlowQuery{Pod: "a/"}, "pod", `pod "a/": want NAME or NAMESPACE/NAME` + names},
		{observe.FlowQuery{Node: "a b"}, "node", `node "a b": want a node's name` + names},
		{observe.FlowQuery{Source: "10.0.0"}, "source", `source "10.0.0": ` + address + orName},
		{observe.FlowQuery{Destination: "10.0.0.1:99999"}, "destination", `destination "10.0.0.1:99999": ` + address},
		{observe.FlowQuery{Endpoint: "10.0.0.0/33"}, "endpoint", `endpoint "10.0.0.0/33": ` + address + orName},
		{observe.FlowQuery{Endpoint: "10.0.0.1:0"}, "endpoint", `endpoint "10.0.0.1:0": invalid port 0: leave the port out to match any`},
		{observe.FlowQuery{Source: "10/8"}, "source", `source "10/8": ` + address + orName},
		{observe.FlowQuery{Source: "default/web-1:http"}, "source", `source "default/web-1:http": ` + address + orName},
		{observe.FlowQuery{Endpoint: "pod/default/web-1"}, "endpoint", `endpoint "pod/default/web-1": ` + address + orName},
		{observe.FlowQuery{Destination: "default/web:80"}, "destination", `destination "default/web:80": ` + address + "; for a service use service default/web"},
		{observe.FlowQuery{Source: "fe80::1%eth0"}, "source", `source "fe80::1%eth0": remove the zone %eth0: addresses of flows have none`},
		{observe.FlowQuery{Source: "::ffff:10.0.0.0/90"}, "source", `source "::ffff:10.0.0.0/90": write it as an IPv4 prefix`},
		{observe.FlowQuery{Port: "0"}, "port", `port "0": want a number from 1 to 65535`},
		{observe.FlowQuery{Port: "65536"}, "port", `port "65536": want a number from 1 to 65535`},
		{observe.FlowQuery{Port: "http"}, "port", `port "http": want a number from 1 to 65535`},
		{observe.FlowQuery{Since: "-5m"}, "since", `since "-5m": want how long ago, such as 5m or 1h30m, or a time such as 2026-01-02T15:04:05Z`},
		{observe.FlowQuery{Since: "5"}, "since", `since "5": want how long ago, such as 5m or 1h30m, or a time such as 2026-01-02T15:04:05Z`},
		{observe.FlowQuery{Limit: "-1"}, "limit", `limit "-1": want a number; 0 is all that are known`},
		{observe.FlowQuery{Limit: "00"}, "limit", `limit "00": want a number; 0 is all that are known`},
		{observe.FlowQuery{Limit: "3000000000"}, "limit", `limit "3000000000": want a number; 0 is all that are known`},
		// Of several it is the first.
		{observe.FlowQuery{Limit: "x", Port: "x", Namespace: "X"}, "namespace", `namespace "X": want a namespace's name` + names},
	}
	for _, tt := range tests {
		_, err := tt.query.Parse(now)
		var e *observe.Error
		if !errors.As(err, &e) {
			t.Errorf("%+v: error %v, want an *observe.Error", tt.query, err)
			continue
		}
		if want := (observe.Error{Status: http.StatusBadRequest, Field: tt.field, Message: tt.message}); *e != want {
			t.Errorf("got  %+v\nwant %+v", *e, want)
		}
	}
}

// TestParseEveryField: every text of a query is looked at, whatever fields there will be.
func TestParseEveryField(t *testing.T) {
	for _, query := range []any{observe.FlowQuery{Follow: true}, observe.ServiceQuery{}, observe.HoldFilter{}} {
		typ := reflect.TypeOf(query)
		for i := range typ.NumField() {
			if typ.Field(i).Type.Kind() != reflect.String {
				continue
			}
			v := reflect.New(typ).Elem()
			v.Set(reflect.ValueOf(query))
			v.Field(i).SetString("!")
			var err error
			want := strings.ToLower(typ.Field(i).Name)
			switch q := v.Interface().(type) {
			case observe.FlowQuery:
				_, err = q.Parse(now)
			case observe.ServiceQuery:
				_, err = q.Parse()
			case observe.HoldFilter:
				_, _, err = observe.HoldQuery{Flow: q}.Parse()
				want = "flow." + want
			}
			var e *observe.Error
			if !errors.As(err, &e) || e.Field != want {
				t.Errorf("%s.%s: error %v, want one of field %s", typ, typ.Field(i).Name, err, want)
			}
		}
	}
}

func TestParseHoldQuery(t *testing.T) {
	f, d, err := observe.HoldQuery{Flow: observe.HoldFilter{Service: "web", Node: "node-a", Protocol: "udp", Port: "53"}}.Parse()
	want := &observe.Filter{
		Follow: true, Services: []observe.ServicePattern{{Name: "web"}}, Nodes: []string{"node-a"},
		Protocols: []decision.Protocol{decision.UDP}, Ports: []uint16{53},
	}
	if diff := cmp.Diff(want, f); err != nil || d != time.Minute || diff != "" {
		t.Errorf("%v, %v, -want +got:\n%s", err, d, diff)
	}
	if _, d, err := (observe.HoldQuery{Flow: observe.HoldFilter{Pod: "a"}, Seconds: 600}).Parse(); err != nil || d != 10*time.Minute {
		t.Errorf("600 seconds: %v, %v", d, err)
	}
	for want, q := range map[string]observe.HoldQuery{
		"flow: no filter: give service, namespace, pod, node, source, destination, port or protocol": {},
		"seconds 601: want 1 to 600":              {Flow: observe.HoldFilter{Pod: "a"}, Seconds: 601},
		"seconds -1: want 1 to 600":               {Flow: observe.HoldFilter{Pod: "a"}, Seconds: -1},
		`protocol "x": want TCP, UDP or SCTP`:     {Flow: observe.HoldFilter{Protocol: "x"}},
		`port "0": want a number from 1 to 65535`: {Flow: observe.HoldFilter{Port: "0"}},
	} {
		if _, _, err := q.Parse(); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// TestCodesAreThoseOfTheSchema: every state and event that it documents is accepted.
func TestCodesAreThoseOfTheSchema(t *testing.T) {
	b, err := os.ReadFile("../../datapath/flow/SCHEMA.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := func(heading string) (codes []string) {
		_, text, _ := strings.Cut(string(b), "\n### "+heading+"\n")
		text, _, _ = strings.Cut(text, "\n## ")
		text, _, _ = strings.Cut(text, "\n### ")
		for line := range strings.Lines(text) {
			if code, ok := strings.CutPrefix(line, "| `"); ok {
				code, _, _ = strings.Cut(code, "`")
				codes = append(codes, code)
			}
		}
		return codes
	}
	var all []string
	f, err := observe.FlowQuery{Follow: true, Event: strings.Join(rows("States and events"), ",")}.Parse(now)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range f.Events {
		all = append(all, e.String())
	}
	_, err = observe.FlowQuery{Follow: true, Event: "?"}.Parse(now)
	if got := strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]; err == nil || !strings.HasSuffix(err.Error(), "want "+got) {
		t.Errorf("the schema has %s, but: %v", got, err)
	}
	for _, reason := range rows("Reasons") {
		if reason == "rules" { // of replays only
			continue
		}
		if _, err := (observe.FlowQuery{Reason: reason}).Parse(now); err != nil {
			t.Error(err)
		}
	}
}

func FuzzParseFlowQuery(f *testing.F) {
	f.Add("default/web:http", "10.0.0.1:80", "5m", "7")
	f.Add("a,b", "[::ffff:10.0.0.1%x]:1", "2026-01-02T15:04:05Z", "0")
	f.Fuzz(func(t *testing.T, service, address, since, limit string) {
		got, err := observe.FlowQuery{Service: service, Source: address, Since: since, Limit: limit}.Parse(now)
		var e *observe.Error
		if err != nil {
			if !errors.As(err, &e) || e.Field == "" || e.Message == "" {
				t.Fatalf("error %#v", err)
			}
			return
		}
		for _, s := range got.Services {
			if s.Name == "" || s.Port != "" && s.Namespace == "" {
				t.Errorf("service %q: %+v", service, s)
			}
		}
		for _, a := range got.Sources {
			if a.Name == "" && (!a.Prefix.IsValid() || a.Prefix != a.Prefix.Masked() || a.Prefix.Addr().Is4In6()) || a.Name != "" && a.Prefix.IsValid() {
				t.Errorf("address %q: %v", address, a)
			}
		}
		if got.Limit < observe.All {
			t.Errorf("limit %q: %d", limit, got.Limit)
		}
	})
}
