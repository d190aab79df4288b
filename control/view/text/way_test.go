package text_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// owners are those of the cluster of testdata, and a client.
var owners = map[string]flow.Owner{
	"10.244.1.2": {Pod: "default/web-1", Node: "node-a"}, "10.244.1.9": {Pod: "default/shell", Node: "node-a"}, "fd00:10:244:1::9": {Pod: "default/shell", Node: "node-a"},
	"10.244.2.2": {Pod: "default/web-2", Node: "node-b"}, "172.20.0.2": {Node: "node-a"}, "172.20.0.3": {Node: "node-b"},
	"192.0.2.9": {Host: "outside"}, "192.0.2.10": {Host: "outside"}, "192.0.2.99": {Host: "outside"},
}

// decidedOn is what a node of the cluster of testdata decides about a packet, as a live daemon records
// it: with a TCP connection that was closed, or an answered UDP flow.
func decidedOn(t *testing.T, node, protocol, source, destination string, seed uint64, seen string) *flow.Record {
	t.Helper()
	s, names := simulator(t, node, seed)
	p, err := names.Packet(flow.Question{Protocol: protocol, Source: source, Destination: destination})
	if err != nil {
		t.Fatal(err)
	}
	r := s.Decide(&p)
	r.AddNames(func(a netip.Addr) flow.Owner { return owners[a.String()] })
	live(r, "1-"+node, 0)
	switch r.Verdict {
	case decision.DNAT.String():
		state := flow.Closed
		if protocol == "udp" {
			state = flow.Expired
		}
		r.Conntrack = "created"
		r.Life = &flow.Life{State: state, Over: true, Answered: true, SeenSource: seen, History: []flow.Moment{{Event: flow.Decided, Time: *r.Time}, {Event: state, Time: r.Time.Add(time.Millisecond)}}}
	case decision.Reject.String():
		r.Life = &flow.Life{State: flow.Rejected, Over: true}
	case decision.Drop.String():
		r.Life = &flow.Life{State: flow.Dropped, Over: true}
	}
	return r
}

// passedOn is what a node decides that does not translate the packet.
func passedOn(node, id, protocol, source, destination string, later time.Duration) *flow.Record {
	r := &flow.Record{Verdict: "accept", Reason: "not-a-service", Protocol: protocol, Source: source, Destination: destination}
	r.AddNames(func(a netip.Addr) flow.Owner { return owners[a.String()] })
	live(r, id, later)
	r.Node = node
	return r
}

func live(r *flow.Record, id string, later time.Duration) {
	at := observetest.Now.Add(later)
	r.ID, r.Time, r.Reply, r.Hint = id, &at, nil, ""
}

func with(r *flow.Record, others ...*flow.Record) *flow.Record {
	c := *r
	c.Others = others
	return &c
}

// TestWays: the story of a connection on several nodes, read and found good, in 80 columns.
func TestWays(t *testing.T) {
	const ms = time.Millisecond
	observed := map[string]bool{"node-a": true, "node-b": true, "edge": true}
	clusterIP := decidedOn(t, "node-a", "tcp", "pod/default/shell:41000", "service/default/web:http", 2, "10.244.1.9:41000")
	nodePort := decidedOn(t, "node-a", "tcp", "192.0.2.10:51234", "172.20.0.2:30080", 2, "172.20.0.2:51234")
	nodePortPassed := passedOn("node-b", "2-node-b", "TCP", "172.20.0.2:51234", "10.244.2.2:8080", ms)
	local := decidedOn(t, "node-b", "tcp", "192.0.2.10:51234", "172.20.0.3:30030", 1, "192.0.2.10:51234")
	hairpin := decidedOn(t, "node-b", "tcp", "pod/default/web-1:42000", "172.20.0.3:30080", 1, "172.20.0.3:42000")
	loadBalancer := decidedOn(t, "node-b", "tcp", "192.0.2.9:50000", "203.0.113.5:443", 1, "172.20.0.3:50000")
	udp := decidedOn(t, "node-a", "udp", "pod/default/shell:41004", "service/default/web:dns", 2, "10.244.1.9:41004")
	ipv6 := decidedOn(t, "node-a", "tcp", "pod/default/shell:41007", "[fd00:10:96::20]:80", 2, "[fd00:10:244:1::9]:41007")
	dropped := decidedOn(t, "node-b", "tcp", "192.0.2.99:50000", "203.0.113.5:443", 1, "")
	rejected := decidedOn(t, "node-b", "tcp", "pod/default/shell:41002", "service/default/nobody-home", 1, "")
	kernelPort := decidedOn(t, "node-a", "tcp", "192.0.2.10:51234", "172.20.0.2:30080", 2, "")
	kernelPort.Life, kernelPort.MasqueradeAddress = &flow.Life{State: flow.Decided}, "172.20.0.2"
	for _, tt := range []struct {
		name     string
		record   *flow.Record
		observed map[string]bool
	}{
		{"cluster-ip", with(clusterIP, passedOn("node-b", "2-node-b", "TCP", "10.244.1.9:41000", "10.244.2.2:8080", ms)), observed},
		{"node-port", with(nodePort, nodePortPassed), observed},
		{"node-port-second", with(nodePortPassed, nodePort), observed},
		// With the policy Local the endpoint's node decides; the packet may reach it through another node.
		{"local", with(local, passedOn("edge", "2-edge", "TCP", "192.0.2.10:51234", "172.20.0.3:30030", -ms)), observed},
		{"hairpin", with(hairpin, passedOn("node-a", "2-node-a", "TCP", "10.244.1.2:42000", "172.20.0.3:30080", 3*ms), passedOn("node-a", "3-node-a", "TCP", "172.20.0.3:42000", "10.244.1.2:8080", ms)), observed},
		{"three-nodes", with(loadBalancer, passedOn("edge", "2-edge", "TCP", "192.0.2.9:50000", "203.0.113.5:443", -ms), passedOn("node-a", "3-node-a", "TCP", "172.20.0.3:50000", "10.244.1.2:8080", ms)), observed},
		{"udp", with(udp, passedOn("node-b", "2-node-b", "UDP", "10.244.1.9:41004", "10.244.2.2:5353", ms)), observed},
		{"ipv6", with(ipv6, passedOn("node-b", "2-node-b", "TCP", "[fd00:10:244:1::9]:41007", "[fd00:10:244:2::2]:8080", ms)), observed},
		{"dropped", with(passedOn("edge", "2-edge", "TCP", "192.0.2.99:50000", "203.0.113.5:443", ms), dropped), observed},
		{"rejected", rejected, map[string]bool{"node-b": true}},
		{"unobserved", nodePort, map[string]bool{"node-a": true}},
		{"no-record", kernelPort, observed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := options()
			o.Observed = tt.observed
			got := text.Story(tt.record, o)
			golden(t, "way-"+tt.name+".txt", got)
			drawn, _, _ := strings.Cut(got, "\n  on node ")
			for line := range strings.SplitSeq(drawn, "\n") {
				if n := ansi.StringWidth(line); n > 80 {
					t.Errorf("%d columns: %s", n, line)
				}
			}
			o.Style.Color = true
			if colored := text.Story(tt.record, o); ansi.Strip(colored) != got || colored == got {
				t.Errorf("with colours the text differs, or has none:\n%s", colored)
			}
		})
	}
}

// TestNoWay: without records of others, and where it is not known which nodes are observed, or with the
// endpoint on the node itself, the story is of one node.
func TestNoWay(t *testing.T) {
	remote := decidedOn(t, "node-a", "tcp", "pod/default/shell:41000", "service/default/web:http", 2, "10.244.1.9:41000")
	here := decidedOn(t, "node-a", "tcp", "pod/default/web-1:41000", "service/default/web:http", 1, "172.20.0.2:41000")
	o := options()
	for name, got := range map[string]string{"no topology": text.Story(remote, o), "hairpin on one node": func() string {
		o.Observed = map[string]bool{"node-a": true}
		return text.Story(here, o)
	}()} {
		if strings.Contains(got, "┌") || !strings.Contains(got, ", on node node-a\n") {
			t.Errorf("%s:\n%s", name, got)
		}
	}
}
