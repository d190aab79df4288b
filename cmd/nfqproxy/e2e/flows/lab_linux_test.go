package flows

import (
	"flag"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

var balanceScreenshots = flag.String("balance.screenshots", "", "make screenshots of the algorithms in the web page and put them into this directory")

const deployed = `apiVersion: nfqproxy.io/v1alpha1
kind: Lab
metadata: {name: deployed}
clusterCIDRs: [10.244.0.0/16]
networks: [{cidr: 192.0.2.0/24, gateway: 192.0.2.1}]
nodes:
- {name: node-a, addresses: [192.0.2.2], podCIDRs: [10.244.0.0/24]}
- {name: node-b, addresses: [192.0.2.3], podCIDRs: [10.244.1.0/24]}
pods:
- {name: shell, node: node-a, addresses: [10.244.0.9]}
deployments:
- {name: web, replicas: 2, ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: 10.96.0.1
  selector: {app: web}
  ports: [{port: 80, targetPort: http}]
`

// labPage is the page of a lab that changes.
type labPage struct{ *webtest.Page }

// row is an expression for a row of a list of the tab Lab.
func row(list, name string) string {
	return fmt.Sprintf("[...document.querySelectorAll('#lab-%s > li')].find(x => x.dataset.name === %s)", list, webtest.Quote(name))
}

// press presses a button of a row, and waits for a line about what has changed.
func (p labPage) press(list, name, label, line string) {
	p.Helper()
	button := fmt.Sprintf("[...%s.querySelectorAll('button')].find(b => b.textContent === %s)", row(list, name), webtest.Quote(label))
	p.WaitFor(name+" has the button "+label, "!!"+button)
	p.Run(chromedp.Evaluate(button+".click()", nil))
	p.changed(line)
}

// changed waits for a line about what has changed.
func (p labPage) changed(line string) {
	p.Helper()
	p.WaitFor(line, fmt.Sprintf("document.querySelector('.lab-result .pill').textContent === 'changed' && [...document.querySelectorAll('.lab-result p')].some(x => x.textContent === %s)", webtest.Quote(line)))
}

// state waits for the state of a row.
func (p labPage) state(list, name, state string) {
	p.Helper()
	p.WaitFor(name+" is "+state, fmt.Sprintf("%s.querySelector('.pill').textContent === %s", row(list, name), webtest.Quote(state)))
}

// endpoints waits for the usable endpoints of the Service, and for those that are not.
func (p labPage) endpoints(usable, excluded int) {
	p.Helper()
	p.GoTo("#/services/default/web")
	p.WaitFor(fmt.Sprintf("%d endpoints, and %d excluded ones", usable, excluded), fmt.Sprintf("document.querySelectorAll('.endpoints-table tbody tr:not(.excluded)').length === %d && document.querySelectorAll('.endpoints-table tr.excluded').length === %d", usable, excluded))
	p.GoTo("#/lab")
	p.WaitFor("the lab", "document.querySelectorAll('#lab-nodes > li').length === 2")
}

// send sends a request with the form of the tab Flows, and waits for its result.
func (p labPage) send(to, result string) {
	p.Helper()
	p.GoTo("#/flows")
	p.WaitFor("the form", "!document.querySelector('.send').hidden && document.getElementById('send-from').value === 'default/shell'")
	p.Run(chromedp.Evaluate("document.querySelector('.send').open = true", nil))
	p.Enter("#send-to", to)
	p.Press("\r")
	p.WaitFor("the request to "+to+": "+result, fmt.Sprintf("document.querySelector('.send .request-result .pill').textContent === %s", webtest.Quote(result)))
	p.GoTo("#/lab")
	p.WaitFor("the lab", "document.querySelectorAll('#lab-nodes > li').length === 2")
}

// firewall fills in the form of faults, and sends it.
func (p labPage) firewall(host, to, port string, reject bool) {
	p.Helper()
	p.Run(chromedp.Evaluate(fmt.Sprintf(`{
		const form = document.getElementById('field-kind').closest('details')
		form.open = true
		const kind = document.getElementById('field-kind')
		kind.value = 'firewall'
		kind.dispatchEvent(new Event('change'))
		document.getElementById('field-host').value = %s
		form.querySelector('[data-field=reject] input').checked = %t
	}`, webtest.Quote(host), reject), nil))
	p.Enter("#field-to", to)
	p.Enter("#field-port", port)
	p.Press("\r")
}

// TestPageChangesALab: what is done in the tab Lab happens in the lab, and the page shows it.
func TestPageChangesALab(t *testing.T) {
	t.Parallel()
	file, err := lab.Load(e2etest.WriteFile(t, "lab.yaml", []byte(deployed)))
	if err != nil {
		t.Fatal(err)
	}
	c := e2etest.Up(t, file, lab.Options{Arguments: []string{"-v"}})
	p := labPage{openPage(c)}
	p.WaitFor("the tab", "!document.querySelector('#nav a[data-view=lab]').hidden")
	p.Press("g", "l")
	p.state("deployments", "default/web", "2 of 2 ready")

	p.press("deployments", "default/web", "+", "deployment default/web: 3 replicas, had 2")
	p.changed("pod default/web-3 is added on node-a with 10.244.0.3")
	p.state("deployments", "default/web", "3 of 3 ready")
	p.state("pods", "default/web-3", "ready")
	p.endpoints(3, 0)

	p.press("pods", "default/web-2", "Make unready", "pod default/web-2 is not ready")
	p.state("pods", "default/web-2", "not ready")
	p.state("deployments", "default/web", "2 of 3 ready")
	p.endpoints(2, 1)

	// A firewall between the client and the pod.
	const pod = "10.244.1.2:8080"
	p.send(pod, "answered")
	p.WaitFor("the kinds of faults", "document.querySelectorAll('#field-kind option').length > 0")
	const fault = "firewall on node-a: rejects packets to 10.244.1.2 port 8080/TCP"
	p.firewall("node-a", "10.244.1.2", "8080", true)
	p.changed("fault 1: " + fault)
	p.WaitFor("the fault", row("faults", "1")+".textContent.includes("+webtest.Quote(fault)+")")
	p.send(pod, "connection refused")
	p.press("faults", "1", "Remove", "fault 1 is over: "+fault)
	// Without an answer, a request of the page ends long before the kernel gives up.
	p.firewall("node-a", "10.244.1.2", "8080", false)
	const drops = "firewall on node-a: drops packets to 10.244.1.2 port 8080/TCP"
	p.changed("fault 2: " + drops)
	p.send(pod, "no connection")
	p.press("faults", "2", "Remove", "fault 2 is over: "+drops)
	p.WaitFor("no fault", "document.getElementById('lab-faults').textContent === 'No faults.'")
	p.send(pod, "answered")

	// Mistakes change nothing.
	p.ExpectRefusals(1)
	p.Run(chromedp.Evaluate(`const text = document.getElementById('field-apply')
		text.value = 'apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {prots: []}'
		text.form.requestSubmit()`, nil))
	p.WaitFor("the mistake", "document.querySelector('[data-field=apply] .wrong').textContent.startsWith('manifest:4: document 1: Service default/web: spec.prots: unknown field')")
	p.Run(chromedp.Evaluate(`document.getElementById('field-apply').value = 'apiVersion: v1\nkind: Service\nmetadata: {name: second}\nspec: {clusterIP: 10.96.0.2, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}'
		document.getElementById('field-apply').form.requestSubmit()`, nil))
	p.changed("Service default/second is added")
	p.send("10.96.0.2:80", "answered")

	// What a command changes is to be seen, too.
	if _, err := c.Change(t.Context(), lab.Change{Node: &lab.NodeEvent{Node: "node-b", Action: "down"}}); err != nil {
		t.Fatal(err)
	}
	p.state("nodes", "node-b", "no connection")
	p.press("nodes", "node-b", "Connect", "node node-b is connected")
	p.state("nodes", "node-b", "connected")
}

// TestBalancePage: the page of a service switches its algorithm, and the bars of its endpoints move.
func TestBalancePage(t *testing.T) {
	file, err := lab.Load(e2etest.WriteFile(t, "lab.yaml", []byte(deployed)))
	if err != nil {
		t.Fatal(err)
	}
	c := e2etest.Up(t, file, lab.Options{})
	request := func(n int) {
		t.Helper()
		for range n {
			c.Must(c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.1:80").Close())
		}
	}
	p := openPage(c)
	p.GoTo("#/services/default/web")
	const list, bars = "document.getElementById('algorithm')", "[...document.querySelectorAll('.endpoints-table .pair.observed .amount')].map(x => x.textContent).sort().join(' ')"
	p.WaitFor("the select", list+".offsetParent !== null && "+list+".value === 'random' && "+list+".options.length > 10")
	choose := func(name string) {
		t.Helper()
		p.Run(chromedp.Evaluate(list+".value = "+webtest.Quote(name)+"; "+list+".dispatchEvent(new Event('change'))", nil))
	}
	for _, tt := range []struct{ algorithm, bars string }{{"rr", "50% 50%"}, {"sh", "0% 100%"}} {
		choose(tt.algorithm)
		p.WaitFor(tt.algorithm+" is in force", "document.querySelector('.fit-sentence')?.textContent.includes('selected by "+tt.algorithm+"')")
		request(10)
		p.WaitFor("the bars are "+tt.bars, bars+" === "+webtest.Quote(tt.bars))
		if *balanceScreenshots != "" {
			p.Shoot(filepath.Join(*balanceScreenshots, "balance-"+tt.algorithm+".png"))
		}
	}
	// A flow shows what its algorithm looked at.
	p.GoTo("#/flows")
	p.WaitFor("flows", "document.querySelectorAll('.flows tbody tr, #rows tr').length > 0")
	r := c.WaitRecord("of a flow by sh", func(r *flow.Record) bool { return r.Balance != nil && r.Balance.Algorithm == "sh" })
	p.GoTo("#/flows/" + r.ID)
	p.WaitFor("the evidence", "[...document.querySelectorAll('.side .hint')].some(x => x.textContent === "+webtest.Quote("sh: "+r.Balance.Evidence)+")")
	// By another way, the page follows.
	if err := c.Balance(t.Context(), observe.BalanceChange{Service: "default/web"}); err != nil {
		t.Fatal(err)
	}
	p.GoTo("#/services/default/web")
	p.WaitFor("the default again", list+".value === 'random' && document.querySelector('.fit-sentence')?.textContent.includes('random')")
}
