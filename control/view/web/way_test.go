package web_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// onNode is what a node decides about a packet, with the source as its endpoint sees it, which is known
// as soon as the kernel has the entry.
func (f *fake) onNode(t *testing.T, node, protocol, source, destination, endpoint, seen string) *flow.Record {
	t.Helper()
	for range 100 {
		r, err := f.world.decide(node, flow.Question{Protocol: protocol, Source: source, Destination: destination})
		if err != nil {
			t.Fatal(err)
		}
		if endpoint != "" && r.EndpointNode != endpoint {
			continue
		}
		f.world.live(r, "translated", time.Now())
		if r.Verdict == "dnat" {
			r.Life.State, r.Life.Answered, r.Life.SeenSource = flow.Closed, true, seen
		}
		return r
	}
	t.Fatalf("%s never selects an endpoint on %s", node, endpoint)
	return nil
}

// passes is what a node decides that passes a packet.
func (f *fake) passes(node, id, protocol, source, destination string, after time.Duration) *flow.Record {
	at := time.Now().Add(after)
	r := &flow.Record{
		Version: 1, ID: id, Time: &at, Node: node, Verdict: "accept", Reason: "not-a-service", Protocol: protocol, Source: source, Destination: destination,
		Life: &flow.Life{State: flow.Decided, Since: at}, Candidates: []flow.Candidate{}, Excluded: []flow.Excluded{},
		Steps: []flow.Step{{Chain: "KUBE-SERVICES", Table: "nat", Outcome: flow.StepPolicy, Text: "no service has " + destination + "/" + protocol}},
	}
	f.world.name(r)
	return r
}

// put has the fake know flows: each has the others.
func (f *fake) put(records ...*flow.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, r := range records {
		c := *r
		c.Others = slices.Delete(slices.Clone(records), i, i+1)
		if len(records) == 1 {
			c.Others = []*flow.Record{}
		}
		f.flows[c.ID] = &c
	}
}

// TestWayOnSeveralNodes: one picture has all nodes in the order of the packet, with the addresses on each
// segment, each node's decision and the reply path.
func TestWayOnSeveralNodes(t *testing.T) {
	f := newFake(t, newWorld(t, 21), 0)
	f.unobserved = "node-b"
	p := open(t, f, "")
	const laptop, nodePort, cart = "192.0.2.10:40000", "172.20.0.2:30080", "service/shop/cart:http"
	clusterIP := f.onNode(t, "node-a", "tcp", "pod/shop/frontend-7c9d-x2k4p:40000", cart, "node-c", "")
	clusterIP.Life.SeenSource = clusterIP.Source
	masqueraded := f.onNode(t, "node-a", "tcp", laptop, nodePort, "node-c", "172.20.0.2:40000")
	lost := f.onNode(t, "node-a", "tcp", laptop, nodePort, "node-c", "")
	lost.Life.Answered, lost.Life.State = false, flow.Decided
	silent := f.onNode(t, "node-a", "tcp", laptop, nodePort, "node-b", "172.20.0.2:40000")
	loadBalancer := f.onNode(t, "node-c", "tcp", "198.51.100.23:40000", "203.0.113.10:80", "node-b", "172.20.0.4:40000")
	local := f.onNode(t, "node-a", "tcp", "198.51.100.23:40000", "172.20.0.2:30443", "node-a", "198.51.100.23:40000")
	dropped := f.onNode(t, "node-c", "tcp", "198.51.100.23:40000", "172.20.0.4:30443", "", "")
	rejected := f.onNode(t, "node-b", "tcp", "pod/monitoring/prometheus-0:40000", "service/shop/legacy:80", "", "")
	udp := f.onNode(t, "node-a", "udp", "pod/shop/frontend-7c9d-x2k4p:40000", "service/kube-system/kube-dns:dns", "node-b", "")
	udp.Life.SeenSource = udp.Source
	here := f.onNode(t, "node-a", "tcp", "pod/shop/frontend-7c9d-x2k4p:40000", cart, "node-a", "")
	back := *f.onNode(t, "node-c", "tcp", "198.51.100.23:40000", "203.0.113.10:80", "node-a", "172.20.0.4:40000")
	back.Source = back.Endpoint[:strings.LastIndex(back.Endpoint, ":")] + ":40000"
	back.SourceHost = ""
	f.world.name(&back)
	for _, tt := range []struct {
		name    string
		records []*flow.Record // the first is shown
		cards   string         // the aria-labels of nodes other than the first record's
		through string
		// segments are the addresses from the first node on, with a * for what it has changed.
		segments []string
		has      []string
		lacks    string
	}{
		{"cluster IP", []*flow.Record{clusterIP, f.passes("node-c", "p", "TCP", clusterIP.Source, clusterIP.Endpoint, time.Millisecond)}, "node-c: passes", "node-a, then node-c",
			[]string{clusterIP.Source + " → *" + clusterIP.Endpoint, clusterIP.Source + " → " + clusterIP.Endpoint}, []string{"Passes unchanged", "destination translated", "node-a: connection tracking", "un-DNAT"}, "masqueraded"},
		{"node port", []*flow.Record{masqueraded, f.passes("node-c", "p", "TCP", "172.20.0.2:40000", masqueraded.Endpoint, time.Millisecond)}, "node-c: passes", "node-a, then node-c",
			[]string{"*172.20.0.2:40000 → *" + masqueraded.Endpoint, "172.20.0.2:40000 → " + masqueraded.Endpoint}, []string{"destination translated, source masqueraded", "masqueraded: the endpoint may be on any node", "un-SNAT"}, ""},
		{"the record of the endpoint's node", []*flow.Record{f.passes("node-c", "p", "TCP", "172.20.0.2:40000", masqueraded.Endpoint, -time.Second), masqueraded}, "node-a: translated", "node-a, then node-c",
			[]string{"*172.20.0.2:40000 → *" + masqueraded.Endpoint, "172.20.0.2:40000 → " + masqueraded.Endpoint}, []string{laptop, nodePort, "Sent to endpoint " + masqueraded.Pod, "shop/frontend:http, by its node port", "masqueraded: the endpoint may be on any node", "un-SNAT", "no service has " + masqueraded.Endpoint + "/TCP"}, ""},
		{"policy Local, through another node", []*flow.Record{local, f.passes("node-b", "p", "TCP", local.Source, local.Destination, -time.Millisecond)}, "node-b: passes", "node-b, then node-a",
			[]string{local.Source + " → " + local.Destination, local.Source + " → *" + local.Endpoint}, []string{"outside the cluster", "the external traffic policy is Local", local.Pod}, "masqueraded"},
		{"three nodes", []*flow.Record{loadBalancer, f.passes("node-a", "p", "TCP", loadBalancer.Source, loadBalancer.Destination, time.Second), f.passes("node-b", "q", "TCP", "172.20.0.4:40000", loadBalancer.Endpoint, 0)}, "node-a: passes|node-b: passes", "node-a, then node-c, then node-b",
			[]string{loadBalancer.Source + " → " + loadBalancer.Destination, "*172.20.0.4:40000 → *" + loadBalancer.Endpoint, "172.20.0.4:40000 → " + loadBalancer.Endpoint}, []string{"crawler", "shop/frontend:http", "load balancer IP"}, ""},
		{"hairpin through another node", []*flow.Record{&back, f.passes("node-a", "p", "TCP", back.Source, back.Destination, 0), f.passes("node-a", "q", "TCP", "172.20.0.4:40000", back.Endpoint, 0)}, "node-a: passes|node-a: passes", "node-a, then node-c, then node-a",
			[]string{back.Source + " → " + back.Destination, "*172.20.0.4:40000 → *" + back.Endpoint, "172.20.0.4:40000 → " + back.Endpoint}, []string{back.Pod, "un-SNAT: the destination becomes " + back.Source + " again"}, ""},
		{"UDP", []*flow.Record{udp, f.passes("node-b", "p", "UDP", udp.Source, udp.Endpoint, time.Millisecond)}, "node-b: passes", "node-a, then node-b",
			[]string{udp.Source + " → *" + udp.Endpoint, udp.Source + " → " + udp.Endpoint}, []string{"kube-system/kube-dns:dns"}, "masqueraded"},
		{"dropped at the second node", []*flow.Record{f.passes("node-a", "p", "TCP", dropped.Source, dropped.Destination, time.Second), dropped}, "node-c: dropped", "node-a, then node-c",
			[]string{dropped.Source + " → " + dropped.Destination}, []string{"Dropped", "policy Local, usable endpoints only on other nodes"}, "REPLY PATH"},
		{"rejected at the second node", []*flow.Record{rejected, f.passes("node-c", "p", "TCP", rejected.Source, rejected.Destination, -time.Second)}, "node-c: passes", "node-c, then node-b",
			[]string{rejected.Source + " → " + rejected.Destination}, []string{"Rejected: ICMP port unreachable", "no usable endpoint in the cluster"}, "REPLY PATH"},
		{"a node that is not observed", []*flow.Record{silent}, "node-b: not observed: its decision is not known", "node-a, then node-b",
			[]string{"*172.20.0.2:40000 → *" + silent.Endpoint}, []string{"not observed: its decision is not known", silent.Pod}, "Passes unchanged"},
		{"a node without a record", []*flow.Record{lost}, "node-c: no record of this packet within 10 s", "node-a, then node-c",
			[]string{"*172.20.0.2:? → *" + lost.Endpoint}, []string{"no reply yet"}, "Passes unchanged"},
		{"one node", []*flow.Record{here}, "", "", nil, []string{here.Pod}, "destination translated"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for i, r := range tt.records {
				if r.ID = fmt.Sprintf("%s-%d", strings.ReplaceAll(tt.name, " ", "-"), i); r.ID == "" {
					t.Fatal()
				}
			}
			f.put(tt.records...)
			p.GoTo("#/flows/" + tt.records[0].ID)
			p.WaitFor("this flow", fmt.Sprintf("document.querySelector('.detail .address').textContent === %q && !!document.querySelector('.picture svg')", tt.records[0].ID))
			list := func(selector, value string) []string {
				return webtest.Value[[]string](p.Page, fmt.Sprintf("[...document.querySelectorAll('.picture %s')].map(x => %s)", selector, value))
			}
			if got := strings.Join(list(".hop:not(.own)", "x.getAttribute('aria-label')"), "|"); got != tt.cards {
				t.Errorf("the other nodes are %q, want %q", got, tt.cards)
			}
			label := "Path of the packet"
			if tt.through != "" {
				label += " through " + tt.through
			}
			if got := webtest.Value[string](p.Page, "document.querySelector('.picture').getAttribute('aria-label')"); got != label {
				t.Errorf("the picture is called %q, want %q", got, label)
			}
			if got, want := webtest.Value[string](p.Page, "document.querySelector('.through')?.textContent ?? ''"), strings.ReplaceAll(tt.through, ", then", " →"); strings.TrimPrefix(got, "through ") != want {
				t.Errorf("the headline has %q, want %q", got, want)
			}
			segments := list(".segment", "[...x.querySelectorAll('.t-code')].map(line => [...line.childNodes].map(c => (c.classList?.contains('changed') ? '*' : '') + c.textContent).join('')).join(' ')")
			if !slices.Equal(segments, tt.segments) {
				t.Errorf("the packet is %q, want %q", segments, tt.segments)
			}
			texts := strings.ReplaceAll(picture(p), "\n", " ")
			wantTexts(t, texts, tt.has...)
			if tt.lacks != "" && strings.Contains(texts, tt.lacks) {
				t.Errorf("the picture has %q:\n%s", tt.lacks, texts)
			}
			checkBoxes(p)
			for _, width := range []int64{1024, 390} {
				p.Run(emulation.SetDeviceMetricsOverride(width, 800, 1, width < 500))
				p.WaitFor("the picture in this width", "Math.abs(document.querySelector('.picture svg').clientWidth - document.querySelector('.picture').clientWidth) < 2")
				if wide := webtest.Value[int64](p.Page, "document.documentElement.scrollWidth"); wide > width {
					t.Errorf("the page is %d wide, want %d", wide, width)
				}
				checkBoxes(p)
			}
			p.Run(emulation.ClearDeviceMetricsOverride())
		})
	}

	// The other nodes' records are reached by keyboard.
	f.put(clusterIP, f.passes("node-c", "next", "TCP", clusterIP.Source, clusterIP.Endpoint, time.Millisecond))
	p.GoTo("#/flows/" + clusterIP.ID)
	p.WaitFor("the other node", "!!document.querySelector('.hop a[href=\"#/flows/next\"]')")
	p.Run(chromedp.Evaluate("document.querySelector('.hop a').focus()", nil))
	p.Press(kb.Enter)
	p.WaitFor("its record", "document.querySelector('.detail .address').textContent === 'next' && document.querySelector('.hop:not(.own)').getAttribute('aria-label') === 'node-a: translated'")
}

// checkBoxes fails the test if texts of the picture leave it, or if one is above another one.
func checkBoxes(p *page) {
	p.Helper()
	if bad := webtest.Value[[]string](p.Page, `(() => {
		const all = [...document.querySelectorAll('.picture text')].filter(x => x.textContent.trim()).map(x => ({ t: x.textContent, b: x.getBoundingClientRect() }));
		const room = document.querySelector('.picture').getBoundingClientRect(), bad = all.filter(({ b }) => b.right > room.right + 1 || b.left < room.left - 1).map(({ t }) => 'outside: ' + t);
		for (const [i, x] of all.entries()) for (const y of all.slice(i + 1)) {
			const wide = Math.min(x.b.right, y.b.right) - Math.max(x.b.left, y.b.left), high = Math.min(x.b.bottom, y.b.bottom) - Math.max(x.b.top, y.b.top);
			if (wide > 2 && high > 5) bad.push('above each other: ' + x.t + ' | ' + y.t);
		}
		return bad;
	})()`); len(bad) > 0 {
		p.Errorf("texts of the picture:\n%s", strings.Join(bad, "\n"))
	}
}
