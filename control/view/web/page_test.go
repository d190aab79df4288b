package web_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/vocabulary"
)

// wait finds a flow of the fake for which is returns true.
func (f *fake) wait(p *page, is func(*flow.Record) bool) *flow.Record {
	p.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		f.mu.Lock()
		for _, r := range f.flows {
			if is(r) {
				f.mu.Unlock()
				return r
			}
		}
		f.mu.Unlock()
	}
	p.Fatal("no such flow")
	return nil
}

// picture gives the texts of the picture.
func picture(p *page) string {
	p.Helper()
	p.WaitFor("a picture", "!!document.querySelector('.picture svg')")
	return webtest.Value[string](p.Page, "[...document.querySelectorAll('.picture text')].map(x => x.textContent).join('\\n')")
}

func wantTexts(t *testing.T, have string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(have, w) {
			t.Errorf("the picture lacks %q:\n%s", w, have)
		}
	}
}

func TestPictureOfTranslatedFlow(t *testing.T) {
	f := newFake(t, newWorld(t, 3), 40)
	p := open(t, f, "")
	r := f.wait(p, func(r *flow.Record) bool {
		return r.Entry == "node-port" && r.Draw != nil && r.Life.State == flow.Closed && r.EndpointNode != r.Node
	})
	p.GoTo("#/flows/" + r.ID)
	texts := picture(p)
	wantTexts(t, texts, "laptop", "shop/frontend:http", r.Source, r.Destination, "node port", r.Pod, "on "+r.EndpointNode, "draw "+fmt.Sprintf("%.4f", *r.Draw),
		"original  "+r.Source+" → "+r.Destination, "reply     "+r.Endpoint+" → "+r.Life.SeenSource, "PREROUTING", "POSTROUTING", "un-SNAT: the destination")
	for i := range r.Steps {
		wantTexts(t, strings.ReplaceAll(texts, "\n", " "), r.Steps[i].Chain, r.Steps[i].Text)
	}
	if taken := webtest.Value[int](p.Page, "document.querySelectorAll('.share').length"); taken != len(r.Candidates) {
		t.Errorf("%d shares, want one for each of %d candidates", taken, len(r.Candidates))
	}
	changed := webtest.Value[[]string](p.Page, "[...document.querySelectorAll('.tuple .changed')].map(x => x.textContent)")
	if want := []string{r.Life.SeenSource, "→ " + r.Endpoint}; !slices.Equal(changed, want) {
		t.Errorf("translated to %q, want %q", changed, want)
	}
	taken := 0
	for i, c := range r.Candidates {
		if c.Endpoint == r.Endpoint {
			taken = i
		}
	}
	if !webtest.Value[bool](p.Page, fmt.Sprintf("document.querySelectorAll('.share')[%d].classList.contains('taken')", taken)) {
		t.Errorf("share %d is not the one that is taken", taken)
	}
	// The rule itself is there on demand, by keyboard.
	if rule := r.Steps[0].Rule; strings.Contains(texts, "--dst-type") {
		t.Errorf("the rule %q is shown without a request", rule)
	}
	p.Run(chromedp.Evaluate(`document.querySelector('.rule[data-key="rule 0"]').focus()`, nil))
	p.Press(kb.Enter)
	p.WaitFor("the rule", "[...document.querySelectorAll('.picture text')].map(x => x.textContent).join(' ').includes('-j KUBE-NODEPORTS')")
	if !webtest.Value[bool](p.Page, `document.activeElement.dataset.key === "rule 0" && document.activeElement.getAttribute('aria-expanded') === 'true'`) {
		t.Error("the rule lost the focus")
	}
	side := webtest.Value[string](p.Page, "document.querySelector('.side').textContent")
	for _, want := range []string{"established", "closed", "waited", "written", "external traffic", `"id": "` + r.ID} {
		if !strings.Contains(side, want) {
			t.Errorf("the side lacks %q:\n%s", want, side)
		}
	}
}

func TestPicturesOfOtherVerdicts(t *testing.T) {
	f := newFake(t, newWorld(t, 4), 60)
	p := open(t, f, "")
	for verdict, want := range map[string][]string{
		"reject": {"KUBE-SERVICES", "filter", "FORWARD", "Rejected: ICMP port unreachable"},
		"drop":   {"KUBE-EXTERNAL-SERVICES", "INPUT", "Dropped"},
		"accept": {"no service has 93.184.216.34:443/TCP", "Passes unchanged"},
	} {
		r := f.wait(p, func(r *flow.Record) bool { return r.Verdict == verdict })
		p.GoTo("#/flows/" + r.ID)
		p.WaitFor("this flow", fmt.Sprintf("document.querySelector('.detail .address').textContent === %q", r.ID))
		texts := picture(p)
		wantTexts(t, texts, want...)
		if strings.Contains(texts, "REPLY PATH") || strings.Contains(texts, "Conntrack entry") {
			t.Errorf("%s: the picture has what such a flow has not:\n%s", verdict, texts)
		}
	}
	p.ExpectRefusals(1)
	p.GoTo("#/flows/nobody")
	p.WaitFor("an error", `document.querySelector('.detail .problem')?.textContent === 'flow "nobody": not known (any more)'`)
}

func TestServices(t *testing.T) {
	f := newFake(t, newWorld(t, 5), 300)
	p := open(t, f, "#/services")
	p.WaitFor("services and their rates", "Number(document.querySelector('#services tr[data-service=\"shop/cart:http\"] .rate').textContent) > 10")
	p.WaitFor("refused flows", "Number(document.querySelector('#services tr[data-service=\"shop/legacy\"] td:last-child').textContent) > 0")
	p.Enter("input.find", "redis")
	p.WaitFor("what was looked for", "document.querySelectorAll('#services tr').length === 1 && document.querySelector('#services tr').dataset.service === 'shop/redis'")
	p.Click("#services .fit")
	p.WaitFor("the row leads to its service", "location.hash === '#/services/shop/redis'")
	p.GoTo("#/services/shop/cart")
	p.WaitFor("the fit", "/^Distribution over the endpoints: (as|less even than) expected from random selection: p [=<] .*χ² = .* with 2 degrees of freedom/.test(document.querySelector('.fit-sentence')?.textContent)")
	p.WaitFor("expected and observed shares", "document.querySelectorAll('.pair.expected').length === 3 && document.querySelectorAll('.pair.observed').length === 3")
	p.WaitFor("its history", "/L/.test(document.querySelector('.timeline-box .line path.line')?.getAttribute('d')) && document.querySelector('.timeline-box').textContent.includes('Its endpoints last changed ')")
	p.GoTo("#/services/shop/catalog")
	p.WaitFor("an endpoint that is not ready", "document.querySelector('tr.excluded .why')?.textContent === 'not ready'")
	p.GoTo("#/services/shop/legacy")
	p.WaitFor("a reason", "document.querySelector('.refusals')?.textContent.endsWith('no usable endpoint in the cluster')")
	p.WaitFor("what is wrong with it", "document.querySelector('.service .finding')?.dataset.code === 'NFQ011'")
	p.WaitFor("a question about it", "document.querySelector('.service .headline a[href^=\"#/why\"]')?.hash.endsWith('to=legacy.shop')")
	p.GoTo("#/services/shop/nobody")
	p.WaitFor("an error", "document.querySelector('.service .problem')?.textContent.startsWith('Service shop/nobody not found')")
}

// TestChangesOfAService: what the table changed is on the time line and in a list, and its objects are
// to be seen.
func TestChangesOfAService(t *testing.T) {
	f := newFake(t, newWorld(t, 20), 30)
	now := time.Now()
	changes := []observe.Change{
		{Time: now.Add(-time.Hour), Generation: 2, Created: true, Settings: true},
		{Time: now.Add(-time.Minute), Generation: 3, Endpoints: []observe.EndpointChange{
			{Endpoint: "10.0.0.1:80", Pod: "shop/cart-1", Change: observe.EndpointAdded, Excluded: "not-ready"}, {Endpoint: "10.0.0.2:80", Change: observe.EndpointRemoved},
		}, More: 1},
	}
	f.setChanges("shop/cart:http", changes)
	p := open(t, f, "#/services/shop/cart")
	texts := []string{
		"shop/cart-1 added, without flows: " + exclusion("not-ready") + "; 10.0.0.2:80 removed; 1 more endpoint changed",
		"service created; settings changed",
	}
	listed := func() string {
		return `[...document.querySelectorAll('.changes li span')].map(x => x.textContent).join('|') === ` + webtest.Quote(strings.Join(texts, "|"))
	}
	p.WaitFor("the changes, the newest first", listed())
	// The time line begins when the page is opened.
	f.setChanges("shop/cart:http", append(changes, observe.Change{Time: time.Now(), Generation: 4, Endpoints: []observe.EndpointChange{
		{Endpoint: "10.0.0.1:80", Pod: "shop/cart-1", Change: observe.EndpointUsable}, {Endpoint: "10.0.0.3:80", Pod: "shop/cart-3", Change: observe.EndpointExcluded, Excluded: "terminating"},
	}}))
	texts = append([]string{"shop/cart-1 receives flows again; shop/cart-3 receives no new flows: " + exclusion("terminating")}, texts...)
	p.WaitFor("the change after that", listed())
	at := func(ms int) time.Time { return now.Add(time.Duration(ms) * time.Millisecond) }
	received, inForce, two := at(0), at(30), uint64(2)
	f.setChanges("shop/cart:http", []observe.Change{{
		Node: "node-a", Time: at(1), Generation: 5, Received: &received, InForce: &inForce, FirstFlow: &observe.ChangeFlow{ID: "a-7", Time: at(250), Verdict: "dnat"},
		Endpoints: []observe.EndpointChange{{Endpoint: "10.0.0.3:80", Pod: "shop/cart-3", Change: observe.EndpointRemoved, LastFlow: &observe.ChangeFlow{ID: "a-6", Time: at(-20)}, Open: &two, Rules: &inForce},
			{Endpoint: "10.0.0.4:80", Change: observe.EndpointAdded, FirstFlow: &observe.ChangeFlow{ID: "a-8", Time: at(300)}},
			{Endpoint: "10.0.0.5:80", Change: observe.EndpointAdded, RulesAwaited: true}, {Endpoint: "10.0.0.6:80", Change: observe.EndpointRemoved, RulesAwaited: true}},
	}})
	p.WaitFor("how long it took", `document.querySelector('.changes .progress')?.textContent === 'node-a: in force after 30 ms, first flow after 250 ms, rules without shop/cart-3 after 30 ms, last flow to shop/cart-3 20 ms before, 2 connections to it still open, first flow to 10.0.0.4:80 after 300 ms, the rules do not lead to 10.0.0.5:80 yet, the rules still lead to 10.0.0.6:80'
		&& document.querySelector('.changes .progress a').getAttribute('href') === '#/flows/a-7'`)
	f.setChanges("shop/cart:http", append(changes, observe.Change{Time: time.Now(), Generation: 4, Settings: true}))
	p.WaitFor("a mark on the time line, and none for what was before", `(document.querySelector('.timeline-box .marks').getAttribute('d').match(/M/g) ?? []).length === 1`)
	p.Click(".yaml summary")
	p.WaitFor("the objects", `/kind: Service\n[^]*name: cart[^]*---\n[^]*kind: EndpointSlice/.test(document.querySelector('.yaml pre').textContent)`)
	p.ExpectRefusals(1)
	p.GoTo("#/services/shop/none")
	p.Click(".yaml summary")
	p.WaitFor("no such object", `document.querySelector('.yaml pre').textContent === 'Service shop/none not found'`)
}

// exclusion is the text of a reason.
func exclusion(code string) string {
	for _, w := range vocabulary.Words().Exclusions {
		if w.Code == code {
			return w.Text
		}
	}
	return ""
}

// TestNoFlows: where there was no flow yet, the page shows how to make one, and which shares to expect.
func TestNoFlows(t *testing.T) {
	f := newFake(t, newWorld(t, 17), 0)
	p := open(t, f, "")
	next := "document.querySelector('.empty code, .busiest code')?.textContent.startsWith('nfqproxy lab exec --lab shop ')"
	p.WaitFor("the next step", next+" && document.querySelector('.empty code').textContent.endsWith(':80/')")
	p.GoTo("#/overview")
	p.WaitFor("the next step", next)
	p.GoTo("#/services/shop/cart")
	p.WaitFor("expected shares", "document.querySelectorAll('.pair.expected').length === 3 && document.querySelectorAll('.pair.observed').length === 0 && document.querySelector('.pair.expected').textContent === '33%'")
}

func TestExplain(t *testing.T) {
	f := newFake(t, newWorld(t, 6), 5)
	p := open(t, f, "#/explain")
	p.WaitFor("suggestions", "document.querySelectorAll('#destinations option').length > 5 && document.querySelectorAll('#sources option').length > 5 && document.querySelectorAll('#field-node option').length === 4")
	p.Run(chromedp.SetValue("#field-node", "node-a", chromedp.ByQuery))
	p.Enter("#field-source", "pod/default/shell")
	p.Enter("#field-destination", "service/shop/cart:http")
	p.Press(kb.Enter)
	wantTexts(t, picture(p), "default/shell", "shop/cart:http", "KUBE-SERVICES", "the destination is the ClusterIP of shop/cart:http", "would be created")
	if hash := webtest.Value[string](p.Page, "location.hash"); !strings.Contains(hash, "source=pod%2Fdefault%2Fshell") {
		t.Errorf("the address %s does not hold the question", hash)
	}
	p.ExpectRefusals(1)
	p.Enter("#field-destination", "service/shop/card:http")
	p.Press(kb.Enter)
	p.WaitFor("the error at its field", `/^destination .*shop\/card/.test(document.querySelector('[data-field=destination] .wrong:not([hidden])')?.textContent)`)
	if !webtest.Value[bool](p.Page, "document.activeElement.id === 'field-destination' && document.activeElement.getAttribute('aria-invalid') === 'true'") {
		t.Error("the field that is wrong has not got the focus")
	}
	p.Enter("#field-destination", "10.96.10.3:80")
	p.Press(kb.Enter)
	p.WaitFor("an answer again", "document.querySelector('.answer h2').textContent.includes('shop/catalog') && !document.querySelector('.wrong:not([hidden])')")
}

func TestOverview(t *testing.T) {
	f := newFake(t, newWorld(t, 15), 60)
	p := open(t, f, "#/overview")
	p.WaitFor("rates", "Number(document.querySelector('.overview .number').textContent) > 10")
	p.WaitFor("the busiest services", "document.querySelectorAll('.busy li').length === 6 && [...document.querySelectorAll('.busy .name')].some(x => x.textContent === 'shop/cart:http')")
	p.WaitFor("the nodes", "document.querySelectorAll('.node-list > li').length === 3 && document.querySelector('.node-list .problems').textContent === 'the worker of queue 101 makes no progress'")
	p.WaitFor("the count of findings", "document.querySelector('.wrong-now [role=status]').textContent === '1 error, 1 note'")
	p.WaitFor("one finding", "document.querySelectorAll('.finding').length === 1 && document.querySelector('.finding').dataset.code === 'NFQ011'")
	p.Click(".findings > .button")
	p.WaitFor("all findings", "document.querySelectorAll('.finding').length === 2")
	p.Click(".finding summary")
	p.WaitFor("its example", "document.querySelector('.finding details').open && document.querySelector('.finding dl').textContent.includes('is rejected')")
	p.Click(".finding .button")
	p.WaitFor("the question", "location.hash.startsWith('#/why?from=10.244.') && document.querySelector('.inquiry .answer .pill')?.textContent === 'does not work'")
	wantTexts(t, picture(p), "shop/legacy", "Rejected")
	p.WaitFor("the cause", "document.querySelector('.inquiry .finding').dataset.code === 'NFQ011'")
}

func TestWhy(t *testing.T) {
	f := newFake(t, newWorld(t, 16), 5)
	p := open(t, f, "#/why")
	p.ExpectRefusals(1)
	p.WaitFor("suggestions", "document.querySelectorAll('#destinations option').length > 5 && document.querySelectorAll('#sources option').length > 5 && document.querySelectorAll('#field-node option').length === 4 && document.querySelectorAll('.examples a').length === 2")
	p.Enter("#field-from", "default/shell")
	p.Enter("#field-to", "cart.shop")
	p.Press(kb.Enter)
	wantTexts(t, picture(p), "default/shell", "shop/cart:http", "KUBE-SERVICES", "the destination is the ClusterIP of shop/cart:http", "would be created", "REPLY PATH")
	p.WaitFor("the answer", "document.querySelector('.inquiry .answer .pill').textContent.startsWith('works, as far as ') && document.querySelectorAll('.answering li[data-tone=good]').length === 3")
	p.Click(".inquiry .request .button")
	p.WaitFor("it needs the token", "document.querySelector('.request-result').textContent.includes('needs the token')")
	p.Run(chromedp.Evaluate(fmt.Sprintf("sessionStorage.setItem('nfqproxy.token', %q)", token), nil))
	p.Click(".inquiry .request .button")
	p.WaitFor("a real request", "/^answered shop\\/cart-.* in 1 ms its flow$/.test(document.querySelector('.request-result').textContent)")
	p.WaitFor("the node", "document.querySelector('.ends').textContent.includes('node-a: the source runs there')")
	if hash := webtest.Value[string](p.Page, "location.hash"); hash != "#/why?from=default%2Fshell&to=cart.shop" {
		t.Errorf("the address %s does not hold the question", hash)
	}
	p.ExpectRefusals(1)
	p.Enter("#field-to", "card.shop")
	p.Press(kb.Enter)
	p.WaitFor("the error at its field", `document.querySelector('[data-field=to] .wrong:not([hidden])')?.textContent.startsWith('there is no Service shop/card (did you mean "shop/cart"?)')`)
	p.ExpectRefusals(1)
	p.GoTo("#/why?from=crawler&to=payment.shop:30443&node=node-c")
	p.WaitFor("an unknown source", `document.querySelector('[data-field=from] .wrong:not([hidden])')?.textContent.startsWith('there is no Pod crawler')`)
	p.GoTo("#/why?from=outside&to=node-c:30443")
	p.WaitFor("a cause", "document.querySelector('.inquiry .finding')?.dataset.code === 'NFQ030' && document.querySelector('.inquiry .finding details').open && !document.querySelector('.wrong:not([hidden])')")
	wantTexts(t, picture(p), "the traffic policy is Local", "Dropped")
}

// TestSendRequest: the form in the list of flows sends a request to a name, and shows its flow.
func TestSendRequest(t *testing.T) {
	f := newFake(t, newWorld(t, 16), 5)
	p := open(t, f, "#token="+token)
	p.GoTo("#/flows")
	p.WaitFor("the form", "document.querySelector('.send:not([hidden])') !== null && document.getElementById('send-from').value === 'default/shell'")
	p.Click(".send summary")
	p.WaitFor("services by their names", "[...document.querySelectorAll('#send-names option')].some(o => o.value === 'cart.shop:80')")
	p.Enter("#send-to", "cart.shop:80")
	p.Press(kb.Enter)
	p.WaitFor("the answer, and how the name was looked up", "/^answered shop\\/cart-.* in 1 ms its flowcart.shop.svc.cluster.local. A 10.96.0.99$/.test(document.querySelector('.send .request-result').textContent)")
	p.WaitFor("the filters of its flow", "/^#\\/flows\\?source=10.244[^&]+&destination=10.96[^&]+&all=true$/.test(location.hash)")
	p.ExpectRefusals(1)
	p.Enter("#send-to", "no such name")
	p.Press(kb.Enter)
	p.WaitFor("an error", "document.querySelector('.send .request-result .problem') !== null")
}

func TestHold(t *testing.T) {
	f := newFake(t, newWorld(t, 9), 40)
	p := open(t, f, "#token="+token)
	p.WaitFor("the token is gone from the address", "location.hash === '#/overview' && !location.href.includes('secret')")
	p.GoTo("#token=other") // handed to a page that is open already
	p.WaitFor("the other token", "sessionStorage.getItem('nfqproxy.token') === 'other' && location.hash === '#/overview'")
	p.GoTo("#token=" + token)
	p.WaitFor("the token again", "sessionStorage.getItem('nfqproxy.token') === 'secret' && location.hash === '#/overview'")
	p.Press("g", "h")
	p.WaitFor("the form", "document.activeElement.id === 'field-service'")
	p.ExpectRefusals(1)
	p.Press(kb.Enter)
	p.WaitFor("no filter is an error", "document.querySelector('.wrong.all:not([hidden])')?.textContent.startsWith('which flow?')")
	p.Enter("#field-service", "shop/nobody")
	p.Press(kb.Enter)
	p.WaitFor("no such service is an error", "[...document.querySelectorAll('.hold .wrong')].some((x) => x.checkVisibility() && x.textContent === 'There is no service shop/nobody.')")
	p.Enter("#field-service", "shop/cart")
	p.Press(kb.Enter)
	p.WaitFor("a held flow", "document.querySelector('.hold').dataset.state === 'holding'")
	status := func(want string) {
		t.Helper()
		p.WaitFor("the status "+want, fmt.Sprintf("document.querySelector('.hold [role=status]').textContent.startsWith(%s)", webtest.Quote(want)))
	}
	status("Step 0 of ")
	p.WaitFor("a button that sends a request", "document.querySelector('.sender .request .button')?.textContent === 'Send a request to shop/cart' && document.querySelectorAll('.sender option').length > 5")
	next := "document.querySelector('.rule.next')?.dataset.index"
	p.Press("s", "s")
	status("Step 2 of ")
	p.WaitFor("the rule that is about to happen", next+" === '2'")
	p.Press("b")
	status("Step 1 of ")
	// Another endpoint than was drawn.
	if name := webtest.Value[string](p.Page, "document.getElementById('hold-choose').selectedOptions[0].textContent"); !strings.HasPrefix(name, "shop/") {
		t.Errorf("the endpoint that was drawn is called %s, want its pod", name)
	}
	other := webtest.Value[string](p.Page, "[...document.querySelectorAll('#hold-choose option')].find(o => !o.selected).value")
	p.Run(chromedp.Evaluate(fmt.Sprintf("const c = document.getElementById('hold-choose'); c.value = %q; c.dispatchEvent(new Event('change'))", other), nil))
	p.WaitFor("the steps lead to "+other, fmt.Sprintf("[...document.querySelectorAll('.picture text')].some(x => x.textContent === 'the destination becomes ' + %q)", other))
	p.Press("r")
	p.WaitFor("it went on", "document.querySelector('.hold').dataset.state === 'done'")
	status("The flow was released to the chosen endpoint.")
	p.WaitFor("the heading says what happened", "/^\\S+ → shop\\/cart:http: sent to endpoint /.test(document.querySelector('.hold h1').textContent)")
	f.wait(p, func(r *flow.Record) bool { return r.Held != nil && r.Endpoint == other })

	// Without the token, nothing can be held.
	p.Run(chromedp.Evaluate("sessionStorage.removeItem('nfqproxy.token')", nil))
	p.GoTo("#/flows")
	p.GoTo("#/hold")
	p.WaitFor("it requests the token", "!!document.querySelector('#field-token')")
}

// TestKeyboard goes through the page without a mouse.
func TestKeyboard(t *testing.T) {
	f := newFake(t, newWorld(t, 10), 30)
	p := open(t, f, "")
	p.WaitFor("flows", rows+" > 10")
	p.Press("j", "j")
	p.WaitFor("the second row has the focus", "document.querySelectorAll('#rows tr')[1] === document.activeElement && document.getElementById('pause').getAttribute('aria-pressed') === 'true'")
	p.Press("k")
	id := webtest.Value[string](p.Page, "document.activeElement.dataset.id")
	p.Press(kb.Enter)
	p.WaitFor("the flow", fmt.Sprintf("location.hash === '#/flows/%s' && !!document.querySelector('.picture svg')", id))
	p.Press(kb.Escape)
	p.WaitFor("the flows again", "location.hash === '#/flows' && "+rows+" > 10")
	for _, view := range []struct{ keys, hash string }{{"go", "#/overview"}, {"gs", "#/services"}, {"gm", "#/map"}, {"gw", "#/why"}, {"gl", "#/lab"}, {"gf", "#/flows"}} {
		p.Press(strings.Split(view.keys, "")...)
		p.WaitFor(view.keys, fmt.Sprintf("location.hash === %q && document.querySelector('#nav [aria-current]').getAttribute('href') === location.hash", view.hash))
		if view.keys == "gw" {
			p.WaitFor("a field has the focus", "document.activeElement.id === 'field-from'")
			p.Press(kb.Escape) // out of the field: letters are shortcuts again
		}
	}
	p.Press("?")
	p.WaitFor("help", "document.getElementById('help').open")
	p.Press(kb.Escape)
	p.WaitFor("help is closed", "!document.getElementById('help').open")
	theme := "getComputedStyle(document.documentElement).backgroundColor"
	before := webtest.Value[string](p.Page, theme)
	p.Press("t")
	p.WaitFor("other colours", fmt.Sprintf("%s !== %q", theme, before))
	after := webtest.Value[string](p.Page, theme)
	p.Run(chromedp.Reload())
	p.WaitFor("the choice is remembered", fmt.Sprintf("%s === %q", theme, after))
	// Whatever can be pressed can be reached and has a name.
	if nameless := webtest.Value[[]string](p.Page, `[...document.querySelectorAll('a, button, input, select')].filter(x => !x.hidden && !(x.getAttribute('aria-label') || x.textContent.trim() || x.labels?.length)).map(x => x.outerHTML)`); len(nameless) > 0 {
		t.Errorf("without a name: %s", strings.Join(nameless, "\n"))
	}
}

// TestHostileNames has names that are markup.
func TestHostileNames(t *testing.T) {
	const name = `shop/<img src=x onerror=alert(1)>`
	w := newWorld(t, 12)
	for i := range w.pods {
		if w.pods[i].Name == "shop/frontend-7c9d-x2k4p" {
			w.pods[i].Name = name
			w.owner[w.pods[i].Addresses[0]], w.nodeOf[name] = name, w.pods[i].Node
		}
	}
	w.hosts[0].Name = `"><script>alert(2)</script>`
	f := newFake(t, w, 40)
	p := open(t, f, "#token="+token)
	p.GoTo("#/flows")
	p.WaitFor("the name, as it is", fmt.Sprintf("[...document.querySelectorAll('#rows .source .value')].some(x => x.textContent === %s)", webtest.Quote(name)))
	r := f.wait(p, func(r *flow.Record) bool { return r.SourcePod == name })
	p.GoTo("#/flows/" + r.ID)
	wantTexts(t, picture(p), name)
	p.GoTo("#/map")
	p.WaitFor("the name on the map", fmt.Sprintf("!!document.querySelector('a.spot[data-name=' + CSS.escape(%s) + ']')", webtest.Quote(name)))
	p.GoTo("#/explain")
	p.WaitFor("the name as a suggestion", fmt.Sprintf("[...document.querySelectorAll('#sources option')].some(o => o.value === 'pod/' + %s)", webtest.Quote(name)))
	p.GoTo("#/why")
	p.WaitFor("the name as a suggestion", fmt.Sprintf("[...document.querySelectorAll('#sources option')].some(o => o.value === %s)", webtest.Quote(name)))
	p.GoTo("#/flows?pod=" + "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
	p.WaitFor("the name as a filter", "document.querySelector('.chip .of').textContent === '<img src=x onerror=alert(1)>'")
	p.GoTo("#/flows/%E0%A4%A") // no name at all
	p.WaitFor("the overview", "!!document.querySelector('.overview')")
	if n := webtest.Value[int](p.Page, "document.querySelectorAll('main img, main script').length"); n != 0 {
		t.Errorf("%d elements were made of names", n)
	}
}

// TestPolicyIsEnforced makes sure that a violation would be seen by these tests.
func TestPolicyIsEnforced(t *testing.T) {
	f := newFake(t, newWorld(t, 13), 1)
	p := open(t, f, "")
	p.Run(chromedp.Evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.harmed = true\">')", nil))
	p.WaitFor("the picture has failed", "document.querySelector('body > img').complete")
	if webtest.Value[bool](p.Page, "window.harmed === true") {
		t.Error("an inline script ran")
	}
	if all := strings.Join(p.TakeComplaints(), "\n"); !strings.Contains(all, "Content Security Policy") {
		t.Errorf("the violation was not heard of: %q", all)
	}
}
