package web_test

import (
	_ "embed"
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// axe is axe-core, which finds violations of WCAG in a page.
//
//go:embed testdata/axe/axe.min.js
var axe string

// wantAccessible fails the test for each violation that axe-core finds. Colours differ in contrasts only; those in a shell are
// its programs'.
func wantAccessible(p *webtest.Page, view string) {
	p.Helper()
	if !webtest.Value[bool](p, "!!window.axe") {
		p.Run(chromedp.Evaluate(axe, nil), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-reduced-motion", Value: "reduce"}}))
	}
	for theme, rules := range map[string]string{"light": "", "dark": "runOnly: ['color-contrast'],"} {
		found := webtest.Await[[]string](p, fmt.Sprintf(`(async () => {
			const before = document.documentElement.dataset.theme;
			document.documentElement.dataset.theme = %q;
			const { violations } = await axe.run({ exclude: ['.xterm-rows'] }, { %s resultTypes: ['violations'], preload: false });
			document.documentElement.dataset.theme = before;
			return violations.flatMap(({ id, nodes }) => nodes.map((n) => id + ': ' + n.html.slice(0, 200) + '\n' + n.failureSummary));
		})()`, theme, rules))
		for _, f := range found {
			p.Errorf("%s in %s colours: %s", view, theme, f)
		}
	}
}

// TestViews looks at all views on a phone and on a wide screen: they fit, and are accessible.
func TestViews(t *testing.T) {
	for _, screen := range []struct {
		name          string
		width, height int64
	}{{"phone", 390, 844}, {"wide", 1280, 800}} {
		if !netnstest.Selected(screen.name, "phone") {
			continue
		}
		t.Run(screen.name, func(t *testing.T) {
			f := newFake(t, newWorld(t, 14), 40)
			f.teacher, f.history = newFakeTeacher(), true
			p := open(t, f, "#token="+token)
			p.Run(emulation.SetDeviceMetricsOverride(screen.width, screen.height, 1, screen.width < 500))
			r := f.wait(p, func(r *flow.Record) bool { return r.Draw != nil && r.Masquerade })
			phone := screen.name == "phone"
			connection := map[bool]string{true: ".map-list .connection", false: "a.connection"}[phone]
			for _, view := range []struct {
				hash, there string
				before      func() // what is opened or pressed in the view
			}{
				{"#/overview", ".busy li", func() { p.Click(".findings > .button"); p.Click(".finding summary") }},
				{"#/flows", "#rows tr:nth-child(20)", func() { f.setRate(5) }},
				{"#/flows?since=2026-01-01T10:00:00Z&until=2026-01-01T11:00:00Z", "#rows tr:nth-child(5)", nil},
				{"#/why?from=shop%2Ffrontend-7c9d-x2k4p&to=cart.shop:80", ".inquiry .picture svg", nil},
				{"#/flows/" + r.ID, ".picture svg", nil},
				{"#/services", "#services tr", nil},
				{"#/services/shop/cart", ".pair", func() { p.Click(".yaml summary") }},
				{"#/map", connection, func() {
					if !phone {
						return
					}
					p.WaitFor("figures", "document.querySelectorAll('.map-list article').length > 5 && [...document.querySelectorAll('.map-list .connection')].every(a => /^[0-9.]+.(s|min)$/.test(a.querySelector('.amount').textContent)) && [...document.querySelectorAll('.map-list .part')].some(x => x.textContent === '100%')")
					if cut := webtest.Value[[]string](p.Page, `[...document.querySelectorAll('.map-list :is(.name, .amount, .part, .pill)')].filter(x => {
						const a = x.getBoundingClientRect(), b = x.closest('article').getBoundingClientRect();
						return x.scrollWidth > x.clientWidth + 1 && getComputedStyle(x).display !== 'inline' || a.left < b.left || a.right > b.right || a.width === 0;
					}).map(x => x.className + ' ' + x.textContent)`); len(cut) > 0 {
						t.Errorf("cut off: %s", strings.Join(cut, "; "))
					}
				}},
				{"#/explain?protocol=TCP&node=node-a&source=10.244.1.9&destination=10.96.10.2:80", ".explain .picture svg", nil},
				{"#/hold?service=shop%2Fcart", "#field-service", nil},
				{"#/hold?service=shop%2Fcart", ".hold .button.primary", func() {
					f.setRate(40)
					p.Click(".hold .button.primary")
					p.WaitFor("a held flow", "!!document.querySelector('.hold[data-state=holding] .picture svg')")
				}},
				{"#/lab", "#lab-pods li", func() {
					p.Run(chromedp.Evaluate("for (const x of document.querySelectorAll('.lab-form')) x.open = true", nil))
					pressInLab(p, "nodes", "node-a", "Drain")
					pressInLab(p, "pods", "shop/cart-5b8f-qq7dn", "Remove")
					wantResult(p, "changed", "pod shop/cart-5b8f-qq7dn is terminating, and ends in 2s")
					p.WaitFor("the result is in sight", "(r => r.top > 0 && r.bottom <= (n => n.top > 100 ? n.top : innerHeight)(document.getElementById('nav').getBoundingClientRect()))(document.querySelector('.lab-result').getBoundingClientRect())")
				}},
				{"#/learn", ".xterm-rows", func() {
					for _, c := range []labapi.LessonCommand{{Command: "next"}, {Command: "answer", Argument: "none"}, {Command: "hint"}, {Command: "solution"}} {
						if _, err := f.teacher.Do(t.Context(), c); err != nil {
							t.Fatal(err)
						}
					}
					p.WaitFor("the solution", "document.querySelector('.solution').checkVisibility()")
					p.Press("u")
					p.WaitFor("the units", "!document.getElementById('lesson-units').hidden")
				}},
				{"#/learn?projector", ".projector .prose p", nil},
				{"#/services", "#services tr", func() { p.Press("?") }},
			} {
				p.GoTo(view.hash)
				p.WaitFor(view.hash, fmt.Sprintf("!!document.querySelector(%s)", webtest.Quote(view.there)))
				if view.before != nil {
					view.before()
				}
				if wide := webtest.Value[int64](p.Page, "document.documentElement.scrollWidth"); wide > screen.width {
					t.Errorf("%s is %d wide", view.hash, wide)
				}
				wantAccessible(p.Page, view.hash)
				if !phone {
					continue
				}
				// Long names are wrapped, and not cut: a service port has its name and its address.
				if cut := webtest.Value[string](p.Page, `(() => {
					const name = document.querySelector('.services td.name');
					if (name) { name.querySelector('a').textContent = 'kube-system/kube-dns-of-the-cluster:metrics'; name.querySelector('.address').textContent = '10.96.0.10:9153 TCP'; }
					return [...document.querySelectorAll('.tablebox')].filter((x) => x.scrollWidth > x.clientWidth).map((x) => x.scrollWidth + ' of ' + x.clientWidth).join();
				})()`); cut != "" {
					t.Errorf("%s: a table is cut: %s", view.hash, cut)
				}
				if view.hash != "#/learn?projector" && !webtest.Value[bool](p.Page, "(r => r.bottom <= innerHeight && r.top > innerHeight - 80)(document.getElementById('nav').getBoundingClientRect())") {
					t.Errorf("%s: the navigation is not at the bottom", view.hash)
				}
				if names := webtest.Value[[]string](p.Page, "[...document.querySelectorAll('#nav a span')].filter(x => x.checkVisibility() && x.getBoundingClientRect().width > x.parentElement.getBoundingClientRect().width).map(x => x.textContent)"); len(names) > 0 {
					t.Errorf("%s: names of views overlap: %s", view.hash, names)
				}
				if view.hash == "#/flows" && !webtest.Value[bool](p.Page, "[...document.querySelectorAll('#rows tr')].every(tr => getComputedStyle(tr).borderBottomWidth === '1px')") {
					t.Error("a flow's card is not closed below")
				}
			}
			p.Press(kb.Escape)
		})
	}
}

// TestPalette: each colour of texts can be read on each background, in both themes. Texts of pictures are not known to axe-core.
func TestPalette(t *testing.T) {
	css, err := os.ReadFile("static/css/base.css")
	if err != nil {
		t.Fatal(err)
	}
	for _, theme := range []string{":root", `:root\[data-theme=dark\]`} {
		block := regexp.MustCompile(`(?ms)^` + theme + ` \{.*?^\}`).Find(css)
		texts, backgrounds := make(map[string]float64), make(map[string]float64) // luminance, by name
		for _, m := range regexp.MustCompile(`--([a-z-]+): #([0-9a-f]{6});`).FindAllSubmatch(block, -1) {
			name := string(m[1])
			rgb, err := strconv.ParseUint(string(m[2]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			switch light := luminance(rgb); {
			case regexp.MustCompile(`^(bg|surface|raised|inset|hover|.*-soft)$`).MatchString(name):
				backgrounds[name] = light
			case regexp.MustCompile(`^(text|muted|faint|accent|good|warn|bad|pass|wait)$`).MatchString(name):
				texts[name] = light
			}
		}
		if len(texts) != 9 || len(backgrounds) != 11 {
			t.Fatalf("%s has the texts %v and the backgrounds %v", theme, texts, backgrounds)
		}
		for text, a := range texts {
			for background, b := range backgrounds {
				if contrast := (max(a, b) + 0.05) / (min(a, b) + 0.05); contrast < 4.5 {
					t.Errorf("%s: %s on %s has a contrast of %.2f, want 4.5", theme, text, background, contrast)
				}
			}
		}
	}
}

// luminance is the relative luminance of a colour, as WCAG defines it.
func luminance(rgb uint64) (sum float64) {
	for i, weight := range []float64{0.0722, 0.7152, 0.2126} {
		c := float64(rgb>>(8*i)&0xff) / 255
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}
