package web_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// inLab is an expression for what a row of a list of the lab has.
func inLab(list, name string) string {
	return fmt.Sprintf("[...document.querySelectorAll('#lab-%s > li')].find(x => x.dataset.name === %s)", list, webtest.Quote(name))
}

// pressInLab presses a button of a row, by its text.
func pressInLab(p *page, list, name, label string) {
	p.Helper()
	p.WaitFor(name+" has the button "+label, fmt.Sprintf("!![...%s.querySelectorAll('button')].find(b => b.textContent === %s)", inLab(list, name), webtest.Quote(label)))
	p.Run(chromedp.Evaluate(fmt.Sprintf("[...%s.querySelectorAll('button')].find(b => b.textContent === %s).click()", inLab(list, name), webtest.Quote(label)), nil))
}

// wantResult waits for the line about the last change.
func wantResult(p *page, word, line string) {
	p.Helper()
	p.WaitFor(word+": "+line, fmt.Sprintf("!document.querySelector('.lab-result').hidden && document.querySelector('.lab-result .pill').textContent === %s && document.querySelector('.lab-result .lines').textContent === %s", webtest.Quote(word), webtest.Quote(line)))
}

func TestLab(t *testing.T) {
	f := newFake(t, newWorld(t, 20), 5)
	p := open(t, f, "#token="+token)
	p.WaitFor("the tab", "!document.querySelector('#nav a[data-view=lab]').hidden")
	p.Press("g", "l")
	p.WaitFor("the view", "location.hash === '#/lab' && document.querySelectorAll('#lab-pods > li').length > 5 && document.querySelectorAll('#lab-nodes > li').length === 3")
	const cart = "shop/cart"
	p.WaitFor("a deployment", inLab("deployments", cart)+".querySelector('.pill').textContent === '3 of 3 ready'")

	// One press after the other: each counts.
	for range 3 {
		pressInLab(p, "deployments", cart, "+")
	}
	p.WaitFor("three more", inLab("deployments", cart)+".querySelector('b').textContent === '6'")
	wantResult(p, "changed", "deployment shop/cart: 6 replicas, had 5")
	pressInLab(p, "deployments", cart, "−")
	wantResult(p, "changed", "deployment shop/cart: 5 replicas, had 6")
	p.Click(".lab-result button")
	p.WaitFor("the line is closed", "document.querySelector('.lab-result').hidden")

	const pod = "shop/cart-5b8f-qq7dn"
	pressInLab(p, "pods", pod, "Make unready")
	wantResult(p, "changed", "pod "+pod+" is not ready")
	p.WaitFor("the pod is not ready", inLab("pods", pod)+".querySelector('.pill').textContent === 'not ready' && "+inLab("deployments", cart)+".querySelector('.pill').textContent === '2 of 5 ready'")
	pressInLab(p, "pods", pod, "Make ready")
	wantResult(p, "changed", "pod "+pod+" is ready")
	pressInLab(p, "pods", pod, "Stop server")
	wantResult(p, "changed", "the server of pod "+pod+" is stopped")
	p.WaitFor("the server is stopped", inLab("pods", pod)+".textContent.includes('server stopped')")
	pressInLab(p, "pods", pod, "Start server")
	wantResult(p, "changed", "the server of pod "+pod+" is running")
	p.WaitFor("the server runs", "!"+inLab("pods", pod)+".textContent.includes('server stopped')")
	p.Run(chromedp.Evaluate("document.getElementById('lab-grace').value = '10s'", nil))
	pressInLab(p, "pods", pod, "Remove")
	wantResult(p, "changed", "pod "+pod+" is terminating, and ends in 2s")
	p.WaitFor("no buttons for what ends", inLab("pods", pod)+".querySelectorAll('button').length === 0")

	pressInLab(p, "nodes", "node-b", "Disconnect")
	wantResult(p, "changed", "node node-b: down")
	p.WaitFor("no connection", inLab("nodes", "node-b")+".querySelector('.pill').textContent === 'no connection'")
	p.WaitFor("readiness is the node's", "![...document.querySelectorAll('#lab-pods > li')].some(x => x.textContent.includes('on node-b') && x.textContent.includes('Make'))")
	pressInLab(p, "nodes", "node-b", "Connect")
	wantResult(p, "changed", "node node-b: up")
	p.Click("#lab-force")
	pressInLab(p, "nodes", "node-c", "Drain")
	wantResult(p, "changed", "node node-c: drain")
	p.WaitFor("no new pods", inLab("nodes", "node-c")+".textContent.includes('no new pods')")
	pressInLab(p, "nodes", "node-c", "Uncordon")
	wantResult(p, "changed", "node node-c: uncordon")

	var made []labapi.Change
	for _, replicas := range []uint16{4, 5, 6, 5} {
		made = append(made, labapi.Change{Scale: &labapi.Scale{Deployment: cart, Replicas: replicas}})
	}
	grace := labapi.Duration(10e9)
	made = append(made, labapi.Change{Ready: &labapi.Readiness{Pod: pod}}, labapi.Change{Ready: &labapi.Readiness{Pod: pod, Ready: true}},
		labapi.Change{Server: &labapi.Serving{Pod: pod}}, labapi.Change{Server: &labapi.Serving{Pod: pod, Running: true}},
		labapi.Change{RemovePod: &labapi.PodRemoval{Pod: pod, Grace: &grace}})
	for _, e := range []labapi.NodeEvent{{Node: "node-b", Action: "down"}, {Node: "node-b", Action: "up"}, {Node: "node-c", Action: "drain", Force: true}, {Node: "node-c", Action: "uncordon"}} {
		made = append(made, labapi.Change{Node: &e})
	}
	if diff := cmp.Diff(made, f.lab.made()); diff != "" {
		t.Errorf("-want +made:\n%s", diff)
	}
}

// submitInLab submits a form of the lab, by its title.
func submitInLab(p *page, title string) {
	p.Helper()
	p.Run(chromedp.Evaluate(fmt.Sprintf("[...document.querySelectorAll('.lab-form')].find(x => x.querySelector('summary').textContent === %s).querySelector('form').requestSubmit()", webtest.Quote(title)), nil))
}

func openForm(p *page, title string) {
	p.Helper()
	p.Run(chromedp.Evaluate(fmt.Sprintf("[...document.querySelectorAll('.lab-form')].find(x => x.querySelector('summary').textContent === %s).open = true", webtest.Quote(title)), nil))
}

// wantWrong waits for the message at a field.
func wantWrong(p *page, field, message string) {
	p.Helper()
	p.WaitFor(message, fmt.Sprintf("(w => !w.hidden && w.textContent === %s)(document.querySelector('.field-box[data-field=\"%s\"] .wrong'))", webtest.Quote(message), field))
}

func TestLabForms(t *testing.T) {
	f := newFake(t, newWorld(t, 21), 5)
	p := open(t, f, "#token="+token)
	p.GoTo("#/lab")
	p.WaitFor("the forms", "document.querySelectorAll('#field-kind option').length === 9 && document.querySelectorAll('#lab-nodes > li').length === 3")

	openForm(p, "Add a pod")
	submitInLab(p, "Add a pod")
	wantWrong(p, "addPod.name", "The pod needs a name.")
	p.WaitFor("the field has the focus", "document.activeElement.id === 'field-addPod.name'")
	p.Enter("#field-addPod\\.name", "shop/web-9")
	p.Enter("#field-addPod\\.ports", "8080, 99999")
	p.Press(kb.Enter)
	wantWrong(p, "addPod.ports", "Want PORT, NAME:PORT or PORT/udp with ports from 1 to 65535, separated by commas.")
	p.Enter("#field-addPod\\.ports", "http:8080, 53/udp")
	p.Enter("#field-addPod\\.labels", "app")
	p.Press(kb.Enter)
	wantWrong(p, "addPod.labels", "Want KEY=VALUE, separated by commas.")
	p.Enter("#field-addPod\\.labels", "app=web, tier=front")
	p.Run(chromedp.Evaluate("document.getElementById('field-addPod.node').value = 'node-b'", nil))
	submitInLab(p, "Add a pod")
	wantResult(p, "changed", "pod shop/web-9 is added on node-b with 10.244.1.7")
	p.WaitFor("the pod", "!!"+inLab("pods", "shop/web-9"))
	made := f.lab.made()
	if add := made[len(made)-1].AddPod; add == nil || add.Labels["app"] != "web" || add.Labels["tier"] != "front" || len(add.Ports) != 2 || add.Ports[0].Name != "http" || add.Ports[0].Protocol != decision.TCP || add.Ports[1].Port != 53 || add.Ports[1].Protocol != decision.UDP {
		t.Errorf("added: %+v", add)
	}
	p.ExpectRefusals(1)
	p.Enter("#field-addPod\\.name", "Web")
	submitInLab(p, "Add a pod")
	p.WaitFor("the server's error", `document.querySelector('.lab-form[open] .wrong.all').textContent === 'pod default/Web: "Web" is not a valid name'`)

	openForm(p, "Apply a manifest")
	submitInLab(p, "Apply a manifest")
	wantWrong(p, "apply", "Paste a Service, EndpointSlice, Deployment or Pod, in YAML or JSON.")
	p.Run(chromedp.Evaluate("document.getElementById('field-apply').value = 'a: b'", nil))
	p.ExpectRefusals(1)
	submitInLab(p, "Apply a manifest")
	wantWrong(p, "apply", "manifest: document 1: apiVersion: missing: not a Kubernetes object")
	p.Run(chromedp.Evaluate("[...document.querySelectorAll('.lab-form button')].find(b => b.textContent === 'Fill in an example').click()", nil))
	submitInLab(p, "Apply a manifest")
	wantResult(p, "changed", "Service default/web2 is added")

	openForm(p, "Delete an object")
	submitInLab(p, "Delete an object")
	wantWrong(p, "delete.name", "The object needs a name.")
	p.Enter("#field-delete\\.name", "web3")
	p.ExpectRefusals(1)
	submitInLab(p, "Delete an object")
	wantWrong(p, "delete.name", `no Service "web3"`)
	p.Enter("#field-delete\\.name", "web2")
	submitInLab(p, "Delete an object")
	wantResult(p, "changed", "Service default/web2 is removed")
	made = f.lab.made()
	if d := made[len(made)-1].Delete; d == nil || *d != (labapi.Deletion{Kind: "Service", Name: "web2"}) {
		t.Errorf("deleted: %+v", d)
	}

	// The fields are those of the kind, and the hosts those that it may have.
	openForm(p, "Add a fault")
	kind := func(name string) {
		p.Helper()
		p.Run(chromedp.Evaluate(fmt.Sprintf("(k => { k.value = %q; k.dispatchEvent(new Event('change')) })(document.getElementById('field-kind'))", name), nil))
	}
	for _, k := range labapi.FaultKinds {
		kind(k.Name)
		names := []string{}
		for _, parameter := range k.Parameters {
			names = append(names, parameter.Name)
		}
		var have []string
		p.Run(chromedp.Evaluate("[...document.querySelectorAll('.lab-form[open] .grid-fields:not(:has(#field-kind)) .field-box')].map(x => x.dataset.field).filter(x => !x.includes('.'))", &have))
		if !slices.Equal(have, names) {
			t.Errorf("%s has the fields %q, want %q", k.Name, have, names)
		}
		if hosts := webtest.Value[int](p.Page, "document.querySelectorAll('#field-host option').length"); (hosts == 3) != k.NodesOnly {
			t.Errorf("%s: %d hosts", k.Name, hosts)
		}
	}
	kind("firewall")
	p.ExpectRefusals(2)
	submitInLab(p, "Add a fault")
	wantWrong(p, "to", "to is missing: the fault firewall requires an address or CIDR")
	p.Enter("#field-to", "cart")
	submitInLab(p, "Add a fault")
	wantWrong(p, "to", `to "cart": want an address or CIDR`)
	p.Enter("#field-to", "10.244.2.0/24")
	p.Enter("#field-port", "http")
	submitInLab(p, "Add a fault")
	wantWrong(p, "port", `"http" is not a number.`)
	p.Enter("#field-port", "8080")
	p.Run(chromedp.Evaluate("document.getElementById('field-host').value = 'node-b'; document.querySelector('[data-field=reject] input').click(); document.getElementById('field-protocol').value = 'udp'", nil))
	submitInLab(p, "Add a fault")
	const text = "firewall on node-b: rejects packets to 10.244.2.0/24 port 8080/UDP"
	wantResult(p, "changed", "fault 1: "+text)
	p.WaitFor("the fault", inLab("faults", "1")+".textContent.includes("+webtest.Quote(text)+")")
	kind("loss")
	p.Enter("#field-percent", "2.5")
	submitInLab(p, "Add a fault")
	wantResult(p, "changed", "fault 2: loss on node-b: 2.5% of the packets")
	status, _ := f.lab.LabStatus(t.Context())
	want := []labapi.Fault{
		{ID: 1, Kind: "firewall", Host: "node-b", Text: text, To: netip.MustParsePrefix("10.244.2.0/24"), Port: 8080, Protocol: decision.UDP, Reject: true},
		{ID: 2, Kind: "loss", Host: "node-b", Text: "loss on node-b: 2.5% of the packets", Percent: 2.5},
	}
	if !slices.Equal(status.Faults, want) {
		t.Errorf("%+v, want %+v", status.Faults, want)
	}
	pressInLab(p, "faults", "1", "Remove")
	wantResult(p, "changed", "fault 1 is over: "+text)
	p.WaitFor("one fault", "document.querySelectorAll('#lab-faults > li').length === 1")
	kind("kill")
	submitInLab(p, "Add a fault")
	p.WaitFor("a way to remove both", "document.querySelectorAll('#lab-faults > li').length === 2")
	p.Run(chromedp.Evaluate("[...document.querySelectorAll('.lab button')].find(b => b.textContent === 'Remove all').click()", nil))
	p.WaitFor("no faults", "document.getElementById('lab-faults').textContent === 'No faults.'")
}

// TestLabByKeyboard: a button keeps the focus while the list changes, and all have names.
func TestLabByKeyboard(t *testing.T) {
	f := newFake(t, newWorld(t, 22), 5)
	p := open(t, f, "#token="+token)
	p.GoTo("#/lab")
	const pod, key = "shop/cart-5b8f-qq7dn", "ready shop/cart-5b8f-qq7dn"
	p.WaitFor("the pod", "!!"+inLab("pods", pod))
	p.Run(chromedp.Evaluate(inLab("pods", pod)+".querySelector('button').focus()", nil))
	for _, label := range []string{"Make ready", "Make unready"} {
		p.Press(kb.Enter)
		p.WaitFor("the button "+label+" has the focus", fmt.Sprintf("document.activeElement.dataset.key === %q && document.activeElement.textContent === %q", key, label))
	}
	p.Press(kb.Tab, kb.Tab, kb.Enter) // past the server, the pod's removal, after which its buttons are gone
	p.WaitFor("another button of the list has the focus", inLab("pods", pod)+".textContent.includes('terminating') && document.getElementById('lab-pods').contains(document.activeElement)")
	if nameless := webtest.Value[[]string](p.Page, `[...document.querySelectorAll('a, button, input, select, textarea')].filter(x => !x.hidden && !(x.getAttribute('aria-label') || x.textContent.trim() || x.labels?.length)).map(x => x.outerHTML)`); len(nameless) > 0 {
		t.Errorf("without a name: %s", strings.Join(nameless, "\n"))
	}
	same := webtest.Value[[]string](p.Page, "(all => all.filter((x, i) => all.indexOf(x) !== i))([...document.querySelectorAll('.lab-list button')].map(x => x.getAttribute('aria-label')))")
	if len(same) > 0 {
		t.Errorf("several buttons are called %q", same)
	}
}

// TestLabWithoutToken: without the token the lab is shown, and a change prompts for it.
func TestLabWithoutToken(t *testing.T) {
	f := newFake(t, newWorld(t, 23), 5)
	p := open(t, f, "#/lab")
	p.WaitFor("the form for the token, and the lab", "!!document.querySelector('#field-token') && document.querySelectorAll('#lab-nodes > li').length === 3")
	p.ExpectRefusals(1)
	pressInLab(p, "nodes", "node-a", "Drain")
	p.WaitFor("an error", "document.querySelector('.lab-result .pill').textContent === 'not changed' && document.querySelector('.lab-result .lines').textContent.startsWith('missing token') && document.activeElement.id === 'field-token'")
	p.Enter("#field-token", token)
	p.Press(kb.Enter)
	p.WaitFor("the form is gone", "document.querySelector('#field-token')?.checkVisibility() !== true")
	pressInLab(p, "nodes", "node-a", "Drain")
	wantResult(p, "changed", "node node-a: drain")
	if n := len(f.lab.made()); n != 1 {
		t.Errorf("%d changes, want 1", n)
	}
}

// TestNoLab: a server that is no lab has no tab for it.
func TestNoLab(t *testing.T) {
	f := newFake(t, newWorld(t, 24), 5)
	f.lab = nil
	p := open(t, f, "#/overview")
	p.WaitFor("the server's name", "document.getElementById('place').textContent !== ''")
	if !webtest.Value[bool](p.Page, "document.querySelector('#nav a[data-view=lab]').hidden") {
		t.Error("there is a tab Lab")
	}
	p.ExpectRefusals(20) // it is requested again and again
	p.GoTo("#/lab")
	p.WaitFor("an error", "document.querySelector('.lab > .problem').textContent === 'there is no lab here: only labs can be changed'")
	p.GoTo("#/overview")
	p.WaitFor("the overview", "!!document.querySelector('.overview')")
}
