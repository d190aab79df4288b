package diagnose

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// consistent reports what contradicts what in an answer.
func consistent(t *testing.T, a *Answer) {
	t.Helper()
	words, failing, mistakes := "does not work", 0, 0
	if a.Works {
		words = "works"
	}
	for _, e := range a.Endpoints {
		if e.Problem != nil {
			failing++
		}
	}
	for _, n := range a.Notes {
		if n.Code.Severity() == Error {
			mistakes++
		}
	}
	switch {
	case !strings.HasPrefix(a.Headline, words), a.Works != (a.Cause == nil), (a.Outcome == Fails) == a.Works:
	case a.Outcome == Works && failing+mistakes > 0:
	case a.Outcome == Partly && failing+mistakes == 0:
	case a.Works && failing > 0 && (failing == len(a.Endpoints) || !strings.Contains(a.Headline, " in part")):
	case a.Record != nil && a.Cause != nil && (a.Cause.Code == NoLocalEndpoints || a.Cause.Code == SourceNotAllowed) && a.Record.Verdict != "drop":
	case a.Unless != "" && !strings.Contains(a.Headline, ", unless "+a.Unless):
	default:
		return
	}
	t.Errorf("%s to %s: outcome %s, works %v, %q, cause %+v, notes %+v, endpoints %+v", a.Source.Name, a.Destination.Name, a.Outcome, a.Works, a.Headline, a.Cause, a.Notes, a.Endpoints)
}

// claimed has two Services with one cluster IP and port.
var claimed = []edit{{"clusterIP: 10.96.0.30", "clusterIP: 10.96.0.20"}, {"clusterIPs: [10.96.0.30]", "clusterIPs: [10.96.0.20]"}, {"ports: [{port: 443,", "ports: [{port: 80,"}}

// TestClaimedTwice: a Service whose packets go to another one does not work.
func TestClaimedTwice(t *testing.T) {
	var fails []string
	c := broken(t, claimed...)
	for _, to := range []string{"shop/web", "shop/front"} {
		a, err := c.Why(Question{From: "shop/client", To: to})
		if err != nil {
			t.Fatal(err)
		}
		consistent(t, a)
		if !a.Works && a.Cause.Code == ClaimedTwice {
			fails = append(fails, to)
		}
	}
	if len(fails) != 1 {
		t.Errorf("%v do not work, want one of the two", fails)
	}
}

// TestOutcomes: all answers about clusters with one mistake each are consistent, whoever asks.
func TestOutcomes(t *testing.T) {
	seen := make(map[Outcome]int)
	for _, edits := range [][]edit{
		nil,
		{{"selector: {app: web}\n  ports: [{name: http", "selector: {app: wbe}\n  ports: [{name: http"}},
		{{"- {addresses: [10.244.2.2]", "- {addresses: [10.244.2.77]"}},
		claimed,
	} {
		c := broken(t, edits...)
		froms := append([]string{Outside}, c.nodes.names...)
		for _, n := range sortedNames(c.pods) {
			froms = append(froms, n.String())
		}
		var tos []string
		for _, n := range sortedNames(c.services) {
			tos = append(tos, n.String())
			for _, p := range c.services[n].Spec.Ports {
				tos = append(tos, c.services[n].Spec.ClusterIP+":"+strings.Split(portText(&p), "/")[0])
			}
		}
		for _, node := range c.nodes.names {
			tos = append(tos, node+":30080", node+":30443", node+":22")
		}
		for _, from := range froms {
			for _, to := range tos {
				if a, err := c.Why(Question{From: from, To: to}); err == nil {
					consistent(t, a)
					seen[a.Outcome]++
				}
			}
		}
	}
	if seen[Works] == 0 || seen[Partly] == 0 || seen[Fails] == 0 {
		t.Errorf("outcomes %v: want some of each", seen)
	}
}

// TestObjectToLookAt: an endpoint that refuses connections need not be a Pod.
func TestObjectToLookAt(t *testing.T) {
	const endpoint = "{addresses: [10.244.1.2], nodeName: node-a, conditions: {ready: true}, targetRef: {kind: Pod, namespace: shop, name: web-1}}"
	for address, want := range map[string]string{"10.244.1.2": "Pod shop/web-1", "172.20.0.2": "Node node-a", "192.0.2.7": "Service shop/web"} {
		c := broken(t, edit{endpoint, "{addresses: [" + address + "], conditions: {ready: true}}"})
		c.Observe([]*flow.Record{{Endpoint: address + ":8080", Protocol: "TCP", Life: &flow.Life{State: flow.Refused}}}, time.Time{})
		a, err := c.Why(Question{From: "shop/client", To: "web.shop:80"})
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Notes) == 0 || a.Notes[0].Code != Refuses || a.Notes[0].Object != want {
			t.Errorf("%s: %+v, want a note about %s", address, a.Notes, want)
		}
	}
}

// TestAge: what flows showed some time ago may be over, so the finding says when it was.
func TestAge(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for age, want := range map[time.Duration]string{time.Second: "(1 of the last 1)", 130 * time.Second: "(1 of the last 1, the latest 130 s ago)"} {
		c := broken(t)
		c.Observe([]*flow.Record{
			{Time: new(now.Add(-age)), Endpoint: "10.244.1.2:8080", Protocol: "TCP", Life: &flow.Life{State: flow.Refused}},
			{Time: new(now), Endpoint: "10.244.1.2:8080", Protocol: "TCP", Life: &flow.Life{State: flow.Decided}},
		}, now)
		if f, _ := c.observed("10.244.1.2:8080", decision.TCP); f == nil || !strings.Contains(f.Text, want) {
			t.Errorf("%+v, want %s", f, want)
		}
	}
}

// TestHeadline: numbers are in the headline if some connections fail, and recent flows count.
func TestHeadline(t *testing.T) {
	observed := func(endpoint string, states ...flow.State) (records []*flow.Record) {
		for _, s := range states {
			records = append(records, &flow.Record{Endpoint: endpoint, Protocol: "TCP", Life: &flow.Life{State: s, Answered: s == flow.Answered}})
		}
		return records
	}
	for _, tt := range []struct {
		name    string
		edits   []edit
		records []*flow.Record
		to      string
		outcome Outcome
		want    string
	}{
		{"all answer", nil, nil, "web.shop:80", Works, "works, as far as the objects show: 2 endpoints, each gets one flow in 2"},
		{"one of two refuses", nil, observed("10.244.1.2:8080", flow.Refused, flow.Refused), "web.shop:80", Partly, "works in part, as far as objects and recent flows show: 1 of 2 endpoints should answer, and 1 in 2 flows fails"},
		{"one answers again", nil, observed("10.244.1.2:8080", flow.Unanswered, flow.Answered), "web.shop:80", Works, "works, as far as objects and recent flows show: 2 endpoints, each gets one flow in 2"},
		{"neither answers", nil, append(observed("10.244.1.2:8080", flow.Unanswered), observed("10.244.2.2:8080", flow.Refused)...), "web.shop:80", Fails, "does not work"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := broken(t, tt.edits...)
			c.Observe(tt.records, time.Time{})
			a, err := c.Why(Question{From: "shop/client", To: tt.to})
			if err != nil {
				t.Fatal(err)
			}
			consistent(t, a)
			if a.Outcome != tt.outcome || a.Headline != tt.want {
				t.Errorf("%s: %q, want %s: %q; %+v", a.Outcome, a.Headline, tt.outcome, tt.want, a.Endpoints)
			}
			if len(tt.records) > 0 && a.Endpoints[0].Flows == nil {
				t.Error("the recent flows are not in the answer")
			}
		})
	}
}

// TestOutcomesOnTheWay: so are those about packets that two nodes may decide, and about source ranges.
func TestOutcomesOnTheWay(t *testing.T) {
	objects, err := labfile.LoadOnce(nil, []string{"testdata/path.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	c := New(objects, servicetable.NodeConfig{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}})
	seen := make(map[Outcome]int)
	for from := range c.pods {
		for _, node := range c.nodes.names {
			for _, svc := range c.services {
				for _, p := range svc.Spec.Ports {
					if a, err := c.Why(Question{From: from.String(), To: fmt.Sprintf("%s:%d", node, p.NodePort)}); err == nil {
						consistent(t, a)
						seen[a.Outcome]++
					}
				}
			}
		}
	}
	if seen[Works] == 0 || seen[Fails] == 0 {
		t.Errorf("outcomes %v: want some of each", seen)
	}
}

// TestSourceRanges: loadBalancerSourceRanges count at the load balancer's address, and nowhere else.
func TestSourceRanges(t *testing.T) {
	for _, tt := range []struct {
		from, to string
		allowed  bool
	}{
		{"192.0.2.7", "203.0.113.5:443", true},
		{"198.51.100.7", "203.0.113.5:443", false},
		{"shop/client", "203.0.113.5:443", false},
		{"node-b", "203.0.113.5:443", false},
		{"198.51.100.7", "node-b:30443", true},
		{"shop/client", "10.96.0.30:443", true},
		{"shop/client", "shop/front", true},
	} {
		a, err := broken(t).Why(Question{From: tt.from, To: tt.to, Node: map[bool]string{true: "node-b"}[strings.HasPrefix(tt.from, "19")]})
		if err != nil {
			t.Fatal(err)
		}
		consistent(t, a)
		if a.Works != tt.allowed || !tt.allowed && (a.Cause.Code != SourceNotAllowed || !strings.Contains(a.Cause.Text, "192.0.2.0/24")) {
			t.Errorf("%s to %s: %s: %+v", tt.from, tt.to, a.Headline, a.Cause)
		}
	}
}

// TestOutsiders: the address of any client outside is none that a Service has, and none that a range or a policy names, unless it names
// all.
func TestOutsiders(t *testing.T) {
	for _, tt := range []struct{ old, edited, want string }{
		{"192.0.2.0/24", "192.0.2.0/24", "203.0.113.9"},
		{"192.0.2.0/24", "203.0.113.0/24", "198.51.100.9"},
		{"192.0.2.0/24", "0.0.0.0/0", "203.0.113.9"},
		{"192.0.2.0/24", "0.0.0.0/0, 203.0.113.0/24", "198.51.100.9"},
		{"203.0.113.5", "203.0.113.9", "198.51.100.9"},
	} {
		if got := broken(t, edit{tt.old, tt.edited}).outsiders(); len(got) != 2 || got[0].String() != tt.want || got[1].String() != "2001:db8:1::9" {
			t.Errorf("%s: %s, want %s", tt.edited, got, tt.want)
		}
	}
}
