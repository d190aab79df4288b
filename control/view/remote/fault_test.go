package remote_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/control/view/viewapi"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// faults are valid ones with all parameters, and with as few as can be.
var faults = []struct {
	fault labapi.Fault
	json  string
	text  string
}{
	{
		labapi.Fault{Kind: "delay", Host: "a", Delay: labapi.Duration(time.Second), Jitter: labapi.Duration(time.Millisecond)},
		`{"kind":"delay","host":"a","delay":"1s","jitter":"1ms"}`, "delay on a: 1s, up to 1ms more",
	},
	{labapi.Fault{Kind: "delay", Host: "a", Delay: labapi.Duration(time.Second)}, `{"kind":"delay","host":"a","delay":"1s"}`, "delay on a: 1s"},
	{
		labapi.Fault{Kind: "firewall", Host: "a", To: netip.MustParsePrefix("10.0.0.1/32"), Port: 80, Protocol: decision.TCP, Reject: true},
		`{"kind":"firewall","host":"a","to":"10.0.0.1/32","port":80,"protocol":"TCP","reject":true}`, "firewall on a: rejects packets to 10.0.0.1 port 80/TCP",
	},
	{
		labapi.Fault{Kind: "firewall", Host: "a", To: netip.MustParsePrefix("fd00::/64"), Protocol: decision.SCTP},
		`{"kind":"firewall","host":"a","to":"fd00::/64","protocol":"SCTP"}`, "firewall on a: drops packets to fd00::/64, SCTP",
	},
	{labapi.Fault{Kind: "freeze", Host: "a"}, `{"kind":"freeze","host":"a"}`, "freeze on a"},
	{labapi.Fault{Kind: "full-table", Host: "a", Connections: 5}, `{"kind":"full-table","host":"a","connections":5}`, "full-table on a: at 5 connections"},
	{labapi.Fault{Kind: "full-table", Host: "a"}, `{"kind":"full-table","host":"a"}`, "full-table on a: at 0 connections"},
	{labapi.Fault{Kind: "loss", Host: "a", Percent: 0.5}, `{"kind":"loss","host":"a","percent":0.5}`, "loss on a: 0.5% of the packets"},
	{
		labapi.Fault{Kind: "route", Host: "a", To: netip.MustParsePrefix("10.0.0.0/8"), Via: netip.MustParseAddr("192.0.2.1")},
		`{"kind":"route","host":"a","to":"10.0.0.0/8","via":"192.0.2.1"}`, "route on a: 10.0.0.0/8 via 192.0.2.1",
	},
	{labapi.Fault{Kind: "route", Host: "a", To: netip.MustParsePrefix("10.0.0.0/8")}, `{"kind":"route","host":"a","to":"10.0.0.0/8"}`, "route on a: 10.0.0.0/8 leads nowhere"},
	{
		labapi.Fault{Kind: "stale-entry", Host: "a", To: netip.MustParsePrefix("10.96.0.10/32"), Port: 53, From: netip.MustParseAddrPort("10.0.0.1:4000"), Endpoint: netip.MustParseAddrPort("10.0.0.2:53")},
		`{"kind":"stale-entry","host":"a","to":"10.96.0.10/32","port":53,"from":"10.0.0.1:4000","endpoint":"10.0.0.2:53"}`, "stale-entry on a: 10.0.0.1:4000 to 10.96.0.10 port 53/UDP leads to 10.0.0.2:53",
	},
}

func TestFaultsAsJSON(t *testing.T) {
	for _, tt := range faults {
		if err := tt.fault.Check(); err != nil {
			t.Errorf("%s: %v", tt.json, err)
		}
		b, err := json.Marshal(tt.fault)
		if err != nil || string(b) != tt.json {
			t.Errorf("written as %s, want %s: %v", b, tt.json, err)
		}
		var read labapi.Fault
		if err := json.Unmarshal(b, &read); err != nil || read != tt.fault {
			t.Errorf("%s is read as %+v: %v", b, read, err)
		}
		if text := tt.fault.String(); text != tt.text {
			t.Errorf("%s: %q, want %q", b, text, tt.text)
		}
	}
	// The forms that people write, and what a port implies.
	var f labapi.Fault
	if err := json.Unmarshal([]byte(` {"to": "10.0.0.041", "port": 80, "host": "a", "kind": "firewall", "id": 3, "text": "x"} `), &f); err != nil {
		t.Fatal(err)
	}
	want := labapi.Fault{ID: 3, Kind: "firewall", Host: "a", Text: "x", To: netip.MustParsePrefix("10.0.0.41/32"), Port: 80, Protocol: decision.TCP}
	if err := f.Check(); err != nil || f != want {
		t.Errorf("%+v, want %+v: %v", f, want, err)
	}
}

// TestFaultMistakes: each names the parameter, and what to write.
func TestFaultMistakes(t *testing.T) {
	for _, tt := range []struct{ json, field, want string }{
		{`{"kind":"firewal","host":"a"}`, "kind", `no fault "firewal": want one of delay, firewall, freeze, full-table, kill, loss, route, rp-filter, stale-entry`},
		{`{"kind":5}`, "kind", "kind: want a string"},
		{`{"id":"1"}`, "id", "id: want a number"},
		{`{"kind":"kill","host":"a","host":"b"}`, "", "want a fault, a JSON object with each field once"},
		{`[]`, "", "want a fault, a JSON object with each field once"},
		{`{"kind":"loss","host":"a","precent":5}`, "precent", `unknown field "precent"`},
		{`{"kind":"loss","host":"a"}`, "percent", "percent is missing: the fault loss requires a number above 0, up to 100"},
		{`{"kind":"loss","host":"a","percent":101}`, "percent", `percent "101": want a number above 0, up to 100`},
		{`{"kind":"loss","host":"a","percent":"5"}`, "percent", "percent is a JSON string: want a number"},
		{`{"kind":"loss","host":"a","percent":5,"to":"10.0.0.1"}`, "to", "to: the fault loss has no such parameter; it has percent"},
		{`{"kind":"kill","host":"a","reject":true}`, "reject", "reject: the fault kill has no such parameter; it has none"},
		{`{"kind":"delay","host":"a"}`, "delay", "delay is missing: the fault delay requires a duration from 1us to 1m"},
		{`{"kind":"delay","host":"a","delay":"2m"}`, "delay", `delay "2m": want a duration from 1us to 1m`},
		{`{"kind":"delay","host":"a","delay":5}`, "delay", "delay is a JSON number: want a string"},
		{`{"kind":"delay","host":"a","delay":"1s","jitter":"2s"}`, "jitter", "jitter: want a duration up to the delay"},
		{`{"kind":"firewall","host":"a"}`, "to", "to is missing: the fault firewall requires an address or CIDR"},
		{`{"kind":"firewall","host":"a","to":null}`, "to", "to is a JSON null: want a string"},
		{`{"kind":"firewall","host":"a","to":{}}`, "to", "to is a JSON object: want a string"},
		{`{"kind":"firewall","host":"a","to":[]}`, "to", "to is a JSON array: want a string"},
		{`{"kind":"firewall","host":"a","to":"10.0.0.1","port":65536}`, "port", `port "65536": want a port from 1 to 65535`},
		{`{"kind":"firewall","host":"a","to":"10.0.0.1","port":80,"protocol":"icmp"}`, "protocol", `protocol "icmp": want tcp, udp or sctp`},
		{`{"kind":"firewall","host":"a","to":"10.0.0.1","reject":"yes"}`, "reject", "reject is a JSON string: want a boolean"},
		{`{"kind":"full-table","host":"a","connections":1048577}`, "connections", `connections "1048577": want a number up to 1048576`},
		{`{"kind":"route","host":"a","to":"10.0.0.0/8","via":"fd00::1"}`, "via", "via: want an address of the same family as the destination"},
		{`{"kind":"stale-entry","host":"a","from":"10.0.0.1"}`, "from", `from "10.0.0.1": want ADDRESS:PORT`},
		{`{"kind":"stale-entry","host":"a","from":"10.0.0.1:0"}`, "from", `from "10.0.0.1:0": want ADDRESS:PORT`},
		{`{"kind":"stale-entry","host":"a","from":"10.0.0.1:1","to":"10.0.0.0/8","port":53,"endpoint":"10.0.0.2:53"}`, "to", "to: want one address"},
	} {
		var f labapi.Fault
		err := json.Unmarshal([]byte(tt.json), &f)
		if err == nil {
			err = f.Check()
		}
		e, ok := errors.AsType[*observe.Error](err)
		if !ok || e.Status != http.StatusBadRequest || e.Field != tt.field || e.Message != tt.want {
			t.Errorf("%s: %+v, want %s: %s", tt.json, err, tt.field, tt.want)
		}
	}
	// Those of a program, which no text was read for.
	for _, f := range []labapi.Fault{
		{Kind: "loss", Host: "a", Percent: 101}, {Kind: "loss", Host: "a", Percent: -1}, {Kind: "loss", Host: "a", Percent: 1, Port: 1},
		{Kind: "delay", Host: "a", Delay: labapi.Duration(time.Hour)}, {Kind: "firewall", Host: "a", To: netip.MustParsePrefix("10.0.0.0/8"), Protocol: 1},
	} {
		if err := f.Check(); err == nil {
			t.Errorf("%+v is valid", f)
		}
	}
}

// TestFaultKinds: what the kinds describe is what faults have.
func TestFaultKinds(t *testing.T) {
	used := make(map[string]bool)
	for _, k := range labapi.FaultKinds {
		for _, p := range k.Parameters {
			used[p.Name] = true
			text := p.Example
			switch {
			case p.Type == labapi.ParameterFlag:
				text = "true"
			case p.Type == labapi.ParameterChoice:
				text = p.Options[0]
			}
			if err := new(labapi.Fault).Set(p.Name, text); err != nil {
				t.Errorf("%s: the example of %s, %q: %v", k.Name, p.Name, text, err)
			}
		}
	}
	for _, name := range labapi.FaultParameterNames() {
		if !used[name] {
			t.Errorf("no kind has the parameter %s", name)
		}
	}
	if err := new(labapi.Fault).Set("speed", "1"); err == nil {
		t.Error("a parameter that no kind has is set")
	}
}

// TestClientOfALab: changes and faults reach the lab unchanged, and its answers come back.
func TestClientOfALab(t *testing.T) {
	lab := &observetest.Lab{Status: labapi.Status{Name: "shop", Faults: []labapi.Fault{{ID: 1, Kind: "kill", Host: "a", Text: "kill on a"}}}, Changes: []string{"pod web-1 is not ready"}}
	s := httptest.NewServer(flowapi.New(flowapi.Config{Observer: observetest.New("node-a"), Token: "secret", Routes: viewapi.Routes(viewapi.Config{Lab: lab})}))
	t.Cleanup(s.Close)
	c := newClient(t, s.URL, remote.ClientOptions{Token: "secret"})
	status, err := c.LabStatus(t.Context())
	if diff := cmp.Diff(&lab.Status, status, cmp.AllowUnexported(netip.Prefix{}), cmp.Comparer(func(a, b labapi.Fault) bool { return a == b })); err != nil || diff != "" {
		t.Errorf("status: %v\n%s", err, diff)
	}
	change := labapi.Change{Ready: &labapi.Readiness{Pod: "web-1"}}
	if lines, err := c.Change(t.Context(), change); err != nil || !cmp.Equal(lines, lab.Changes) {
		t.Errorf("change: %v, %v", lines, err)
	}
	for _, tt := range faults {
		if added, err := c.AddFault(t.Context(), tt.fault); err != nil || added.ID != 7 || added.Text != tt.text {
			t.Errorf("%s: %+v, %v", tt.json, added, err)
		}
		if requests := lab.Requests(); requests[len(requests)-1] != tt.fault {
			t.Errorf("%s: the lab got %+v", tt.json, requests[len(requests)-1])
		}
	}
	for _, id := range []int{0, 1} {
		ended, err := c.RemoveFault(t.Context(), id)
		if requests := lab.Requests(); err != nil || len(ended) != 1 || ended[0] != lab.Status.Faults[0] || requests[len(requests)-1] != id {
			t.Errorf("removal of %d: %v, %v", id, ended, err)
		}
	}
	lab.Err = &observe.Error{Status: 404, Message: "no fault 9"}
	if _, err := c.RemoveFault(t.Context(), 9); err == nil || err.Error() != "no fault 9" {
		t.Errorf("an error of the lab: %v", err)
	}
	if _, err := c.AddFault(t.Context(), labapi.Fault{Kind: "loss", Host: "a"}); err == nil || err.Error() != "no fault 9" {
		t.Errorf("an error of the lab: %v", err)
	}
	if _, err := c.Change(t.Context(), change); err == nil || err.Error() != "no fault 9" {
		t.Errorf("an error of the lab: %v", err)
	}
}
