package history

import (
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

func TestMatches(t *testing.T) {
	r := flowAt("r-1", noon, flow.Closed, true)
	r.SourcePod, r.SourceNode, r.Pod, r.EndpointNode = "shop/client", "node-a", "default/web-1", "node-b"
	for _, tt := range []struct {
		matching, other observe.FlowQuery
	}{
		{observe.FlowQuery{Service: "web"}, observe.FlowQuery{Service: "shop/web"}},
		{observe.FlowQuery{Service: "db,default/web:http"}, observe.FlowQuery{Service: "default/web:https"}},
		{observe.FlowQuery{Namespace: "shop"}, observe.FlowQuery{Namespace: "sho"}},
		{observe.FlowQuery{Namespace: "default"}, observe.FlowQuery{Namespace: "kube-system"}},
		{observe.FlowQuery{Pod: "client"}, observe.FlowQuery{Pod: "default/client"}},
		{observe.FlowQuery{Pod: "web-1"}, observe.FlowQuery{Pod: "web"}},
		{observe.FlowQuery{Node: "node-a"}, observe.FlowQuery{Node: "node-b"}},
		{observe.FlowQuery{Source: "10.244.0.0/16"}, observe.FlowQuery{Source: "10.244.1.2:1"}},
		{observe.FlowQuery{Source: "client:40000"}, observe.FlowQuery{Source: "node-a"}},
		{observe.FlowQuery{Destination: "10.96.0.20:80"}, observe.FlowQuery{Destination: "fd00::1"}},
		{observe.FlowQuery{Endpoint: "web-1"}, observe.FlowQuery{Endpoint: "10.96.0.20"}},
		{observe.FlowQuery{Port: "443,80"}, observe.FlowQuery{Port: "8080"}},
		{observe.FlowQuery{Protocol: "tcp"}, observe.FlowQuery{Protocol: "udp"}},
		{observe.FlowQuery{Verdict: "dnat,drop"}, observe.FlowQuery{Verdict: "accept"}},
		{observe.FlowQuery{Reason: "balanced"}, observe.FlowQuery{Reason: "affinity"}},
		{observe.FlowQuery{State: "closed"}, observe.FlowQuery{State: "reset"}},
		{observe.FlowQuery{Since: noon.Format(time.RFC3339)}, observe.FlowQuery{Since: noon.Add(time.Second).Format(time.RFC3339)}},
		{observe.FlowQuery{Until: noon.Add(time.Second).Format(time.RFC3339)}, observe.FlowQuery{Until: noon.Format(time.RFC3339)}},
	} {
		for q, want := range map[observe.FlowQuery]bool{tt.matching: true, tt.other: false} {
			f, err := q.Parse(time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if got := f.MatchRecord(r); got != want {
				t.Errorf("%+v: %t, want %t", q, got, want)
			}
		}
	}
}
