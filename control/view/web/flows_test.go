package web_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// rows is how many flows the table shows.
const rows = "document.querySelectorAll('#rows tr').length"

func TestFlowsAppear(t *testing.T) {
	f := newFake(t, newWorld(t, 1), 30)
	p := open(t, f, "")
	p.WaitFor("flows", rows+" > 20")
	p.WaitFor("lives go on", "[...document.querySelectorAll('#rows .pill')].some(x => x.textContent === 'closed')")
	p.WaitFor("bytes are counted", "[...document.querySelectorAll('#rows .bytes')].some(x => x.textContent.endsWith('kB'))")
	p.WaitFor("refused flows show why", "document.getElementById('rows').textContent.includes('no usable endpoint in the cluster')")
	p.WaitFor("a rate", "Number(document.querySelector('[data-figure=flows] .number').textContent) > 10")
	if ids := webtest.Value[[]string](p.Page, "[...document.querySelectorAll('#rows tr')].map(tr => tr.dataset.id)"); len(ids) != len(set(ids)) {
		t.Error("a flow has several rows")
	}
	times := webtest.Value[[]string](p.Page, "[...document.querySelectorAll('#rows .time')].map(td => td.textContent)")
	for i := 1; i < len(times); i++ {
		if times[i-1] < times[i] {
			t.Fatalf("row %d is of %s and row %d of %s: want the newest on top", i-1, times[i-1], i, times[i])
		}
	}
	p.Press("p")
	before := webtest.Value[string](p.Page, "document.querySelector('#rows tr').dataset.id")
	p.WaitFor("it shows that it pauses", "document.getElementById('notice').textContent.startsWith('Paused')")
	p.WaitFor("counting goes on", "Number(document.querySelector('[data-figure=flows] .number').textContent) > 10")
	if after := webtest.Value[string](p.Page, "document.querySelector('#rows tr').dataset.id"); after != before {
		t.Errorf("paused, the first row changed from %s to %s", before, after)
	}
	p.Press("p")
	p.WaitFor("new rows", fmt.Sprintf("document.querySelector('#rows tr').dataset.id !== %q", before))
}

// TestOrder: records of several nodes do not come in order. The newest is on top.
func TestOrder(t *testing.T) {
	f := newFake(t, newWorld(t, 9), 0)
	p := open(t, f, "#/flows?all=true")
	p.WaitFor("the stream", "document.querySelector('.flows .empty').textContent.startsWith('No flows yet')")
	now := time.Now()
	come := func(id string, ago time.Duration) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.come(id, now.Add(-ago))
	}
	shows := func(order string) {
		t.Helper()
		p.WaitFor("the order "+order, list+fmt.Sprintf(".join(' ') === %q", order))
	}
	come("b", 100*time.Millisecond)
	shows("b")
	come("a", 200*time.Millisecond)
	shows("b a")
	come("d", 0)
	shows("d b a")
	come("c", 50*time.Millisecond)
	shows("d c b a")
}

// list is the flows that the table shows, from the top.
const list = "[...document.querySelectorAll('#rows tr')].map(tr => tr.dataset.id)"

// come makes a flow that begins at a time, and goes on no further. The fake is locked.
func (f *fake) come(id string, at time.Time) {
	r, _ := f.world.next()
	f.world.live(r, id, at)
	f.known(r, nil, at)
}

// TestReconnect: after a break all that happened meanwhile is there, however much it was,
// and a daemon that was started anew does not leave what it no longer knows.
func TestReconnect(t *testing.T) {
	f := newFake(t, newWorld(t, 9), 0)
	p := open(t, f, "#/flows?all=true")
	p.WaitFor("the stream", "document.querySelector('.flows .empty').textContent.startsWith('No flows yet')")
	p.WaitFor("the topology: its request must not break", "document.getElementById('place').textContent !== ''")
	f.mu.Lock()
	f.come("before", time.Now())
	f.mu.Unlock()
	p.WaitFor("a flow", list+"[0] === 'before'")

	p.ExpectRefusals(1)
	f.mu.Lock() // until it is unlocked, there is no answer
	p.server.CloseClientConnections()
	f.readers = make(map[*reader]bool) // whom that was meant for is gone
	f.happen(f.flows["before"], flow.Answered, time.Now())
	f.mu.Unlock()
	p.WaitFor("how it went on", list+".join(' ') === 'before' && document.querySelector('#rows .pill').textContent === 'answered'")

	p.ExpectRefusals(1)
	f.mu.Lock()
	p.server.CloseClientConnections()
	for i := range 300 { // more than a page loads at first
		id := fmt.Sprint("meanwhile-", i)
		f.come(id, time.Now())
		f.happen(f.flows[id], flow.Unanswered, time.Now())
	}
	f.mu.Unlock()
	p.WaitFor("the newest", list+"[0] === 'meanwhile-299'")
	p.WaitFor("each of them counts", "document.querySelector('[data-figure=unanswered] .number').textContent === '300'")

	p.ExpectRefusals(1)
	f.mu.Lock()
	p.server.CloseClientConnections()
	f.order, f.flows = nil, make(map[string]*flow.Record)
	f.come("anew", time.Now())
	f.mu.Unlock()
	p.WaitFor("nothing but the new one", list+".join(' ') === 'anew'")
}

func set(list []string) map[string]bool {
	s := make(map[string]bool)
	for _, x := range list {
		s[x] = true
	}
	return s
}

func TestFilters(t *testing.T) {
	f := newFake(t, newWorld(t, 2), 40)
	p := open(t, f, "#/flows?service=shop/cart")
	only := func(column, text string) {
		t.Helper()
		p.WaitFor("flows of "+text, fmt.Sprintf("%s > 2 && [...document.querySelectorAll('#rows .%s')].every(td => td.textContent.includes(%s))", rows, column, webtest.Quote(text)))
	}
	only("to", "shop/cart:http")
	// A click on a value filters by it, too.
	p.Click("#rows .source .value")
	// The chips come after the address: until then, the last chip is the first filter's.
	p.WaitFor("two filters", "location.hash.includes('service=shop%2Fcart') && location.hash.includes('pod=') && document.querySelectorAll('.chip').length === 2")
	p.Click(".chip:last-child button")
	p.WaitFor("one filter", "document.querySelectorAll('.chip').length === 1")
	p.Click(".chip button")
	p.WaitFor("all flows", "location.hash === '#/flows' && document.getElementById('rows').textContent.includes('kube-dns')")

	// By keyboard: what was seen is suggested.
	p.Press("/", "U", "D", "P")
	p.WaitFor("a suggestion", "document.querySelector('#suggestions li .of')?.textContent === 'UDP'")
	p.Press(kb.ArrowDown, kb.Enter)
	only("protocol", "UDP")
	p.Press(kb.Backspace)
	p.WaitFor("no filter", "document.querySelectorAll('.chip').length === 0")

	// The API's refusal is shown.
	p.ExpectRefusals(2)
	p.Enter("#filter", "protocol:tpc")
	p.Press(kb.Enter)
	p.WaitFor("the error", `document.querySelector('.filterbar .problem').textContent === 'protocol "tpc": want TCP, UDP or SCTP'`)
}

// TestManyFlows has more flows than a user can read.
func TestManyFlows(t *testing.T) {
	f := newFake(t, newWorld(t, 11), 1000)
	p := open(t, f, "")
	p.WaitFor("it shows that it samples", "/Showing 1 of (5|10|20) flows, counting all/.test(document.getElementById('notice').textContent)")
	p.WaitFor("it counts all", "Number(document.querySelector('[data-figure=flows] .number').textContent.replace(',', '')) > 400")
	for range 4 {
		if n := webtest.Value[int](p.Page, rows); n > 200 {
			t.Fatalf("%d rows", n)
		}
		p.WaitFor("drawing goes on", fmt.Sprintf("document.querySelector('#rows tr').dataset.id !== %q", webtest.Value[string](p.Page, "document.querySelector('#rows tr').dataset.id")))
	}
	p.Press("j")
	p.WaitFor("it stays usable", "document.activeElement.matches('#rows tr')")
	f.setRate(20)
	p.Press("p")
	f.miss(t.Context(), observe.Missed{Node: "node-a", Missed: 1234, Why: observe.MissedSampled})
	f.miss(t.Context(), observe.Missed{Node: "node-a", Missed: 56, Why: observe.MissedLost})
	f.miss(t.Context(), observe.Missed{Node: "node-b", Why: observe.MissedUnreachable})
	for _, text := range []string{"1,234 records missed: rate limit of the API.", "56 records missed: queue overflow on the node.", "Records missed: a node is unreachable."} {
		p.WaitFor("a notice of missed records", fmt.Sprintf("document.getElementById('notice').textContent.includes(%q)", text))
	}
	p.WaitFor("it shows all again", "!document.getElementById('notice').textContent.includes('Showing')")
}

// TestSlowDrawing: a browser that draws slowly draws rarely, so that time is left for all else.
func TestSlowDrawing(t *testing.T) {
	f := newFake(t, newWorld(t, 11), 100)
	p := open(t, f, "")
	p.WaitFor("flows", rows+" > 2")
	p.Run(chromedp.Evaluate(`(async () => {
		const { stream } = await import('/js/stream.js');
		window.pauses = [];
		let end, took;
		stream.listen(() => {
			const begin = performance.now();
			if (end) pauses.push([took, begin - end]);
			do { end = performance.now(); } while (end - begin < 100);
			took = end - stream.drawn;
		});
	})()`, nil))
	p.WaitFor("some drawings", "pauses.length >= 5")
	// The first may have been under way.
	for _, pause := range webtest.Value[[][2]float64](p.Page, "pauses.slice(1)") {
		// On a busy machine a drawing may take so long that the pause is not as much longer.
		if took, rest := pause[0], pause[1]; took < 100 || rest < min(3*took, 2000-took)-1 {
			t.Errorf("after %.0f ms of drawing a pause of %.0f ms", took, rest)
		}
	}
}

// TestMemoryIsBounded gives the page's parts more than they keep.
func TestMemoryIsBounded(t *testing.T) {
	f := newFake(t, newWorld(t, 15), 20)
	p := open(t, f, "")
	p.WaitFor("flows", rows+" > 2")
	type sizes struct{ Rows, Seen, Dots, Suggestions int }
	s := webtest.Await[sizes](p.Page, `(async () => {
		const { stream } = await import('/js/stream.js');
		const { Dots } = await import('/js/dots.js');
		const { Leg } = await import('/js/leg.js');
		const { Seen } = await import('/js/filter.js');
		const [record] = stream.rows.values(), dots = new Dots(), suggestions = new Seen();
		for (let i = 0; i < 50000; i++) stream.take(JSON.stringify({ ...record, id: 'flow-' + i }));
		for (let i = 0; i < 1000; i++) {
			dots.add([new Leg({ x: 0, y: 0 }, { x: i, y: 9 })], 'dnat');
			suggestions.record({ ...record, source: '10.0.' + (i >> 8) + '.' + (i & 255) + ':1' });
		}
		const sizes = { Rows: stream.rows.size, Seen: stream.seen[0].size + stream.seen[1].size, Dots: dots.element.childElementCount, Suggestions: suggestions.values.source.size };
		dots.clear();
		return sizes;
	})()`)
	if want := (sizes{400, 40000, 90, 300}); s.Rows > want.Rows || s.Seen > want.Seen || s.Dots > want.Dots || s.Suggestions > want.Suggestions {
		t.Errorf("it keeps %+v, want at most %+v", s, want)
	}
	if s.Rows < 200 || s.Dots == 0 || s.Suggestions == 0 {
		t.Errorf("it keeps %+v: the test gives it nothing", s)
	}
}

// watchNotice keeps all texts of the page's notice.
const watchNotice = `(() => {
	window.notices = [];
	new MutationObserver(() => notices.push(document.getElementById('notice').textContent)).observe(document.getElementById('notice'), { childList: true, characterData: true, subtree: true });
})()`

// TestLate: a page is behind when records take long to get to it, and not when one comes
// about a flow that began long ago.
func TestLate(t *testing.T) {
	f := newFake(t, newWorld(t, 16), 0)
	p := open(t, f, "#/flows?all=true")
	p.WaitFor("the stream", "document.querySelector('.flows .empty').textContent.startsWith('No flows yet')")
	// The page's clock stands still: what takes its time here is not late.
	p.Run(chromedp.Evaluate(watchNotice+"; (now => { performance.now = () => now })(performance.now())", nil))
	// send gives all readers a record about a flow.
	send := func(id, node string, began, emitted time.Time, e flow.Event) {
		f.mu.Lock()
		defer f.mu.Unlock()
		r, _ := f.world.next()
		live := *r
		live.Node = node
		f.world.live(&live, id, began)
		live.Emitted, live.Event = &emitted, e
		if e == flow.Gone {
			live.Life.State, live.Life.Over, live.Life.CountedAt = flow.Expired, true, &began
		}
		for reader := range f.readers {
			reader.items <- observe.Item{Record: &live}
		}
	}
	shows := func(id string) {
		t.Helper()
		p.WaitFor("flow "+id, list+fmt.Sprintf(".includes(%q)", id))
	}
	now := time.Now()
	send("present", "node-a", now, now, flow.Decided)
	shows("present")
	// The end of a flow that the page never saw, two minutes after its decision, alone in its drawing.
	send("ended", "node-a", now.Add(-2*time.Minute), now, flow.Gone)
	shows("ended")
	// A node whose clock is behind that of another one.
	send("skewed", "node-b", now.Add(-time.Minute), now.Add(-time.Minute), flow.Decided)
	shows("skewed")
	if all := webtest.Value[[]string](p.Page, "notices.filter(x => x.includes('behind'))"); len(all) > 0 {
		t.Errorf("a page that is not behind shows %q", all)
	}
	// What was emitted half a minute ago, though it is about an event of this moment.
	send("late", "node-a", now, now.Add(-30*time.Second), flow.Decided)
	p.WaitFor("it shows that it is behind", "notices.some(x => x.startsWith('This page is 30 s behind'))")
}

// TestServicesOnly: flows for no service are left out and counted, and one switch shows them.
func TestServicesOnly(t *testing.T) {
	w := newWorld(t, 17)
	f := newFake(t, w, 60)
	p := open(t, f, "")
	p.WaitFor("flows", rows+" > 20")
	p.WaitFor("how many are left out", `/^[\d,]+ flows for no service left out$/.test(document.getElementById('left-out').textContent)`)
	other := "[...document.querySelectorAll('#rows tr')].filter(tr => tr.querySelector('.to').textContent.includes('93.184.216.34')).length"
	if n := webtest.Value[int](p.Page, other); n > 0 {
		t.Errorf("%d rows are of flows for no service", n)
	}
	pressed := "document.getElementById('services-only').getAttribute('aria-pressed')"
	if !webtest.Value[bool](p.Page, pressed+" === 'true'") {
		t.Error("the switch does not show that it is on")
	}
	p.Click("#services-only")
	p.WaitFor("all flows", "location.hash === '#/flows?all=true' && "+pressed+" === 'false' && "+other+" > 0")
	if left := webtest.Value[string](p.Page, "document.getElementById('left-out').textContent"); left != "" {
		t.Errorf("of all flows, it shows: %s", left)
	}
	if chips := webtest.Value[int](p.Page, "document.querySelectorAll('.chip').length"); chips != 0 {
		t.Errorf("%d filters are shown", chips)
	}
	p.Click("#services-only")
	p.WaitFor("services only", "location.hash === '#/flows' && "+pressed+" === 'true' && "+rows+" > 20 && "+other+" === 0")
	// A filter that names them shows them.
	p.GoTo("#/flows?verdict=accept")
	p.WaitFor("flows for no service", rows+" > 2 && "+other+" === "+rows+" && document.getElementById('services-only').disabled")
	// They have states as all flows have.
	p.WaitFor("their states", "[...document.querySelectorAll('#rows .pill')].every(x => x.textContent === 'decided')")
}

// TestOneRowForEachConnection: what the endpoint's node decides is in the row of the flow, and on its page;
// a row of its own that came before goes.
func TestOneRowForEachConnection(t *testing.T) {
	f := newFake(t, newWorld(t, 19), 0)
	p := open(t, f, "#/flows?all=true")
	p.WaitFor("the stream", "document.querySelector('.flows .empty').textContent.startsWith('No flows yet')")
	f.mu.Lock()
	var r *flow.Record
	for r == nil || r.Verdict != "dnat" || r.EndpointNode == r.Node {
		r, _ = f.world.next()
	}
	f.world.live(r, "a", time.Now())
	o := other(r)
	f.flows[r.ID] = r
	f.order = append(f.order, r.ID)
	f.publish(o, flow.Decided)
	f.mu.Unlock()
	p.WaitFor("the row of the endpoint's node", list+".join(' ') === 'a-passed'")
	f.mu.Lock()
	f.publish(r, flow.Decided)
	f.join(r)
	f.mu.Unlock()
	p.WaitFor("one row", list+".join(' ') === 'a'")
	const node = "document.querySelector('#rows .node')"
	p.WaitFor("both nodes", fmt.Sprintf("%s.textContent === %q", node, r.Node+"→ "+r.EndpointNode))
	if title := webtest.Value[string](p.Page, node+".querySelector('.passed .value').title"); title != r.EndpointNode+": passes" {
		t.Errorf("the second node's title is %q", title)
	}
	// Another record of either changes nothing of it.
	f.mu.Lock()
	f.publish(o, flow.Decided)
	f.publish(r, flow.Answered)
	f.mu.Unlock()
	p.WaitFor("the next event", "document.querySelector('#rows .pill').textContent === 'decided'")
	p.WaitFor("still one row with both nodes", list+".join(' ') === 'a' && "+fmt.Sprintf("%s.textContent === %q", node, r.Node+"→ "+r.EndpointNode))
	p.GoTo("#/flows/a")
	p.WaitFor("each node's decision", fmt.Sprintf("document.querySelector('.picture .hop a[href$=passed]').textContent === %q && document.querySelector('.picture .hop:not(.own)').textContent.includes('Passes unchanged')", r.EndpointNode))
}

// TestPortsAreVisible: on a phone, a laptop and a projector, each name has its port, and names
// are not cut where there is room.
func TestPortsAreVisible(t *testing.T) {
	f := newFake(t, newWorld(t, 18), 0)
	kind := map[string]string{"node-a": "kind-control-plane", "node-b": "kind-worker", "node-c": "kind-worker2"}
	f.mu.Lock()
	for i := range 60 {
		r, _ := f.world.next()
		live := *r
		f.world.live(&live, fmt.Sprint("flow-", i), time.Now())
		live.Node = kind[live.Node]
		f.known(&live, nil, time.Now())
	}
	f.mu.Unlock()
	p := open(t, f, "")
	for _, screen := range []struct {
		name          string
		width, height int64
		size          string
		whole         bool // nothing is cut
	}{
		{"phone", 390, 844, "normal", false},
		{"tablet", 900, 1100, "normal", false},
		{"laptop", 1366, 768, "normal", true},
		{"projector", 1920, 1080, "large", true},
	} {
		t.Run(screen.name, func(t *testing.T) {
			p.Run(emulation.SetDeviceMetricsOverride(screen.width, screen.height, 1, screen.width < 500),
				chromedp.Evaluate(fmt.Sprintf("localStorage.setItem('nfqproxy.size', %q)", screen.size), nil), chromedp.Reload())
			p.WaitFor("flows", rows+" > 40")
			p.Press("p")
			// A port is a part of its cell that can be seen.
			hidden := webtest.Value[[]string](p.Page, `[...document.querySelectorAll('#rows .port')].filter(x => {
				const a = x.getBoundingClientRect(), b = x.closest('td').getBoundingClientRect();
				return !x.closest('tr').checkVisibility() ? false : a.width === 0 || a.right > b.right + 1 || a.bottom > b.bottom + 1 || a.left < b.left - 1;
			}).map(x => x.closest('td').className + ' ' + x.closest('td').textContent)`)
			if len(hidden) > 0 {
				t.Errorf("%d ports cannot be seen, the first: %s", len(hidden), hidden[0])
			}
			if n := webtest.Value[int](p.Page, "[...document.querySelectorAll('#rows .to .port')].filter(x => /^:[0-9]+$/.test(x.textContent)).length"); n < 40 {
				t.Errorf("%d destinations have ports, want one of each row", n)
			}
			cut := webtest.Value[[]string](p.Page, `[...document.querySelectorAll('#rows tr > :is(.source, .to, .node) .value')].filter(x => x.scrollWidth > x.clientWidth + 1 || x.closest('td').scrollWidth > x.closest('td').clientWidth + 1).map(x => x.textContent)`)
			if screen.whole && len(cut) > 0 {
				t.Errorf("%d names are cut, the first: %s", len(cut), cut[0])
			}
			if wide := webtest.Value[int64](p.Page, "document.documentElement.scrollWidth"); wide > screen.width {
				t.Errorf("the page is %d wide", wide)
			}
		})
	}
}
