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

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// wait finds a flow of the fake for which is says yes.
func (f *fake) wait(p *page, is func(*flow.Record) bool) *flow.Record {
	p.Helper()
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
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
	p.waitFor("a picture", "!!document.querySelector('.picture svg')")
	return value[string](p, "[...document.querySelectorAll('.picture text')].map(x => x.textContent).join('\\n')")
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
	p.goTo("#/flows/" + r.ID)
	texts := picture(p)
	wantTexts(t, texts, "laptop", "shop/frontend:http", r.Source, r.Destination, "node port", r.Pod, "on "+r.EndpointNode, "draw "+fmt.Sprintf("%.4f", *r.Draw),
		"original  "+r.Source+" → "+r.Destination, "reply     "+r.Endpoint+" → "+r.Life.SeenSource, "PREROUTING", "POSTROUTING", "un-SNAT: the destination")
	for i := range r.Steps {
		wantTexts(t, strings.ReplaceAll(texts, "\n", " "), r.Steps[i].Chain, r.Steps[i].Text)
	}
	if taken := value[int](p, "document.querySelectorAll('.share').length"); taken != len(r.Candidates) {
		t.Errorf("%d shares, want one for each of %d candidates", taken, len(r.Candidates))
	}
	changed := value[[]string](p, "[...document.querySelectorAll('.tuple .changed')].map(x => x.textContent)")
	if want := []string{r.Life.SeenSource, "→ " + r.Endpoint}; !slices.Equal(changed, want) {
		t.Errorf("translated to %q, want %q", changed, want)
	}
	taken := 0
	for i, c := range r.Candidates {
		if c.Endpoint == r.Endpoint {
			taken = i
		}
	}
	if !value[bool](p, fmt.Sprintf("document.querySelectorAll('.share')[%d].classList.contains('taken')", taken)) {
		t.Errorf("share %d is not the one that is taken", taken)
	}
	// The rule itself is there on demand, by keyboard.
	if rule := r.Steps[0].Rule; strings.Contains(texts, "--dst-type") {
		t.Errorf("the rule %q is shown without being asked for", rule)
	}
	p.run(chromedp.Evaluate(`document.querySelector('.rule[data-key="rule 0"]').focus()`, nil))
	p.press(kb.Enter)
	p.waitFor("the rule", "[...document.querySelectorAll('.picture text')].map(x => x.textContent).join(' ').includes('-j KUBE-NODEPORTS')")
	if !value[bool](p, `document.activeElement.dataset.key === "rule 0" && document.activeElement.getAttribute('aria-expanded') === 'true'`) {
		t.Error("the rule lost the focus")
	}
	side := value[string](p, "document.querySelector('.side').textContent")
	for _, want := range []string{"established", "closed", "waited", "written", "it came from outside", `"id": "` + r.ID} {
		if !strings.Contains(side, want) {
			t.Errorf("the side lacks %q:\n%s", want, side)
		}
	}
}

func TestPicturesOfOtherVerdicts(t *testing.T) {
	f := newFake(t, newWorld(t, 4), 60)
	p := open(t, f, "")
	for verdict, want := range map[string][]string{
		"reject": {"KUBE-SERVICES", "filter", "FORWARD", "Refused: ICMP port unreachable"},
		"drop":   {"KUBE-EXTERNAL-SERVICES", "INPUT", "Dropped"},
		"accept": {"no service has 93.184.216.34:443/TCP", "It passes untouched"},
	} {
		r := f.wait(p, func(r *flow.Record) bool { return r.Verdict == verdict })
		p.goTo("#/flows/" + r.ID)
		p.waitFor("this flow", fmt.Sprintf("document.querySelector('.detail .address').textContent === %q", r.ID))
		texts := picture(p)
		wantTexts(t, texts, want...)
		if strings.Contains(texts, "THE WAY BACK") || strings.Contains(texts, "Connection entry") {
			t.Errorf("%s: the picture has what such a flow has not:\n%s", verdict, texts)
		}
	}
	p.expectRefusals(1)
	p.goTo("#/flows/nobody")
	p.waitFor("an error", `document.querySelector('.detail .problem')?.textContent === 'flow "nobody": not known (any more)'`)
}

func TestServices(t *testing.T) {
	f := newFake(t, newWorld(t, 5), 300)
	p := open(t, f, "#/services")
	p.waitFor("services and their rates", "Number(document.querySelector('#services tr[data-service=\"shop/cart:http\"] .rate').textContent) > 10")
	p.waitFor("refused flows", "Number(document.querySelector('#services tr[data-service=\"shop/legacy\"] td:last-child').textContent) > 0")
	p.enter("input.find", "redis")
	p.waitFor("what was looked for", "document.querySelectorAll('#services tr').length === 1 && document.querySelector('#services tr').dataset.service === 'shop/redis'")
	p.goTo("#/services/shop/cart")
	p.waitFor("the fit", "/^The draws spread (as chance|more unequally than chance) would: p [=<] .*χ² = .* with 2 degrees of freedom/.test(document.querySelector('.fit-sentence')?.textContent)")
	p.waitFor("expected and observed shares", "document.querySelectorAll('.pair.expected').length === 3 && document.querySelectorAll('.pair.observed').length === 3")
	p.goTo("#/services/shop/catalog")
	p.waitFor("an endpoint that is not ready", "document.querySelector('tr.excluded .why')?.textContent === 'not ready'")
	p.goTo("#/services/shop/legacy")
	p.waitFor("a reason", "document.querySelector('.refusals')?.textContent.endsWith('no usable endpoint anywhere')")
	p.goTo("#/services/shop/nobody")
	p.waitFor("an error", "document.querySelector('.service .problem')?.textContent.startsWith('There is no service shop/nobody')")
}

func TestExplain(t *testing.T) {
	f := newFake(t, newWorld(t, 6), 5)
	p := open(t, f, "#/explain")
	p.waitFor("suggestions", "document.querySelectorAll('#destinations option').length > 5 && document.querySelectorAll('#sources option').length > 5 && document.querySelectorAll('#field-node option').length === 4")
	p.run(chromedp.SetValue("#field-node", "node-a", chromedp.ByQuery))
	p.enter("#field-source", "pod/default/shell")
	p.enter("#field-destination", "service/shop/cart:http")
	p.press(kb.Enter)
	wantTexts(t, picture(p), "default/shell", "shop/cart:http", "KUBE-SERVICES", "the destination is the ClusterIP of shop/cart:http", "it would be created")
	if hash := value[string](p, "location.hash"); !strings.Contains(hash, "source=pod%2Fdefault%2Fshell") {
		t.Errorf("the address %s does not tell the question", hash)
	}
	p.expectRefusals(1)
	p.enter("#field-destination", "service/shop/card:http")
	p.press(kb.Enter)
	p.waitFor("the error at its field", `/^destination .*shop\/card/.test(document.querySelector('[data-field=destination] .wrong:not([hidden])')?.textContent)`)
	if !value[bool](p, "document.activeElement.id === 'field-destination' && document.activeElement.getAttribute('aria-invalid') === 'true'") {
		t.Error("the field that is wrong has not got the focus")
	}
	p.enter("#field-destination", "10.96.10.3:80")
	p.press(kb.Enter)
	p.waitFor("an answer again", "document.querySelector('.answer h2').textContent.includes('shop/catalog') && !document.querySelector('.wrong:not([hidden])')")
}

func TestMap(t *testing.T) {
	f := newFake(t, newWorld(t, 8), 400)
	p := open(t, f, "#/map")
	p.waitFor("dots", "document.querySelectorAll('.dot.good').length > 5 && !!document.querySelector('.dot.bad')")
	p.waitFor("it says that it samples", "/each dot stands for \\d+/.test(document.querySelector('.map [role=status]').textContent)")
	p.click(`a.spot[data-name="shop/redis"]`)
	p.waitFor("its flows", "location.hash === '#/flows?service=shop%2Fredis'")
}

func TestHold(t *testing.T) {
	f := newFake(t, newWorld(t, 9), 40)
	p := open(t, f, "#token="+token)
	p.waitFor("the token is gone from the address", "location.hash === '#/flows' && !location.href.includes('secret')")
	p.goTo("#token=other") // handed to a page that is open already
	p.waitFor("the other token", "sessionStorage.getItem('nfqproxy.token') === 'other' && location.hash === '#/flows'")
	p.goTo("#token=" + token)
	p.waitFor("the token again", "sessionStorage.getItem('nfqproxy.token') === 'secret' && location.hash === '#/flows'")
	p.press("g", "h")
	p.waitFor("the form", "document.activeElement.id === 'field-service'")
	p.expectRefusals(1)
	p.press(kb.Enter)
	p.waitFor("no filter is an error", "document.querySelector('.wrong.all:not([hidden])')?.textContent.startsWith('which flow?')")
	p.enter("#field-service", "shop/cart")
	p.press(kb.Enter)
	p.waitFor("a held flow", "document.querySelector('.hold').dataset.state === 'holding'")
	status := func(want string) {
		t.Helper()
		p.waitFor("the status "+want, fmt.Sprintf("document.querySelector('.hold [role=status]').textContent.startsWith(%s)", quote(want)))
	}
	status("Step 0 of ")
	next := "document.querySelector('.rule.next')?.dataset.index"
	p.press("s", "s")
	status("Step 2 of ")
	p.waitFor("the rule that is about to happen", next+" === '2'")
	p.press("b")
	status("Step 1 of ")
	// Another endpoint than was drawn.
	other := value[string](p, "[...document.querySelectorAll('#hold-choose option')].find(o => !o.selected).value")
	p.run(chromedp.Evaluate(fmt.Sprintf("const c = document.getElementById('hold-choose'); c.value = %q; c.dispatchEvent(new Event('change'))", other), nil))
	p.waitFor("the steps lead to "+other, fmt.Sprintf("[...document.querySelectorAll('.picture text')].some(x => x.textContent === 'the destination becomes ' + %q)", other))
	p.press("r")
	p.waitFor("it went on", "document.querySelector('.hold').dataset.state === 'done'")
	status("It went on to the endpoint that you chose.")
	f.wait(p, func(r *flow.Record) bool { return r.Held != nil && r.Endpoint == other })

	// Without the token, nothing can be held.
	p.run(chromedp.Evaluate("sessionStorage.removeItem('nfqproxy.token')", nil))
	p.goTo("#/flows")
	p.goTo("#/hold")
	p.waitFor("it asks for the token", "!!document.querySelector('#field-token')")
}

// TestKeyboard goes through the page without a mouse.
func TestKeyboard(t *testing.T) {
	f := newFake(t, newWorld(t, 10), 30)
	p := open(t, f, "")
	p.waitFor("flows", rows+" > 10")
	p.press("j", "j")
	p.waitFor("the second row has the focus", "document.querySelectorAll('#rows tr')[1] === document.activeElement && document.getElementById('pause').getAttribute('aria-pressed') === 'true'")
	p.press("k")
	id := value[string](p, "document.activeElement.dataset.id")
	p.press(kb.Enter)
	p.waitFor("the flow", fmt.Sprintf("location.hash === '#/flows/%s' && !!document.querySelector('.picture svg')", id))
	p.press(kb.Escape)
	p.waitFor("the flows again", "location.hash === '#/flows' && "+rows+" > 10")
	for _, view := range []struct{ keys, hash string }{{"gs", "#/services"}, {"gm", "#/map"}, {"ge", "#/explain"}, {"gf", "#/flows"}} {
		p.press(strings.Split(view.keys, "")...)
		p.waitFor(view.keys, fmt.Sprintf("location.hash === %q && document.querySelector('#nav [aria-current]').getAttribute('href') === location.hash", view.hash))
		if view.keys == "ge" {
			p.waitFor("a field has the focus", "document.activeElement.id === 'field-source'")
			p.press(kb.Escape) // out of the field: letters are shortcuts again
		}
	}
	p.press("?")
	p.waitFor("help", "document.getElementById('help').open")
	p.press(kb.Escape)
	p.waitFor("help is closed", "!document.getElementById('help').open")
	theme := "getComputedStyle(document.documentElement).backgroundColor"
	before := value[string](p, theme)
	p.press("t")
	p.waitFor("other colours", fmt.Sprintf("%s !== %q", theme, before))
	after := value[string](p, theme)
	p.run(chromedp.Reload())
	p.waitFor("the choice is remembered", fmt.Sprintf("%s === %q", theme, after))
	// Whatever can be pressed can be reached and has a name.
	if nameless := value[[]string](p, `[...document.querySelectorAll('a, button, input, select')].filter(x => !x.hidden && !(x.getAttribute('aria-label') || x.textContent.trim() || x.labels?.length)).map(x => x.outerHTML)`); len(nameless) > 0 {
		t.Errorf("without a name: %s", strings.Join(nameless, "\n"))
	}
}

// TestPhone looks at all views on a narrow screen.
func TestPhone(t *testing.T) {
	f := newFake(t, newWorld(t, 14), 40)
	p := open(t, f, "#token="+token)
	p.run(emulation.SetDeviceMetricsOverride(390, 844, 1, true))
	r := f.wait(p, func(r *flow.Record) bool { return r.Draw != nil && r.Masquerade })
	for hash, there := range map[string]string{
		"#/flows":              "#rows tr",
		"#/flows/" + r.ID:      ".picture svg",
		"#/services":           "#services tr",
		"#/services/shop/cart": ".pair",
		"#/map":                ".map-picture svg",
		"#/explain?protocol=TCP&node=node-a&source=10.244.1.9&destination=10.96.10.2:80": ".explain .picture svg",
		"#/hold": "#field-service",
	} {
		p.goTo(hash)
		p.waitFor(hash, fmt.Sprintf("!!document.querySelector(%s)", quote(there)))
		if wide := value[int](p, "document.documentElement.scrollWidth"); wide > 390 {
			t.Errorf("%s is %d wide", hash, wide)
		}
		if !value[bool](p, "(r => r.bottom <= innerHeight && r.top > innerHeight - 80)(document.getElementById('nav').getBoundingClientRect())") {
			t.Errorf("%s: the navigation is not at the bottom", hash)
		}
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
	p.waitFor("the name, as it is", fmt.Sprintf("[...document.querySelectorAll('#rows .source .value')].some(x => x.textContent === %s)", quote(name)))
	r := f.wait(p, func(r *flow.Record) bool { return r.SourcePod == name })
	p.goTo("#/flows/" + r.ID)
	wantTexts(t, picture(p), name)
	p.goTo("#/map")
	p.waitFor("the name on the map", fmt.Sprintf("!!document.querySelector('a.spot[data-name=' + CSS.escape(%s) + ']')", quote(name)))
	p.goTo("#/explain")
	p.waitFor("the name as a suggestion", fmt.Sprintf("[...document.querySelectorAll('#sources option')].some(o => o.value === 'pod/' + %s)", quote(name)))
	p.goTo("#/flows?pod=" + "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
	p.waitFor("the name as a filter", "document.querySelector('.chip .of').textContent === '<img src=x onerror=alert(1)>'")
	p.goTo("#/flows/%E0%A4%A") // no name at all
	p.waitFor("the flows", "!!document.querySelector('.flows')")
	if n := value[int](p, "document.querySelectorAll('main img, main script').length"); n != 0 {
		t.Errorf("%d elements were made of names", n)
	}
}

// TestPolicyIsEnforced makes sure that a violation would be seen by these tests.
func TestPolicyIsEnforced(t *testing.T) {
	f := newFake(t, newWorld(t, 13), 1)
	p := open(t, f, "")
	p.run(chromedp.Evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.harmed = true\">')", nil))
	p.waitFor("the picture has failed", "document.querySelector('body > img').complete")
	if value[bool](p, "window.harmed === true") {
		t.Error("an inline script ran")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if all := strings.Join(p.complaints, "\n"); !strings.Contains(all, "Content Security Policy") {
		t.Errorf("the violation was not heard of: %q", all)
	}
	p.complaints = nil
}
