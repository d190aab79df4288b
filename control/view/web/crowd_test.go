package web_test

import (
	"fmt"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// crowdEndpoints is how many endpoints each further service has.
const crowdEndpoints = 10

// grow adds services to the world, in the namespace crowd. Half of the flows that reach an
// endpoint go to one of them, each time to another one.
func (w *world) grow(services int) {
	for i := range services {
		name := fmt.Sprintf("service-%05d", i)
		s := observe.Service{
			Service: "crowd/" + name + ":http", Namespace: "crowd", Name: name, PortName: "http", Family: "IPv4", Protocol: "TCP",
			ClusterIP: fmt.Sprintf("10.97.%d.%d", i>>8, i&255), Port: 80, InternalPolicy: "Cluster", ExternalPolicy: "Cluster",
		}
		for j := range crowdEndpoints {
			s.Endpoints = append(s.Endpoints, observe.Endpoint{
				Endpoint: fmt.Sprintf("10.%d.%d.%d:8080", 128+j, i>>8, i&255), Pod: fmt.Sprintf("crowd/%s-%d", name, j),
				Node: w.nodes[j%len(w.nodes)].name, Expected: 1.0 / crowdEndpoints,
			})
		}
		w.crowd = append(w.crowd, s)
		for _, e := range s.Endpoints {
			w.pods = append(w.pods, observe.TopologyPod{Name: e.Pod, Node: e.Node, Addresses: []netip.Addr{netip.MustParseAddrPort(e.Endpoint).Addr()}})
		}
	}
}

// scatter has a flow go to a further service, if there are any.
func (w *world) scatter(r *flow.Record) {
	if len(w.crowd) == 0 || r.Verdict != "dnat" || w.random.IntN(2) == 0 {
		return
	}
	s := &w.crowd[w.random.IntN(len(w.crowd))]
	e := &s.Endpoints[w.random.IntN(crowdEndpoints)]
	r.Service, r.Destination = s.Service, fmt.Sprintf("%s:%d", s.ClusterIP, s.Port)
	r.Endpoint, r.Pod, r.EndpointNode = e.Endpoint, e.Pod, e.Node
}

// everActive gives all further services a flow of the past.
func (f *fake) everActive() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.world.crowd {
		s := &f.world.crowd[i]
		f.counts[s.Service] = &observe.Flows{Total: 1, Drawn: 1}
		f.counts[s.Service+"|"+s.Endpoints[0].Endpoint] = &observe.Flows{Total: 1, Drawn: 1}
	}
}

// polled waits for some more requests for active services.
func (f *fake) polled(p *page, more int) {
	p.Helper()
	count := func() (n int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, r := range f.requests {
			n += int(one(r.query == "active=true"))
		}
		return n
	}
	before := count()
	for end := time.Now().Add(5 * time.Minute); count() < before+more; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			p.Fatalf("%d requests for active services, want %d", count()-before, more)
		}
	}
}

// TestPageOfManyServices: with 10,000 services (as a selection 2,000) and 50 flows a second every view works and draws a limited
// number of things, and all services are requested rarely and in pages.
func TestPageOfManyServices(t *testing.T) {
	services := netnstest.Cases(10000, 2000)
	w := newWorld(t, 31)
	w.grow(services)
	f := newFake(t, w, 50)
	all := len(f.listed)
	p := open(t, f, "#/overview")
	within := func(selector string, least, most int) {
		t.Helper()
		p.WaitFor(selector, fmt.Sprintf("document.querySelectorAll(%s).length >= %d", webtest.Quote(selector), least))
		if n := webtest.Value[int](p.Page, fmt.Sprintf("document.querySelectorAll(%s).length", webtest.Quote(selector))); n > most {
			t.Errorf("%d times %s, want at most %d", n, selector, most)
		}
	}
	p.WaitFor("rates", "Number(document.querySelector('.overview .number').textContent) > 10")
	within(".busy li", 6, 6)

	p.GoTo("#/flows")
	within("#rows tr", 150, 200)
	p.GoTo("#/flows?namespace=crowd")
	p.WaitFor("flows of a namespace", rows+" > 20 && [...document.querySelectorAll('#rows .to')].every(td => td.textContent.startsWith('crowd/service-'))")
	p.GoTo("#/flows")

	p.GoTo("#/services")
	count := func(text string) string {
		return fmt.Sprintf("document.querySelector('.services [role=status]').textContent.startsWith(%q)", text)
	}
	p.WaitFor("all services", count(fmt.Sprintf("the first 200 of %d,%03d service ports, summed", services/1000, all-services)))
	within("#services tr", 200, 200)
	p.WaitFor("rates of those with flows", "/[1-9]/.test(document.querySelector('#services tr .rate').textContent)")
	rows := "[...document.querySelectorAll('#services tr')].map(tr => tr.dataset.service).join(' ')"
	last := fmt.Sprintf("service-%05d", services-1)
	p.Enter("input.find", last)
	p.WaitFor("the last of them", rows+" === 'crowd/"+last+":http' && "+count("1 service port, "))
	p.Enter("input.find", "10.97.0.7")
	p.WaitFor("one by its address, among others", rows+".includes('crowd/service-00007:http') && "+count("11 service ports, "))
	p.Enter("input.find", "crowd/")
	p.Click(".services th.name button")
	p.WaitFor("the first by name", rows+".startsWith('crowd/service-00000:http crowd/service-00001:http ')")
	f.polled(p, 3)

	p.GoTo("#/map")
	p.WaitFor("more connections than are shown", "/^And [\\d,]+ more connections between other places, with /.test(document.getElementById('rest').textContent)")
	within("a.connection", 20, 60)
	within(".spot.service", 12, 12)
	within(".dot", 1, 90)

	f.mu.Lock()
	defer f.mu.Unlock()
	var asked time.Time
	pages := 0
	for _, r := range f.requests {
		q, err := url.ParseQuery(r.query)
		if err != nil {
			t.Fatal(err)
		}
		if q.Get("active") == "true" {
			continue
		}
		if r.services > 500 {
			t.Errorf("a request for services (%s) got %d", r.query, r.services)
		}
		if q.Get("limit") == "500" {
			pages++
			if !q.Has("after") {
				if r.at.Sub(asked) < time.Minute {
					t.Errorf("all services are requested again after %v", r.at.Sub(asked))
				}
				asked = r.at
			}
		}
	}
	if pages < services/500 {
		t.Errorf("%d pages of services were requested: the test sees nothing", pages)
	}
}
