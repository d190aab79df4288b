package web_test

import (
	"io"
	"log"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/view/web"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// secret is the token of the servers here.
const secret = "0123456789abcdef"

func recordOf(id string) observe.Item {
	now := time.Now()
	return observe.Item{Record: &flow.Record{
		Version: flow.Version, ID: id, Time: &now, Event: flow.Decided, Verdict: "dnat", Reason: "balanced", Protocol: "TCP", Node: "node-a",
		Source: "10.244.0.1:4000", Destination: "10.96.0.1:80", Service: "shop/web:http", Endpoint: "10.244.1.2:8080",
		Candidates: []flow.Candidate{}, Excluded: []flow.Excluded{},
		Life: &flow.Life{State: flow.Decided, Since: now},
	}}
}

// TestSignIn: at a port of a node, here over TLS, the page requests the token once, and works with
// it as it does elsewhere.
func TestSignIn(t *testing.T) {
	f := observetest.New("node-a")
	f.ExplainAnswer = *recordOf("").Record
	f.TopologyAnswer = observe.Topology{Nodes: []observe.TopologyNode{{Name: "node-a", Addresses: []netip.Addr{}, Observed: true}}, Pods: []observe.TopologyPod{}, Hosts: []observe.TopologyHost{}}
	server := httptest.NewUnstartedServer(flowapi.New(flowapi.Config{Observer: f, Page: web.Handler(), Token: secret}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes for what the tab does not request
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	p := webtest.OpenUntrusted(t, "about:blank")
	p.ExpectRefusals(100) // the browser writes each 401 to its console
	p.Run(chromedp.Navigate(server.URL + "/#/flows"))
	p.WaitFor("the page requests the token", "document.activeElement.id === 'field-sign-in-token'")
	wantAccessible(p, "the form for the token")
	if n := webtest.Value[int](p, "document.querySelectorAll('dialog[open]').length"); n != 1 {
		t.Errorf("%d forms are open, want one", n)
	}
	const problem = "document.querySelector('#sign-in .problem:not([hidden])')?.textContent"
	if shown := webtest.Value[*string](p, problem+" ?? null"); shown != nil {
		t.Errorf("before a token was given: %s", *shown)
	}
	p.Press(kb.Escape) // there is nothing to be seen without
	p.Enter("#field-sign-in-token", "not-the-token-0123")
	p.Press(kb.Enter)
	p.WaitFor("what is wrong", problem+`.startsWith("wrong token")`)
	if n := webtest.Value[int](p, "[...document.querySelectorAll('.problem')].filter(x => x.textContent.includes('token')).length"); n != 1 {
		t.Errorf("%d messages, want one", n)
	}
	if kept := webtest.Value[string](p, "sessionStorage.getItem('nfqproxy.token') ?? ''"); kept != "" {
		t.Errorf("a wrong token is kept: %s", kept)
	}
	p.Enter("#field-sign-in-token", "no token")
	p.Press(kb.Enter)
	p.WaitFor("what no token is", problem+".startsWith('A token has')")
	p.Enter("#field-sign-in-token", secret)
	p.Press(kb.Enter)
	p.WaitFor("the form has gone", "!document.querySelector('dialog[open]')")
	if !f.AwaitReaders(t.Context(), 1) {
		t.Fatal("no reader follows")
	}
	f.Publish(recordOf("f-1"))
	p.WaitFor("the flow", "document.querySelector('#rows tr')?.dataset.id === 'f-1'")
	p.WaitFor("the place", "document.getElementById('place').textContent === 'node-a'")
	if where := webtest.Value[string](p, "`${Object.values(localStorage)} ${document.cookie} ${location.href}`"); where != " "+" "+server.URL+"/#/flows" && where != "  "+server.URL+"/" {
		t.Errorf("something is kept beyond the session, or shown: %s", where)
	}
	// A stream that broke goes on, without another question.
	f.Break(nil)
	if !f.AwaitReaders(t.Context(), 1) {
		t.Fatal("no reader follows again")
	}
	f.Publish(recordOf("f-2"))
	p.WaitFor("the flow after a break", "!!document.querySelector('#rows tr[data-id=f-2]')")
	p.GoTo("#/explain?protocol=TCP&source=10.244.0.1&destination=10.96.0.1:80&node=node-a")
	explained := func(q any) bool { _, ok := q.(observe.Question); return ok }
	for end := time.Now().Add(time.Minute); !slices.ContainsFunc(f.Requests(), explained); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no explanation was requested with the token")
		}
	}
	// Another tab has to sign in for itself: the token is this session's.
	other := webtest.OpenUntrusted(t, "about:blank")
	other.ExpectRefusals(100)
	other.Run(chromedp.Navigate(server.URL + "/#/flows"))
	other.WaitFor("it requests the token", "!!document.getElementById('sign-in')?.open")
}
