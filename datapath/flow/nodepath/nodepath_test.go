package nodepath_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/nodepath"
)

// TestPath: the order of nodes is that of the packet's addresses, whatever their clocks are and
// whichever record is the first.
func TestPath(t *testing.T) {
	const client, nodePort, node, endpoint = "10.244.1.2:40000", "172.20.0.3:30080", "172.20.0.3:61000", "10.244.3.2:8080"
	record := func(node, verdict, source, destination string, seconds int) *flow.Record {
		at := time.Unix(int64(seconds), 0)
		return &flow.Record{Node: node, Verdict: verdict, Source: source, Destination: destination, Time: &at}
	}
	translates := func(masqueraded bool, seen string) *flow.Record {
		r := record("b", "dnat", client, nodePort, 5)
		r.Endpoint, r.EndpointNode, r.Masquerade = endpoint, "c", masqueraded
		if seen != "" {
			r.Life = &flow.Life{SeenSource: seen}
		}
		return r
	}
	forwards, receives := record("a", "accept", client, nodePort, 9), record("c", "accept", node, endpoint, 1)
	fromPod := record("b", "reject", client, nodePort, 5)
	fromPod.SourcePod, fromPod.SourceNode = "default/shell", "a"
	masqueradedByHost := record("a", "accept", "10.244.1.9:1", nodePort, 9)
	masqueradedByHost.Life = &flow.Life{SeenSource: client}
	failed := translates(true, "")
	failed.Conntrack = "failed"
	for _, tt := range []struct {
		name    string
		records []*flow.Record // the one that is asked for, and the others
		want    string         // (a) has no record
		decider string
	}{
		{"three nodes", []*flow.Record{translates(true, node), forwards, receives}, "a b c", "b"},
		{"of the last", []*flow.Record{receives, translates(true, node), forwards}, "a b c", "b"},
		{"of the first", []*flow.Record{forwards, translates(true, node), receives}, "a b c", "b"},
		{"the endpoint's node is missing", []*flow.Record{translates(true, node), forwards}, "a b (c)", "b"},
		{"the source's port is not known", []*flow.Record{translates(true, "")}, "b (c)", "b"},
		{"the first one drops", []*flow.Record{record("b", "drop", client, nodePort, 1), forwards}, "a b", "b"},
		{"it passes before it is rejected", []*flow.Record{forwards, record("b", "reject", client, nodePort, 1)}, "a b", "b"},
		{"the endpoint's node drops", []*flow.Record{translates(true, node), record("c", "drop", node, endpoint, 1)}, "b c", "b"},
		{"the source's node is missing", []*flow.Record{fromPod}, "(a) b", "b"},
		{"no entry", []*flow.Record{failed}, "b", "b"},
		{"the host masquerades", []*flow.Record{translates(true, node), masqueradedByHost, receives}, "a b c", "b"},
		{"all pass", []*flow.Record{record("b", "accept", client, endpoint, 2), record("a", "accept", client, endpoint, 1)}, "a b", "b"},
		{"back to the first node", []*flow.Record{translates(true, node), record("c", "accept", client, nodePort, 1), receives}, "c b c", "b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := *tt.records[0]
			r.Others = tt.records[1:]
			var got []string
			for _, hop := range nodepath.Of(&r) {
				if hop.Record == nil {
					got = append(got, "("+hop.Node+")")
				} else {
					got = append(got, hop.Record.Node)
				}
			}
			if got := strings.Join(got, " "); got != tt.want {
				t.Errorf("path %s, want %s", got, tt.want)
			}
			if got := nodepath.Decider(&r).Node; got != tt.decider {
				t.Errorf("%s decides, want %s", got, tt.decider)
			}
		})
	}
}

// TestLeaves: after each node, the addresses are those that the next one sees.
func TestLeaves(t *testing.T) {
	const client, service, endpoint = "10.244.1.2:40000", "10.96.0.20:80", "10.244.3.2:8080"
	for _, tt := range []struct {
		name   string
		record flow.Record
		want   string // source, destination, and whether they are known
	}{
		{"passed", flow.Record{}, client + " " + service + " true"},
		{"translated", flow.Record{Endpoint: endpoint}, client + " " + endpoint + " true"},
		{"masqueraded, and the kernel has not reported it", flow.Record{Endpoint: endpoint, Masquerade: true, MasqueradeAddress: "172.20.0.3"}, "172.20.0.3:40000 " + endpoint + " false"},
		{"masqueraded, IPv6", flow.Record{Endpoint: endpoint, Masquerade: true, MasqueradeAddress: "fd00::3"}, "[fd00::3]:40000 " + endpoint + " false"},
		{"masqueraded by a rule of the host", flow.Record{Endpoint: endpoint, Masquerade: true}, client + " " + endpoint + " false"},
		{"masqueraded, and the kernel has reported it", flow.Record{Endpoint: endpoint, Masquerade: true, MasqueradeAddress: "172.20.0.3", Life: &flow.Life{SeenSource: "172.20.0.3:1024"}}, "172.20.0.3:1024 " + endpoint + " true"},
		{"passed, and masqueraded by a rule of the host", flow.Record{Life: &flow.Life{SeenSource: "172.20.0.3:1024"}}, "172.20.0.3:1024 " + service + " true"},
	} {
		r := tt.record
		r.Source, r.Destination = client, service
		source, destination, known := nodepath.Outgoing(&r)
		if got := fmt.Sprint(source, " ", destination, " ", known); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
