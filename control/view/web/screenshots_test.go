package web_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
)

// screens are those of the screenshots.
var screens = []struct {
	name, theme, size string
	width, height     int64
	scale             float64
}{
	{"dark", "dark", "normal", 1440, 900, 1},
	{"light", "light", "normal", 1440, 900, 1},
	{"tablet", "light", "normal", 1024, 768, 1},
	{"tablet-dark", "dark", "normal", 1024, 768, 1},
	{"phone", "dark", "normal", 390, 844, 2},
	{"phone-light", "light", "normal", 390, 844, 2},
	{"projector", "light", "large", 1920, 1080, 1},
}

// TestScreenshots makes the screenshots, in the directory of -web.screenshots.
func TestScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("no -web.screenshots")
	}
	for _, screen := range screens {
		t.Run(screen.name, func(t *testing.T) {
			f := newFake(t, newWorld(t, 7), 12)
			now := time.Now()
			at := func(ms int) time.Time { return now.Add(time.Duration(ms) * time.Millisecond) }
			f.changes = map[string][]observe.Change{"shop/cart:http": {
				{Node: "node-a", Time: at(-20 * 60_000), Generation: 41, Endpoints: []observe.EndpointChange{{Endpoint: "10.244.2.11:8080", Pod: "shop/cart-5b8f-l2m6x", Change: observe.EndpointAdded, Excluded: "not-ready"}}},
				{Node: "node-a", Time: at(8000), Received: new(at(8000)), InForce: new(at(8004)), FirstFlow: &observe.ChangeFlow{ID: "node-a-7", Time: at(8190)}, Generation: 42, Endpoints: []observe.EndpointChange{{Endpoint: "10.244.2.11:8080", Pod: "shop/cart-5b8f-l2m6x", Change: observe.EndpointUsable}}},
			}}
			p := open(t, f, "#token="+token)
			p.Run(emulation.SetDeviceMetricsOverride(screen.width, screen.height, screen.scale, screen.width < 500),
				chromedp.Evaluate(fmt.Sprintf("localStorage.setItem('nfqproxy.theme', %q); localStorage.setItem('nfqproxy.size', %q)", screen.theme, screen.size), nil), chromedp.Reload())
			p.WaitFor("the overview", "document.querySelectorAll('.finding').length > 0 && document.querySelectorAll('.busy li').length > 3 && document.querySelectorAll('.node-list > li').length === 3")
			p.WaitFor("rates", "/[1-9]/.test(document.querySelector('.overview .number').textContent)")
			shoot := func(view string) { p.Shoot(filepath.Join(*screenshots, view+"-"+screen.name+".png")) }
			shoot("overview")
			p.GoTo("#/flows")
			p.WaitFor("flows", "document.querySelectorAll('#rows tr').length > 40")
			p.WaitFor("one that was refused", "[...document.querySelectorAll('#rows tr')].slice(2, 14).some(tr => /dropped|rejected|refused/.test(tr.querySelector('.pill').textContent))")
			shoot("flows")
			id := webtest.Value[string](p.Page, "[...document.querySelectorAll('#rows tr')].filter(tr => tr.textContent.includes('frontend') && tr.querySelector('.address').textContent.startsWith('192.') && tr.querySelector('.pill').textContent === 'closed')[0]?.dataset.id ?? document.querySelector('#rows tr').dataset.id")
			p.GoTo("#/flows/" + id)
			p.WaitFor("a picture", "!!document.querySelector('.picture svg')")
			shoot("flow")
			translated := f.onNode(t, "node-a", "tcp", "192.0.2.10:46642", "172.20.0.2:30080", "node-c", "172.20.0.2:46642")
			f.put(f.passes("node-c", "node-c-00000009", "TCP", "172.20.0.2:46642", translated.Endpoint, 0), translated)
			p.GoTo("#/flows/node-c-00000009")
			p.WaitFor("both nodes", "document.querySelectorAll('.picture .hop').length === 2")
			shoot("path")
			p.GoTo("#/services")
			p.WaitFor("rates", "[...document.querySelectorAll('#services .rate')].some(x => /[1-9]/.test(x.textContent))")
			shoot("services")
			p.GoTo("#/services/shop/cart")
			p.WaitFor("bars", "document.querySelectorAll('.pair').length > 2 && /L.*L.*L/.test(document.querySelector('.timeline-box .line path.line').getAttribute('d'))")
			shoot("service")
			p.GoTo("#/map")
			p.WaitFor("connections", "document.querySelectorAll('.dot').length > 6 || document.querySelectorAll('.map-list .connection').length > 15")
			shoot("map")
			p.GoTo("#/lab")
			p.WaitFor("the lab", "document.querySelectorAll('#lab-pods > li').length > 5 && document.querySelectorAll('#field-kind option').length === 9")
			openForm(p, "Add a fault")
			p.Run(chromedp.Evaluate("(k => { k.value = 'firewall'; k.dispatchEvent(new Event('change')) })(document.getElementById('field-kind'))", nil))
			p.Enter("#field-to", "10.244.2.11")
			p.Enter("#field-port", "8080")
			submitInLab(p, "Add a fault")
			p.WaitFor("the fault", "!!"+inLab("faults", "1"))
			pressInLab(p, "nodes", "node-b", "Drain")
			p.WaitFor("a drained node", inLab("nodes", "node-b")+".textContent.includes('no new pods')")
			pressInLab(p, "pods", "shop/cart-5b8f-l2m6x", "Make unready")
			wantResult(p, "changed", "pod shop/cart-5b8f-l2m6x is not ready")
			p.Run(chromedp.Evaluate("scrollTo(0, 0); document.activeElement.blur()", nil))
			shoot("lab")
			p.GoTo("#/why?from=198.51.100.23&to=node-c:30443")
			p.WaitFor("an answer", "!!document.querySelector('.inquiry .picture svg')")
			shoot("why")
			p.GoTo("#/hold?service=shop/cart")
			p.Click(".hold .button.primary")
			p.WaitFor("a held flow", "!!document.querySelector('.hold .picture svg')")
			p.Press("s", "s")
			p.WaitFor("two steps", "document.querySelector('.hold [role=status]').textContent.startsWith('Step 2')")
			shoot("hold")
			p.Press("r")
			p.WaitFor("it went on", "!!document.querySelector('#hold-again:not([hidden])')")
		})
	}
}

// TestLearnScreenshots makes those of a course.
func TestLearnScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("no -web.screenshots")
	}
	for _, screen := range screens {
		t.Run(screen.name, func(t *testing.T) {
			p, teacher := openCourse(t, "")
			p.Run(emulation.SetDeviceMetricsOverride(screen.width, screen.height, screen.scale, screen.width < 500),
				chromedp.Evaluate(fmt.Sprintf("localStorage.setItem('nfqproxy.theme', %q); localStorage.setItem('nfqproxy.size', %q)", screen.theme, screen.size), nil), chromedp.Reload())
			shoot := func(view string) { p.Shoot(filepath.Join(*screenshots, view+"-"+screen.name+".png")) }
			p.WaitFor("a shell", screenText+".includes('unit$')")
			shoot("learn-text")
			for _, c := range []labapi.LessonCommand{{Command: "next"}, {Command: "answer", Argument: "eth0"}, {Command: "hint"}} {
				if _, err := teacher.Do(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
			wantStep(p, "Step 2 of 3: Which device has the address")
			shoot("learn-question")
			for _, c := range []labapi.LessonCommand{{Command: "answer", Argument: "none"}, {Command: "hint"}, {Command: "hint"}, {Command: "solution"}} {
				if _, err := teacher.Do(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
			wantStep(p, "Step 3 of 3: But a request has an answer")
			teacher.meet(0)
			p.WaitFor("a check", "document.querySelector('.checks .pill').textContent === 'done'")
			p.Press(kb.F2, "curl -s my-nginx-service", kb.Enter)
			p.WaitFor("output", screenText+".includes('not found')")
			shoot("learn")
			p.GoTo("#/learn?projector")
			p.WaitFor("the projector view", "!!document.querySelector('.projector .checks .pill')")
			shoot("learn-projector")
			p.GoTo("#/learn")
			p.WaitFor("the course", "!!document.getElementById('learn-hint')")
			p.Press("u")
			p.WaitFor("units", "!document.getElementById('lesson-units').hidden")
			p.Run(chromedp.Evaluate("document.activeElement.blur()", nil))
			shoot("learn-units")
		})
	}
}
