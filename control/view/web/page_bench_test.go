package web_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"

	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
)

// firstContent notes when a page first has what a selector finds, in ms since its load began.
const firstContent = `new MutationObserver((_, o) => {
	if (!document.querySelector(%s)) return;
	window.firstContent ??= performance.now();
	o.disconnect();
}).observe(document, { childList: true, subtree: true })`

// BenchmarkPage has 10,000 services with 10 endpoints each and 50 flows a second; an iteration is
// one second of a view. It reports the CPU time of the browser's main thread, and the time
// from the load to the first content. "All" services have had a flow, or "few", those that get
// one meanwhile. See docs/explanation/performance.md.
func BenchmarkPage(b *testing.B) {
	if !*measure {
		b.Skip("no -web.measure")
	}
	const services, rate = 10000, 50
	for _, active := range []string{"few", "all"} {
		for _, v := range []struct{ name, hash, content string }{
			{"overview", "#/overview", ".busy li"},
			{"flows", "#/flows", "#rows tr"},
			{"services", "#/services", "#services tr"},
			{"map", "#/map", ".map-picture svg"},
		} {
			b.Run(fmt.Sprintf("active=%s/%s", active, v.name), func(b *testing.B) {
				w := newWorld(b, 30)
				w.grow(services)
				f := newFake(b, w, rate)
				if active == "all" {
					f.everActive()
				}
				p := open(b, f, v.hash)
				p.Run(performance.Enable().WithTimeDomain(performance.EnableTimeDomainThreadTicks),
					chromedp.ActionFunc(func(ctx context.Context) error {
						_, err := cdppage.AddScriptToEvaluateOnNewDocument(fmt.Sprintf(firstContent, webtest.Quote(v.content))).Do(ctx)
						return err
					}), chromedp.Reload())
				p.WaitFor("content", "window.firstContent > 0")
				time.Sleep(10 * time.Second) // lists are complete, and the code is compiled
				before := metrics(p)
				b.ResetTimer()
				time.Sleep(time.Duration(b.N) * time.Second)
				b.StopTimer()
				after := metrics(p)
				for name, unit := range map[string]string{"TaskDuration": "task-ms/s", "ScriptDuration": "script-ms/s", "LayoutDuration": "layout-ms/s", "RecalcStyleDuration": "style-ms/s"} {
					b.ReportMetric((after[name]-before[name])*1000/float64(b.N), unit)
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(after["JSHeapUsedSize"]/(1<<20), "heap-MiB")
				b.ReportMetric(webtest.Value[float64](p.Page, "window.firstContent"), "first-content-ms")
			})
		}
	}
}

// metrics are those of the browser's main thread, in seconds.
func metrics(p *page) map[string]float64 {
	p.Helper()
	all := make(map[string]float64)
	p.Run(chromedp.ActionFunc(func(ctx context.Context) error {
		list, err := performance.GetMetrics().Do(ctx)
		for _, m := range list {
			all[m.Name] = m.Value
		}
		return err
	}))
	return all
}
