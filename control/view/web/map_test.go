package web_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/runtime"
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
	p.WaitFor("it shows that dots are a sample", "/each dot stands for \\d+ flows, the figures count all/.test(document.querySelector('.map [role=status]').textContent)")
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

// TestMapOnPhone: nothing is cut, and nothing has to be scrolled sideways.
func TestMapOnPhone(t *testing.T) {
	f := newFake(t, newWorld(t, 20), 60)
	p := open(t, f, "#/map")
	p.Run(emulation.SetDeviceMetricsOverride(390, 844, 1, true))
	p.WaitFor("cards", "document.querySelectorAll('.map-list article').length > 5")
	p.WaitFor("figures", "[...document.querySelectorAll('.map-list .connection')].every(a => /^[0-9.]+.(s|min)$/.test(a.querySelector('.amount').textContent)) && [...document.querySelectorAll('.map-list .part')].some(x => x.textContent === '100%')")
	cut := webtest.Value[[]string](p.Page, `[...document.querySelectorAll('.map-list :is(.name, .amount, .part, .pill)')].filter(x => {
		const a = x.getBoundingClientRect(), b = x.closest('article').getBoundingClientRect();
		return x.scrollWidth > x.clientWidth + 1 && getComputedStyle(x).display !== 'inline' || a.left < b.left || a.right > b.right || a.width === 0;
	}).map(x => x.className + ' ' + x.textContent)`)
	if len(cut) > 0 {
		t.Errorf("cut off: %s", strings.Join(cut, "; "))
	}
	if wide := webtest.Value[int](p.Page, "document.documentElement.scrollWidth"); wide > 390 {
		t.Errorf("the page is %d wide", wide)
	}
}

// TestConnections gives the counter of connections too many flows, and old ones.
func TestConnections(t *testing.T) {
	p := open(t, newFake(t, newWorld(t, 21), 0), "#/flows")
	type counts struct{ Flows, Calls, Selections, Sum, Seconds, Oldest, Later, Held, Left int }
	var c counts
	p.Run(chromedp.Evaluate(`(async () => {
		const { Connections } = await import('/js/connections.js');
		const c = new Connections(), sum = (all) => [...all.values()].reduce((n, x) => n + x.flows, 0);
		const record = (id, second, more) => ({ id, at: second * 1000, verdict: 'dnat', source: '10.0.0.1:1', service: 'shop/cart:http', endpoint: '10.0.0.2:80', sourcePod: 'shop/a', pod: 'shop/b', life: { state: 'decided' }, ...more });
		// 50 seconds with 1,000 flows each, of 100 services.
		for (let i = 0; i < 50000; i++) c.take(record('flow-' + i, 1000 + Math.floor(i / 1000), { service: 'shop/s' + i % 100 }), 1000 + Math.floor(i / 1000));
		c.take(record('flow-0', 1000), 1049); // a later event of a flow that is not counted any more
		const many = { Flows: c.flows.size, Calls: c.calls.size, Selections: c.selections.size, Sum: sum(c.calls), Seconds: c.seconds(1050, 0) };
		c.take(record('old', 900), 1050);
		c.hold(new Set(['pod shop/a > service shop/s7']));
		c.expire(1049 + 60);
		const held = c.calls.size;
		c.hold(new Set());
		c.take(record('late', 1110), 1110);
		c.take(record('late', 1110, { life: { state: 'unanswered' } }), 1111);
		const [late] = c.calls.values();
		return { ...many, Oldest: c.flows.has('old') ? 1 : 0, Later: late.unanswered * 10 + late.waiting, Held: held, Left: c.calls.size + c.selections.size };
	})()`, &c, func(e *runtime.EvaluateParams) *runtime.EvaluateParams { return e.WithAwaitPromise(true) }))
	if want := (counts{Flows: 20000, Calls: 100, Selections: 100, Sum: 20000, Seconds: 20, Later: 10, Held: 1, Left: 2}); c != want {
		t.Errorf("%+v, want %+v", c, want)
	}
}

// TestPick: of many connections some are shown, those that fail first.
func TestPick(t *testing.T) {
	p := open(t, newFake(t, newWorld(t, 22), 0), "#/flows")
	type picked struct{ Services, Calls, Selections, Left, Again, Failing, Empty, Refusing int }
	var have picked
	p.Run(chromedp.Evaluate(`(async () => {
		const { Connections } = await import('/js/connections.js');
		const { alike, pick } = await import('/js/mapplan.js');
		const c = new Connections();
		const take = (id, caller, service, state) => c.take({ id, at: 1e6, verdict: 'dnat', source: '10.0.0.1:1', sourcePod: 'a/caller-' + caller, service: 'a/service-' + service, endpoint: '10.0.0.2:80', pod: 'a/pod-' + service + '-' + caller, life: { state, answered: state === 'closed' } }, 1000);
		// The connections to service 0 have most flows, and so on.
		for (let service = 0; service < 30; service++) for (let caller = 0; caller < 20; caller++) for (let i = 0; i < 30 - service; i++) take([service, caller, i].join(), caller, service, 'closed');
		const first = pick(c);
		take('refused', 19, 28, 'refused');
		const has = (x, caller, service) => x.calls.some((y) => y.from.name === 'a/caller-' + caller && y.to.name === 'a/service-' + service) ? 1 : 0;
		const next = pick(c, first.keys);
		c.take({ id: 'rejected', at: 1e6, verdict: 'reject', reason: 'no-endpoints', source: '10.0.0.1:1', sourcePod: 'a/caller-19', service: 'a/service-28', life: { state: 'rejected' } }, 1000);
		const rejected = pick(c, next.keys);
		return { Services: first.services.length, Calls: first.calls.length, Selections: first.selections.length, Left: first.left, Again: pick(c, first.keys).keys.size, Failing: has(first, 19, 28) * 10 + has(next, 19, 28),
			Empty: first.services.filter((sv) => !first.calls.some((x) => x.to.key === sv.key)).length, Refusing: alike(next, rejected) || rejected.refusing.size !== 1 ? 0 : 1 };
	})()`, &have, func(e *runtime.EvaluateParams) *runtime.EvaluateParams { return e.WithAwaitPromise(true) }))
	if have.Services > 12 || have.Calls != 28 || have.Selections != 32 || have.Left != 1200-60 || have.Again != 60 || have.Failing != 1 || have.Empty != 0 || have.Refusing != 1 {
		t.Errorf("%+v", have)
	}
}
