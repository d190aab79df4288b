package web_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/nodepath"
)

// TestModules tests modules of the page by themselves.
func TestModules(t *testing.T) {
	p := open(t, newFake(t, newWorld(t, 3), 1), "")
	for name, test := range map[string]func(*testing.T, *page){
		"times": testBetween, "events": testEventParser, "connections": testConnections, "pick": testPick, "way": testWay,
	} {
		t.Run(name, func(t *testing.T) { test(t, p) })
	}
}

// testBetween: times have digits that a Date has not.
func testBetween(t *testing.T, p *page) {
	got := webtest.Await[[]string](p.Page, `import('/js/format.js').then(({ between, seconds }) => [
		['2026-01-02T03:04:05.000000001Z', '2026-01-02T03:04:05.00012Z'], ['2026-01-02T03:04:05.9999Z', '2026-01-02T03:04:06Z'],
		['2026-01-02T03:04:05.123456789+01:00', '2026-01-02T02:04:05.123456789Z'], ['2026-01-02T03:04:05Z', '2026-01-02T03:04:04.5Z']]
		.map(([from, to]) => { const x = between(from, to); return (x < 0 ? '-' : '') + seconds(Math.abs(x)); }))`)
	if want := []string{"120 µs", "100 µs", "0 ns", "-500 ms"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// testEventParser: streams are read as browsers read them, wherever they are cut.
func testEventParser(t *testing.T, p *page) {
	got := webtest.Await[[]string](p.Page, `import('/js/events.js').then(({ Parser }) => {
		const text = ':hello\n\nevent: flow\ndata: {"a":\ndata: 1}\nid: 7\n\ndata:x\r\n\r\nid: 8\ndata\r\revent: nothing\n\nretry: 50\nretry: x\nid\ndata:  two\n\ndata: cut off';
		const read = (pieces) => {
			const events = [];
			const p = new Parser((name, data) => events.push(name + ' ' + JSON.stringify(data) + ' ' + p.id));
			for (const piece of pieces) p.feed(piece);
			return [...events, 'retry ' + p.retry].join('; ');
		};
		const cuts = [[text], [...text]];
		for (let i = 1; i < text.length; i++) cuts.push([text.slice(0, i), text.slice(i)]);
		return [...new Set(cuts.map(read))];
	})`)
	const want = `flow "{\"a\":\n1}" 7; message "x" 7; message "" 8; message " two" ; retry 50`
	if len(got) != 1 || got[0] != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// testConnections gives the counter of connections too many flows, and old ones.
func testConnections(t *testing.T, p *page) {
	type counts struct{ Flows, Calls, Selections, Sum, Seconds, Oldest, Later, Held, Left int }
	c := webtest.Await[counts](p.Page, `(async () => {
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
	})()`)
	if want := (counts{Flows: 20000, Calls: 100, Selections: 100, Sum: 20000, Seconds: 20, Later: 10, Held: 1, Left: 2}); c != want {
		t.Errorf("%+v, want %+v", c, want)
	}
}

// testPick: of many connections some are shown, those that fail first.
func testPick(t *testing.T, p *page) {
	type picked struct{ Services, Calls, Selections, Left, Again, Failing, Empty, Refusing int }
	have := webtest.Await[picked](p.Page, `(async () => {
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
	})()`)
	if have.Services > 12 || have.Calls != 28 || have.Selections != 32 || have.Left != 1200-60 || have.Again != 60 || have.Failing != 1 || have.Empty != 0 || have.Refusing != 1 {
		t.Errorf("%+v", have)
	}
}

// testWay: the page has the order of nodes of [flow.Record.Path].
func testWay(t *testing.T, p *page) {
	random := rand.New(rand.NewPCG(22, 1))
	var records []*flow.Record
	addresses := []string{"10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3"}
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	record := func() *flow.Record {
		at := time.Unix(1_700_000_000+int64(random.IntN(3)), 0)
		r := &flow.Record{Time: &at, Node: pick("a", "b", "c"), Source: pick(addresses...), Destination: pick(addresses...), Verdict: pick("accept", "accept", "dnat", "drop", "reject")}
		if r.Verdict == "dnat" {
			r.Endpoint, r.EndpointNode, r.Masquerade, r.Conntrack = pick(addresses...), pick("a", "b", "c", ""), random.IntN(2) == 0, pick("created", "created", "failed")
		}
		if random.IntN(2) == 0 {
			r.Life = &flow.Life{SeenSource: pick(append(addresses, "")...)}
		}
		if random.IntN(3) == 0 {
			r.SourcePod, r.SourceNode, r.Local = "default/pod", pick("a", "b", "c", ""), random.IntN(4) == 0
		}
		return r
	}
	for range 3000 {
		r := record()
		for range random.IntN(4) {
			r.Others = append(r.Others, record())
		}
		for i, o := range append([]*flow.Record{r}, r.Others...) {
			o.ID = fmt.Sprint(i)
		}
		records = append(records, r)
	}
	text, err := json.Marshal(records)
	if err != nil {
		t.Fatal(err)
	}
	got := webtest.Await[[]string](p.Page, `(async () => {
		const { decider, leaves, path } = await import('/js/way.js');
		return `+string(text)+`.map(r => [...path(r).map(h => h.node + (h.record?.id ?? '?')), decider(r).id, leaves(r).known, leaves(r).destination].join(' '));
	})()`)
	several := 0
	for i, r := range records {
		var want []string
		for _, hop := range nodepath.Of(r) {
			id := "?"
			if hop.Record != nil {
				id = hop.Record.ID
			}
			want = append(want, hop.Node+id)
		}
		if len(want) > 2 {
			several++
		}
		_, destination, known := nodepath.Outgoing(r)
		if want := strings.Join(append(want, nodepath.Decider(r).ID, fmt.Sprint(known), destination), " "); got[i] != want {
			b, _ := json.Marshal(r)
			t.Fatalf("the page has %s, want %s, of %s", got[i], want, b)
		}
	}
	if several < 500 {
		t.Errorf("%d ways of several nodes: the test has too few", several)
	}
}
