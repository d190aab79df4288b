package flows

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// openPage serves the web page of the lab and opens it in a browser, which is inside the
// namespaces of the test.
func openPage(c *e2etest.Cluster) *webtest.Page {
	c.T.Helper()
	c.ServeFlows()
	return webtest.Open(c.T, c.FlowAPI.Page())
}

// TestPageOfALab: what happens in a lab is to be seen in a browser, as it happens; and who
// holds a flow there leads a real connection.
func TestPageOfALab(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	p := openPage(c)
	p.WaitFor("the overview", "document.querySelectorAll('.node-list > li').length === 2 && !!document.querySelector('.findings')")
	p.GoTo("#/flows")
	p.WaitFor("the list", "!!document.querySelector('#rows')")

	var conn net.Conn
	var r *flow.Record
	var row string
	for _, node := range []string{"172.21.0.3", "172.21.0.2"} { // each node's flows are there
		conn = c.Dial("outside", "tcp", e2etest.AnyPort, node+":30080")
		answer := c.Ask(conn)
		r = c.Record("dnat", "TCP", conn.LocalAddr(), conn.RemoteAddr())
		row = fmt.Sprintf("[...document.querySelectorAll('#rows tr')].find(x => x.dataset.id === %s)", webtest.Quote(r.ID))
		p.WaitFor("the flow", row+"?.textContent.includes('default/web') && "+row+".textContent.includes("+webtest.Quote(answer.Pod)+") && "+row+".textContent.includes('outside')")
	}
	_ = conn.Close()
	awaitBothNodes(c, p)
	p.WaitFor("its end", row+".textContent.includes('closed')")

	p.GoTo("#/flows/" + r.ID)
	texts := "[...document.querySelectorAll('.picture text')].map(x => x.textContent).join('\\n')"
	for _, s := range r.Steps {
		p.WaitFor("chain "+s.Chain, fmt.Sprintf("%s.includes(%s)", texts, webtest.Quote(s.Chain)))
	}
	p.WaitFor("the rule that chose the endpoint", fmt.Sprintf("%s.includes(%s)", texts, webtest.Quote("the destination becomes "+r.Endpoint)))

	// Held, sent to another endpoint than was drawn, and released.
	p.Press("g", "h")
	p.WaitFor("the form", "document.activeElement.id === 'field-service'")
	p.Enter("#field-service", "default/web")
	p.Press("\r")
	p.WaitFor("a hold that waits", "document.querySelector('.hold').dataset.state === 'waiting'")
	answered := make(chan string, 1)
	go func() {
		conn, err := c.Host("outside").Dial(t.Context(), "tcp", e2etest.AnyPort, netip.MustParseAddrPort("172.21.0.2:30080"))
		if err != nil {
			answered <- err.Error()
			return
		}
		defer conn.Close()
		a, err := e2etest.Ask(conn)
		if err != nil {
			answered <- err.Error()
			return
		}
		answered <- a.Local
	}()
	p.WaitFor("a held flow", "document.querySelector('.hold').dataset.state === 'holding'")
	select {
	case a := <-answered:
		t.Fatalf("the connection was answered at %s while it was held", a)
	default:
	}
	p.Press("s", "s")
	other := webtest.Value[string](p, "[...document.querySelectorAll('#hold-choose option')].find(o => !o.selected).value")
	p.Run(chromedp.Evaluate(fmt.Sprintf("const c = document.getElementById('hold-choose'); c.value = %q; c.dispatchEvent(new Event('change'))", other), nil))
	p.WaitFor("the steps lead to "+other, fmt.Sprintf("%s.includes(%s)", texts, webtest.Quote("the destination becomes "+other)))
	p.Press("r")
	p.WaitFor("it went on", "document.querySelector('.hold').dataset.state === 'done'")
	if got := <-answered; got != other {
		t.Errorf("answered at %s, want the chosen %s", got, other)
	}
}

// awaitBothNodes makes connections to a node port until one goes to an endpoint on the other node, which
// sees it from the first node's address, and waits for both nodes in its row and on its page.
func awaitBothNodes(c *e2etest.Cluster, p *webtest.Page) {
	c.T.Helper()
	for {
		conn := c.Dial("outside", "tcp", e2etest.AnyPort, "172.21.0.2:30080")
		c.Ask(conn)
		r := c.Record("dnat", "TCP", conn.LocalAddr(), conn.RemoteAddr())
		_ = conn.Close()
		if r.EndpointNode == r.Node {
			continue
		}
		node := fmt.Sprintf("document.querySelector('#rows tr[data-id=%s] .node').textContent", webtest.Quote(r.ID))
		p.WaitFor("both nodes", node+" === "+webtest.Quote(r.Node+"→ "+r.EndpointNode))
		p.GoTo("#/flows/" + r.ID)
		p.WaitFor("both decisions", "document.querySelector('.picture .hop a').textContent === "+webtest.Quote(r.EndpointNode))
		p.WaitFor("the packet between the nodes", fmt.Sprintf("/^172\\.21\\.0\\.2:[0-9]+ → (.*)$/.exec(document.querySelector('.picture .segment .t-code').textContent)?.[1] === %s", webtest.Quote(r.Endpoint)))
		p.GoTo("#/flows")
		p.WaitFor("the list again", "!!document.querySelector('#rows tr')")
		return
	}
}
