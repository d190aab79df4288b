package web_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// call makes flows of a pod, and brings each into the states that it goes through.
func (f *fake) call(t *testing.T, id, pod, to string, count int, states ...flow.State) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range count {
		r, err := f.world.decide(f.world.nodeOf[pod], flow.Question{Protocol: "tcp", Source: fmt.Sprintf("pod/%s:%d", pod, 40000+i), Destination: to})
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		f.world.live(r, fmt.Sprintf("%s-%d", id, i), now)
		f.known(r, nil, now)
		for _, s := range states {
			f.happen(f.flows[r.ID], s, now)
		}
	}
}

func TestMap(t *testing.T) {
	f := newFake(t, newWorld(t, 8), 400)
	p := open(t, f, "#/map")
	p.WaitFor("dots", "document.querySelectorAll('.dot.good').length > 5 && !!document.querySelector('.dot.bad')")
	p.WaitFor("it shows that dots are a sample", "/each dot stands for \\d+ flows; the figures count all/.test(document.querySelector('.map [role=status]').textContent)")
	p.WaitFor("why flows reach no endpoint", "[...document.querySelectorAll('.spot.service')].some(x => x.dataset.name === 'shop/legacy' && /\\d+: no usable endpoint in the cluster/.test(x.textContent))")
	p.Click(`a.spot[data-name="shop/redis"]`)
	p.WaitFor("its flows", "location.hash === '#/flows?service=shop%2Fredis'")
}

// TestMapCounts: a connection has the exact counts of its flows, in their latest states, and
// leads to them; as a picture and as a list, by mouse and by keyboard.
func TestMapCounts(t *testing.T) {
	f := newFake(t, newWorld(t, 19), 0)
	p := open(t, f, "#/map")
	p.WaitFor("the next step", "document.querySelector('.map .empty code')?.textContent.startsWith('nfqproxy lab exec --lab shop ')")
	const caller = "monitoring/prometheus-0"
	f.call(t, "answered", caller, "service/shop/cart:http", 192, flow.Answered, flow.Established)
	f.call(t, "silent", caller, "service/shop/cart:http", 4)
	f.call(t, "refused", caller, "service/shop/cart:http", 2, flow.Refused)
	f.call(t, "reset", caller, "service/shop/cart:http", 1, flow.Answered, flow.Established, flow.Reset)
	f.call(t, "legacy", caller, "service/shop/legacy:80", 3)
	edge := fmt.Sprintf(`a.connection[data-key="pod %s > service shop/cart"]`, caller)
	label := fmt.Sprintf("document.querySelector(%s)?.getAttribute('aria-label')", webtest.Quote(edge))
	p.WaitFor("its counts", fmt.Sprintf("%s.endsWith('s 199 flows, 192 answered, 2 refused, 1 reset, 4 still waiting for a reply') && %[1]s.includes(', 98%% answered; in the last ')", label))
	f.mu.Lock()
	for i := range 4 {
		f.happen(f.flows[fmt.Sprint("silent-", i)], flow.Unanswered, time.Now())
	}
	f.mu.Unlock()
	p.WaitFor("a later state", label+".endsWith('s 199 flows, 192 answered, 4 unanswered, 2 refused, 1 reset')")
	p.WaitFor("its tone", fmt.Sprintf("document.querySelector(%s).dataset.tone === 'warn'", webtest.Quote(edge)))
	endpoints := webtest.Value[[]string](p.Page, "[...document.querySelectorAll('a.connection[data-from=\"service shop/cart\"]')].map(a => a.getAttribute('aria-label').match(/ (\\d+) flows,/)[1])")
	sum := 0
	for _, n := range endpoints {
		var flows int
		fmt.Sscan(n, &flows)
		sum += flows
	}
	if len(endpoints) != 3 || sum != 199 {
		t.Errorf("the connections to endpoints have %q flows, want three that add up to 199", endpoints)
	}
	if n := webtest.Value[int](p.Page, "document.querySelectorAll('a.connection[data-from=\"service shop/legacy\"]').length"); n != 0 {
		t.Errorf("a service without endpoints has %d connections to some", n)
	}
	p.WaitFor("nothing answered", "document.querySelector('.connection[data-to=\"service shop/legacy\"]').dataset.tone === 'bad'")

	// Focus shows the numbers, and Enter the flows.
	p.Run(chromedp.Focus(edge, chromedp.ByQuery))
	p.WaitFor("the card", "!document.querySelector('.map-card').hidden && document.querySelector('.map-card').textContent.includes('4unanswered2refused1reset')")
	p.Press("\r")
	p.WaitFor("its flows", "location.hash === '#/flows?service=shop%2Fcart&source=monitoring%2Fprometheus-0' && "+rows+" > 150")
	p.GoTo("#/map")
	p.WaitFor("no flow of others", "document.querySelectorAll('.spot.service').length === 1 && document.querySelector('.map [role=status]').textContent.includes('that match the filters')")
	p.Run(chromedp.Focus(`a.connection[data-from="service shop/cart"]`, chromedp.ByQuery))
	p.Press("\r")
	p.WaitFor("those to one endpoint", "/^#.flows.service=shop%2Fcart&endpoint=shop%2Fcart-5b8f-.....$/.test(location.hash) && "+rows+" > 30")

	p.GoTo("#/flows")
	p.WaitFor("no filter", "document.querySelectorAll('.chip').length === 0")
	p.GoTo("#/map")
	p.Click("#as-list")
	p.WaitFor("the same as a list", fmt.Sprintf("document.querySelectorAll('.map-list article').length === 2 && %s.includes(' 96%% answered')", label))
	if text := webtest.Value[string](p.Page, "document.querySelector('.map-list [data-service=\"shop/legacy\"] .refusals').textContent"); text != "3 no usable endpoint in the cluster" {
		t.Errorf("the list explains refused flows with %q", text)
	}
	p.Click("#as-list") // for other tests: the page remembers it until it is loaded again
	p.WaitFor("the picture", "!!document.querySelector('.map-picture svg')")
}
