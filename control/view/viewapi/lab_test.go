package viewapi

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi/flowapitest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// netipTypes compares addresses.
var netipTypes = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// TestLab: changes and faults reach the lab as they were requested, and its answers come back.
func TestLab(t *testing.T) {
	fault := labapi.Fault{ID: 1, Kind: "loss", Host: "node-a", Percent: 5, Text: "loss on node-a: 5% of the packets"}
	lab := &observetest.Lab{
		Status:  labapi.Status{Name: "shop", Nodes: []labapi.NodeStatus{{Name: "node-a", Cordoned: true}}, Pods: []labapi.PodStatus{}, Clients: []observe.TopologyHost{}, Faults: []labapi.Fault{fault}},
		Changes: []string{"deployment default/web: 3 replicas, had 2", "pod default/web-3 is added on node-a with 10.244.0.4"},
	}
	w := newWorld(t, Config{Lab: lab}, longTiming)
	firewall := labapi.Fault{Kind: "firewall", Host: "node-a", To: netip.MustParsePrefix("10.244.1.2/32"), Port: 80, Protocol: decision.UDP, Reject: true}
	added := firewall
	added.ID, added.Text = 7, "firewall on node-a: rejects packets to 10.244.1.2 port 80/UDP"
	changes := labapi.ChangeList{Changes: lab.Changes}
	grace := labapi.Duration(10 * time.Second)
	for _, tt := range []struct {
		method, path, body string
		status             int
		question           any // that the lab is to get; nil: none
		answer             any
	}{
		{"GET", "/v1/lab", "", 200, nil, lab.Status},
		{"GET", "/v1/lab/faults", "", 200, nil, labapi.FaultList{Faults: []labapi.Fault{fault}, Kinds: labapi.FaultKinds}},
		{"POST", "/v1/lab/changes", `{"apply":"kind: Service\n"}`, 200, labapi.Change{Apply: "kind: Service\n"}, changes},
		{"POST", "/v1/lab/changes", `{"scale":{"deployment":"web","replicas":3}}`, 200, labapi.Change{Scale: &labapi.Scale{Deployment: "web", Replicas: 3}}, changes},
		{
			"POST", "/v1/lab/changes", `{"addPod":{"name":"web-9","labels":{"app":"web"},"addresses":["10.244.0.9"],"ports":[{"port":80,"protocol":"udp","server":"dns"}]}}`, 200,
			labapi.Change{AddPod: &labapi.Pod{Name: "web-9", Labels: map[string]string{"app": "web"}, Addresses: []netip.Addr{netip.MustParseAddr("10.244.0.9")}, Ports: []labapi.Port{{Port: 80, Protocol: decision.UDP, Server: labapi.DNSServer}}}}, changes,
		},
		{"POST", "/v1/lab/changes", `{"delete":{"kind":"Service","name":"shop/web"}}`, 200, labapi.Change{Delete: &labapi.Deletion{Kind: "Service", Name: "shop/web"}}, changes},
		{"POST", "/v1/lab/changes", `{"removePod":{"pod":"web-1","grace":"10s"}}`, 200, labapi.Change{RemovePod: &labapi.PodRemoval{Pod: "web-1", Grace: &grace}}, changes},
		{"POST", "/v1/lab/changes", `{"ready":{"pod":"web-1","ready":true}}`, 200, labapi.Change{Ready: &labapi.Readiness{Pod: "web-1", Ready: true}}, changes},
		{"POST", "/v1/lab/changes", `{"server":{"pod":"web-1","running":false}}`, 200, labapi.Change{Server: &labapi.Serving{Pod: "web-1"}}, changes},
		{"POST", "/v1/lab/changes", `{"node":{"node":"node-a","action":"drain","force":true}}`, 200, labapi.Change{Node: &labapi.NodeEvent{Node: "node-a", Action: "drain", Force: true}}, changes},
		{"POST", "/v1/lab/faults", `{"kind":"firewall","host":"node-a","to":"10.244.1.2","port":80,"protocol":"udp","reject":true}`, 201, firewall, added},
		{"DELETE", "/v1/lab/faults/1", "", 200, 1, labapi.FaultList{Faults: []labapi.Fault{fault}}},
		{"DELETE", "/v1/lab/faults", "", 200, 0, labapi.FaultList{Faults: []labapi.Fault{fault}}},
	} {
		before := len(lab.Requests())
		r := w.Do(t, tt.method, tt.path, tt.body, flowapitest.JSONBody, "Authorization: Bearer secret")
		body := flowapitest.Content(t, r)
		want, err := json.Marshal(tt.answer)
		if err != nil {
			t.Fatal(err)
		}
		if r.StatusCode != tt.status || body != string(want)+"\n" {
			t.Errorf("%s %s %s: %d\n%s, want\n%s", tt.method, tt.path, tt.body, r.StatusCode, body, want)
		}
		if at := r.Header.Get("Location"); (tt.status == 201) != (at == "/v1/lab/faults/7") {
			t.Errorf("%s %s: Location %q", tt.method, tt.path, at)
		}
		requests := lab.Requests()[before:]
		if tt.question == nil {
			if len(requests) > 0 {
				t.Errorf("%s %s: the lab got %v", tt.method, tt.path, requests)
			}
			continue
		}
		if diff := cmp.Diff([]any{tt.question}, requests, netipTypes, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			t.Errorf("%s %s %s: -want +got:\n%s", tt.method, tt.path, tt.body, diff)
		}
	}
	if w.Log.Len() > 0 {
		t.Errorf("logged: %s", w.Log)
	}
}

// TestLabErrors: mistakes do not reach the lab, and its own errors come back.
func TestLabErrors(t *testing.T) {
	lab := &observetest.Lab{Err: &observe.Error{Status: 400, Field: "scale.deployment", Message: `no deployment "wep"`}}
	w := newWorld(t, Config{Lab: lab}, longTiming)
	for _, tt := range []struct {
		method, path, body string
		want               observe.Error
	}{
		{"POST", "/v1/lab/changes", `{}`, observe.Error{Status: 400, Message: "0 changes: want one of apply, delete, scale, addPod, removePod, ready, server and node"}},
		{"POST", "/v1/lab/changes", `{"apply":"x","ready":{}}`, observe.Error{Status: 400, Message: "2 changes: want one of apply, delete, scale, addPod, removePod, ready, server and node"}},
		{"POST", "/v1/lab/changes", `{"scale":{"deploymnt":"web"}}`, observe.Error{Status: 400, Field: "scale.deploymnt", Message: `unknown field "scale.deploymnt"`}},
		{"POST", "/v1/lab/changes", `{"scale":{"deployment":"web","replicas":70000}}`, observe.Error{Status: 400, Field: "scale.replicas", Message: "scale.replicas is a JSON number 70000: want an integer"}},
		{"POST", "/v1/lab/changes", `{"removePod":{"pod":"web-1","grace":"soon"}}`, observe.Error{Status: 400, Message: `invalid JSON in the body: "soon": want a duration, as 200ms, 10s or 1m`}},
		{"POST", "/v1/lab/changes?force", `{}`, observe.Error{Status: 400, Field: "force", Message: `parameter "force": this path has no parameters`}},
		{"POST", "/v1/lab/faults", `{"kind":"firewall","host":"a","to":"here"}`, observe.Error{Status: 400, Field: "to", Message: `to "here": want an address or CIDR`}},
		{"POST", "/v1/lab/faults", `{"kind":"firewall","host":"a","too":"10.0.0.1"}`, observe.Error{Status: 400, Field: "too", Message: `unknown field "too"`}},
		{"DELETE", "/v1/lab/faults/0", "", observe.Error{Status: 404, Message: `no fault "0": want its number`}},
		{"DELETE", "/v1/lab/faults/all", "", observe.Error{Status: 404, Message: `no fault "all": want its number`}},
	} {
		r := w.Do(t, tt.method, tt.path, tt.body, flowapitest.JSONBody, "Authorization: Bearer secret")
		var got observe.Error
		if err := json.Unmarshal([]byte(flowapitest.Content(t, r)), &got); err != nil || got != tt.want || r.StatusCode != tt.want.Status {
			t.Errorf("%s %s %s: %d %v\n%+v, want\n%+v", tt.method, tt.path, tt.body, r.StatusCode, err, got, tt.want)
		}
	}
	if requests := lab.Requests(); len(requests) > 0 {
		t.Errorf("the lab got %v", requests)
	}
	r := w.Do(t, "POST", "/v1/lab/changes", `{"scale":{"deployment":"wep","replicas":3}}`, flowapitest.JSONBody, "Authorization: Bearer secret")
	if body := flowapitest.Content(t, r); r.StatusCode != 400 || body != `{"status":400,"field":"scale.deployment","error":"no deployment \"wep\""}`+"\n" {
		t.Errorf("an error of the lab: %d %s", r.StatusCode, body)
	}
}

// TestNoLab: where there is no lab, the routes of labs do not exist.
func TestNoLab(t *testing.T) {
	w := newWorld(t, Config{}, longTiming)
	for _, q := range [][3]string{
		{"GET", "/v1/lab"},
		{"POST", "/v1/lab/changes", `{"scale":{"deployment":"web","replicas":3}}`},
		{"GET", "/v1/lab/faults"},
		{"POST", "/v1/lab/faults", `{"kind":"kill","host":"node-a"}`},
		{"DELETE", "/v1/lab/faults"},
		{"DELETE", "/v1/lab/faults/1"},
	} {
		r := w.Do(t, q[0], q[1], q[2], flowapitest.JSONBody, "Authorization: Bearer secret")
		if body := flowapitest.Content(t, r); r.StatusCode != http.StatusNotFound || body != `{"status":404,"error":"there is no lab here: only labs can be changed"}`+"\n" {
			t.Errorf("%s %s: %d %s", q[0], q[1], r.StatusCode, body)
		}
	}
}
