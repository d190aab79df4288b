package labs

import (
	"strings"
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
// must have met, and the rules of the nodes. Nothing can be held. It runs before the parallel tests, as TestWhy.
func TestObservedLab(t *testing.T) {
	for _, tool := range []string{"iptables-save", "nft"} {
		netnstest.RequireTool(t, tool)
	}
	t.Setenv(lab.KubeProxyVariable, clustertest.RequireProgram(t, cluster.KubeProxy))
	startLab(t, e2etest.WriteFile(t, "own.yaml", []byte(observedLab)))
	run := func(args ...string) (int, string, string) {
		return e2etest.Run(t, nil, append(args, "--lab", "own")...)
	}
	for _, shell := range []string{"shell-a", "shell-b"} {
		if code, stdout, stderr := run("lab", "ask", shell, "http://10.96.30.30/"); code != 0 {
			t.Fatal(stdout, stderr)
		}
	}
	e2etest.Eventually(t, e2etest.Timeout, "the flows of both nodes", func() bool {
		code, stdout, stderr := run("flows", "--walk", "rules")
		return code == 0 && stderr == "" && strings.Contains(stdout, "shell-a") && strings.Contains(stdout, "shell-b") &&
			strings.Contains(stdout, "-j KUBE-SEP-") && strings.Contains(stdout, "numgen random mod 3 has drawn ")
	})
	for _, q := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"status"}, 0, "decided by kube-proxy (iptables); this daemon only observes"},
		{[]string{"lab", "status"}, 0, "kube-proxy ready, observer ready"},
		{[]string{"doctor"}, 0, ""},
		{[]string{"why", "shell-b", "web"}, 0, "numgen random mod 3"},
		{[]string{"services"}, 0, "default/web"},
	} {
		if code, stdout, stderr := run(q.args...); code != q.code || !strings.Contains(stdout, q.want) {
			t.Errorf("%s: exit code %d\n%s%s", q.args, code, stdout, stderr)
		}
	}
	if code, _, stderr := run("step", "--service", "web", "--seconds", "1"); code != 2 || !strings.Contains(stderr, "holding flows is not possible: kube-proxy (") {
		t.Errorf("step: exit code %d, %s", code, stderr)
	}
	api, err := lab.FlowAPIOf("own")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("page", func(t *testing.T) {
		p := webtest.Open(t, api.URL)
		p.GoTo("#/overview")
		p.WaitFor("the nodes", "[...document.querySelectorAll('.node-list > li')].filter(x => x.textContent.includes(') decides; nfqproxy only observes')).length === 2 && document.getElementById('plain').hidden")
		p.GoTo("#/flows")
		p.WaitFor("the flows", "document.querySelectorAll('tr[data-id]').length >= 2")
		p.Click("tr[data-id] .time a")
		p.WaitFor("the proxy", "document.querySelector('.detail').textContent.includes('kube-proxy (') && document.querySelector('.detail').textContent.includes('nfqproxy only observed it')")
		p.WaitFor("what the rules are", "document.querySelector('.detail > .hint').offsetParent && document.querySelector('.detail > .hint').textContent.includes('must have met')")
	})
}
