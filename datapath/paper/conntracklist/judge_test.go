package conntracklist

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// testTable is that of a node, 172.20.0.2, with two services: web (10.96.0.20:80, node port 30080) with endpoints
// 10.244.1.5:8080, on the node, and 10.244.2.9:8080; and dns (10.96.0.10:53, UDP) with 10.244.0.3:53 and one that does not
// serve, 10.244.0.4:53.
func testTable(testing.TB) *decision.Table {
	service := func(name string, p decision.Protocol, at string, nodePort uint16, endpoints ...string) *decision.ServicePort {
		to := netip.MustParseAddrPort(at)
		s := &decision.ServicePort{
			Name: decision.ServicePortName{Namespace: "shop", Name: name}, Protocol: p, Family: decision.IPv4, ClusterIP: to.Addr(), Port: to.Port(), NodePort: nodePort, HasEndpoints: len(endpoints) > 0,
		}
		for i, text := range endpoints {
			at, why, _ := strings.Cut(text, "/")
			e := decision.Endpoint{AddrPort: netip.MustParseAddrPort(at), Serving: why == ""}
			s.Endpoints = append(s.Endpoints, e)
			if e.Serving {
				s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(i))
			}
		}
		return s
	}
	node := decision.Node{
		Name: "a", IPs: []netip.Addr{netip.MustParseAddr("172.20.0.2")}, Addresses: []netip.Addr{netip.MustParseAddr("172.20.0.2")},
		Detector: decision.Detector{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
	}
	return decision.NewTable(1, time.Time{}, node, []*decision.ServicePort{
		service("web", decision.TCP, "10.96.0.20:80", 30080, "10.244.1.5:8080", "10.244.2.9:8080"),
		service("dns", decision.UDP, "10.96.0.10:53", 0, "10.244.0.3:53", "10.244.0.4:53/down"),
		service("empty", decision.TCP, "10.96.0.30:80", 0),
		service("other", decision.TCP, "10.96.0.40:80", 0, "10.244.2.40:8080"),
	})
}

// line is an entry: "tcp CLIENT SERVICE ENDPOINT [MASQUERADED]".
func line(words ...string) string {
	at := func(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }
	client, service, endpoint, back := at(words[1]), at(words[2]), at(words[3]), at(words[1])
	if len(words) > 4 {
		back = at(words[4])
	}
	start := map[string]string{"tcp": "tcp 6 99 ESTABLISHED", "closed": "tcp 6 9 TIME_WAIT", "udp": "udp 17 9"}[words[0]]
	return fmt.Sprintf("%s src=%s dst=%s sport=%d dport=%d src=%s dst=%s sport=%d dport=%d [ASSURED] mark=0 use=1\n", start,
		client.Addr(), service.Addr(), client.Port(), service.Port(), endpoint.Addr(), back.Addr(), endpoint.Port(), back.Port())
}

var kindNames = []string{"no endpoint", "not serving", "other service", "untranslated", "not masqueraded"}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		entry string
		want  string // the kind and the service; empty: nothing is wrong
	}{
		{line("tcp", "10.244.1.7:4000", "10.96.0.20:80", "10.244.2.9:8080"), ""},
		{line("tcp", "10.244.1.7:4000", "10.96.0.20:80", "10.244.2.8:8080"), "no endpoint web"},
		{line("closed", "10.244.1.7:4000", "10.96.0.20:80", "10.244.2.8:8080"), ""},
		{line("tcp", "10.244.1.7:4000", "10.96.0.20:80", "10.244.2.9:80"), "no endpoint web"},
		{line("tcp", "10.244.1.7:4000", "10.96.0.20:80", "10.244.2.40:8080"), "other service web"},
		{line("tcp", "10.244.1.7:4000", "10.96.0.20:80", "10.96.0.20:80"), "untranslated web"},
		{line("tcp", "10.244.1.7:4000", "10.96.0.30:80", "10.96.0.30:80"), ""}, // refused: it has no endpoints
		{line("tcp", "10.244.1.7:4000", "10.96.0.99:80", "10.244.2.8:8080"), ""},
		{line("tcp", "10.244.1.7:4000", "10.244.2.9:8080", "10.244.2.9:8080"), ""},
		{line("udp", "10.244.1.7:4000", "10.96.0.10:53", "10.244.0.4:53"), "not serving dns"},
		{line("udp", "10.244.1.7:4000", "10.96.0.10:53", "10.244.0.3:53"), ""},
		// A pod that reaches itself, and a client outside.
		{line("tcp", "10.244.2.9:4000", "10.96.0.20:80", "10.244.2.9:8080"), "not masqueraded web"},
		{line("tcp", "10.244.2.9:4000", "10.96.0.20:80", "10.244.2.9:8080", "172.20.0.2:4000"), ""},
		{line("tcp", "192.0.2.7:4000", "172.20.0.2:30080", "10.244.2.9:8080"), "not masqueraded web"},
		{line("tcp", "192.0.2.7:4000", "172.20.0.2:30080", "10.244.2.9:8080", "172.20.0.2:61000"), ""},
		{line("tcp", "192.0.2.7:4000", "172.20.0.2:30080", "172.20.0.2:30080"), "untranslated web"},
		{line("tcp", "172.20.0.2:4000", "10.96.0.20:80", "10.244.2.9:8080"), ""},    // masqueraded as itself
		{line("tcp", "192.0.2.7:4000", "172.20.0.3:30080", "172.20.0.3:30080"), ""}, // of another node
		{line("tcp", "192.0.2.7:4000", "172.20.0.2:22", "172.20.0.2:22"), ""},       // no service
		{strings.Replace(line("tcp", "10.244.1.7:4000", "10.96.0.20:80", "10.244.2.8:8080"), "mark=0", "zone=5", 1), ""},
	} {
		entries, err := Read(strings.NewReader(c.entry + c.entry))
		if err != nil {
			t.Fatal(err)
		}
		j := Judge(testTable(t), entries)
		got := ""
		for _, x := range j.Contradictions {
			got += kindNames[x.Kind] + " " + x.Service.Name.Name
			if x.Count != 2 || x.Example.Line != 1 {
				t.Errorf("%s: %d entries, the first in line %d", c.entry, x.Count, x.Example.Line)
			}
		}
		if got != c.want || j.Entries != 2 {
			t.Errorf("%s: %q, want %q", c.entry, got, c.want)
		}
	}
}
