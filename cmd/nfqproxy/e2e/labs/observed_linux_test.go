package labs

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

const observedLab = `apiVersion: nfqproxy.io/v1alpha1
kind: Lab
metadata: {name: own}
clusterCIDRs: [10.244.0.0/16]
networks: [{cidr: 172.20.0.0/16, gateway: 172.20.0.1}]
nodes:
- {name: node-a, addresses: [172.20.0.2], podCIDRs: [10.244.0.0/24], proxy: kube-proxy, observe: true}
- {name: node-b, addresses: [172.20.0.3], podCIDRs: [10.244.1.0/24], proxy: kube-proxy, kubeProxyMode: nftables, observe: true}
pods:
- {name: shell-a, node: node-a, addresses: [10.244.0.9]}
- {name: shell-b, node: node-b, addresses: [10.244.1.9]}
deployments:
- {name: web, replicas: 3, nodes: [node-a, node-b], ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  clusterIP: 10.96.30.30
  ports: [{name: http, port: 80, targetPort: http}]
`

// TestObservedLab: in a lab whose nodes have kube-proxy, commands and the page show the flows that it decided, the rules that they
// must have met, and the rules of the nodes. Nothing can be held, and no algorithm switched. It runs before the parallel tests, as
// TestWhy.
func TestObservedLab(t *testing.T) {
	for _, tool := range []string{"iptables-save", "nft"} {
		netnstest.RequireTool(t, tool)
	}
	t.Setenv(lab.KubeProxyVariable, clustertest.RequireProgram(t, cluster.KubeProxy))
	startLab(t, e2etest.WriteFile(t, "own.yaml", []byte(observedLab)))
	run := func(args ...string) (int, string, string) {
		return e2etest.Run(t, nil, append(args, "--lab", "own")...)
	}
	ask := func(shell string) (code int) {
		code, _, _ = run("lab", "ask", shell, "http://10.96.30.30/")
		return code
	}
	for _, shell := range []string{"shell-a", "shell-b"} {
		if ask(shell) != 0 {
			t.Fatalf("%s gets no answer", shell)
		}
	}
	expect := func(code int, want string, args ...string) {
		t.Helper()
		var last string
		defer func() {
			if t.Failed() {
				t.Log(last)
			}
		}()
		e2etest.Eventually(t, e2etest.Timeout, fmt.Sprintf("%s with %q", args, want), func() bool {
			got, stdout, stderr := run(args...)
			last = fmt.Sprintf("exit code %d\n%s%s", got, stdout, stderr)
			return got == code && strings.Contains(stdout+stderr, want)
		})
	}
	for _, want := range []string{"default/shell-a:", "-j KUBE-SEP-", "default/shell-b:", "numgen random mod 3 has drawn "} {
		expect(0, want, "flows", "--walk", "rules")
	}
	expect(0, "decided by kube-proxy (iptables); this daemon only observes", "status")
	expect(0, "decided by kube-proxy (nftables); this daemon only observes", "status")
	expect(0, "kube-proxy ready, observer ready", "lab", "status")
	expect(0, "nothing is wrong", "doctor")
	expect(0, "works, as far as objects and recent flows show: 3 endpoints", "why", "shell-b", "web:80/TCP")
	expect(2, "holding flows is not possible: kube-proxy (", "step", "--service", "web", "--seconds", "1")
	expect(2, "another service proxy selects the endpoints", "balance", "web", "maglev")
	_, rules, _ := e2etest.Run(t, nil, "lab", "exec", "--lab", "own", "node-a", "--", "iptables-save")
	if code, stdout, stderr := e2etest.Run(t, nil, "services", "--rules", e2etest.WriteFile(t, "rules", []byte(rules))); code != 0 || !strings.Contains(stdout, "10.96.30.30") {
		t.Errorf("services: exit code %d\n%s%s", code, stdout, stderr)
	}
	t.Run("top", func(t *testing.T) {
		p := e2etest.NewPane(t, nil, nil, "140", "30", "top", "--lab", "own")
		p.Sees("nfqproxy top", "2 nodes", "default/web:http")
		p.Press("Enter")
		p.Sees("10.244.0.2:8080", "10.244.0.3:8080", "10.244.1.2:8080")
		p.Press("q")
		p.Sees("exit code 0")
	})
	api, err := lab.FlowAPIOf("own")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("page", func(t *testing.T) {
		p := webtest.Open(t, api.Page())
		p.GoTo("#/overview")
		p.WaitFor("the nodes", "[...document.querySelectorAll('.node-list > li')].filter(x => x.textContent.includes(') decides; nfqproxy only observes')).length === 2 && document.getElementById('plain').hidden")
		p.GoTo("#/services")
		p.WaitFor("the service", "document.querySelector('#services tr').textContent.includes('default/web')")
		p.GoTo("#/map")
		p.WaitFor("a caller", "document.querySelector('.map-body').textContent.includes('shell-a')")
		p.GoTo("#/flows?source=default/shell-a")
		p.WaitFor("the flow", "document.querySelectorAll('tr[data-id]').length === 1")
		p.Click("tr[data-id] .time a")
		p.WaitFor("the proxy", "document.querySelector('.detail').textContent.includes('kube-proxy (iptables)') && document.querySelector('.detail').textContent.includes('nfqproxy only observed it')")
		p.WaitFor("what the rules are", "document.querySelector('.detail > .hint').offsetParent && document.querySelector('.detail > .hint').textContent.includes('must have met')")
		p.WaitFor("the rule that selected the endpoint", "document.querySelector('.detail').textContent.includes('KUBE-SEP-')")
		if webtest.Value[bool](p, "document.querySelector('.picture').textContent.includes('would be created')") {
			t.Error("the entry is not one that would be created: it was read")
		}
		p.WaitFor("the candidates", "['10.244.0.2', '10.244.0.3', '10.244.1.2'].every((a) => document.querySelector('.side').textContent.includes(a))")
	})

	// A proxy that hangs does not follow a change: its rules are still what they were.
	for _, node := range []string{"node-a", "node-b"} {
		if code, _, stderr := run("lab", "fault", "add", "freeze", node); code != 0 {
			t.Fatal(stderr)
		}
	}
	if code, _, stderr := run("lab", "scale", "web", "2"); code != 0 {
		t.Fatal(stderr)
	}
	for _, of := range []struct{ shell, proxy string }{{"shell-a", "kube-proxy (iptables) on node-a"}, {"shell-b", "kube-proxy (nftables) on node-b"}} {
		expect(0, "works, but the rules of "+of.proxy+" have missed changes of default/web:http for ", "why", of.shell, "web")
		expect(0, "they still lead to 10.244.0.3:8080 (default/web-3)", "why", of.shell, "web")
		expect(1, "error NFQ093: the rules of "+of.proxy+" have missed changes of default/web:http for ", "doctor")
	}
	expect(0, "node-b: 10.244.0.3:8080: rules not yet, ", "timeline", "web")
	for _, fault := range []string{"1", "2"} {
		if code, _, stderr := run("lab", "fault", "rm", fault); code != 0 {
			t.Fatal(stderr)
		}
	}
	for _, shell := range []string{"shell-a", "shell-b"} {
		ask(shell) // the flows of the beginning may not be recent any more
		expect(0, "works, as far as objects and recent flows show: 2 endpoints", "why", shell, "web")
	}
	expect(0, "node-b: 10.244.0.3:8080: rules +", "timeline", "web")

	// A program that ends, behind the back of kube-proxy: its flows are refused.
	if code, _, stderr := run("lab", "pod", "stop", "web-2"); code != 0 {
		t.Fatal(stderr)
	}
	bundle := filepath.Join(t.TempDir(), "refused.tgz")
	var watched sync.WaitGroup
	defer watched.Wait()
	found := make(chan string, 1)
	watched.Go(func() {
		_, _, stderr := e2etest.Run(t, nil, "watch-for", "--service", "web", "--state", "refused", "--capture", "0", "--write", bundle, "--timeout", e2etest.Timeout.String(), "--lab", "own")
		found <- stderr
	})
	e2etest.Eventually(t, e2etest.Timeout, "a bundle of a refused flow", func() bool {
		ask("shell-a")
		select {
		case stderr := <-found:
			if code, stdout, wrong := e2etest.Run(t, nil, "show", bundle); code != 0 || !strings.Contains(stdout, "decided by kube-proxy (") {
				t.Errorf("show: exit code %d\n%s%s%s", code, stdout, wrong, stderr)
			}
			return true
		default:
			return false
		}
	})
	expect(1, "error NFQ040: 1 of 2 endpoints will not answer: 10.244.1.2:8080 refuses connections", "doctor")
}
