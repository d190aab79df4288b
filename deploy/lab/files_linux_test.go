package lab

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

const watched = `apiVersion: nfqproxy.io/v1alpha1
kind: Lab
metadata: {name: watched}
clusterCIDRs: [10.244.0.0/16]
networks: [{cidr: 192.0.2.0/24, gateway: 192.0.2.1}]
nodes:
- {name: node-a, addresses: [192.0.2.2], podCIDRs: [10.244.0.0/24]}
pods:
- {name: web, node: node-a, addresses: [10.244.0.2], ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: 10.96.0.1
  ports:
  - port: 80
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [10.244.0.2]}, {addresses: [10.244.0.99]}]
`

// upFile brings the lab of a file up, without daemons.
func upFile(t *testing.T, path string, change func(*Spec)) *Lab {
	t.Helper()
	netnstest.Require(t)
	file, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	change(file.Spec)
	l, err := Up(t.Context(), file, Options{NoDaemons: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestSavesAreChecked saves a lab's file again and again, as an editor does, while the lab
// runs.
func TestSavesAreChecked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lab.yaml")
	save := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	save(watched)
	l := upFile(t, path, func(s *Spec) { s.Proxy.NoHairpinMasquerade = true }) // as a flag does
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	events := l.Subscribe(100)
	for _, step := range []struct {
		name, old, new string
		want           []string // parts of the text; none: all is in force
	}{
		{"a misspelt field of a Service", "  - port: 80", "  - prot: 80", []string{"NOT IN FORCE", path + ":17: document 2: Service default/web: spec.ports[0].prot: unknown field"}},
		{"mended", "", "", nil},
		{"no YAML", "spec:\n", "spec: [\n", []string{"NOT IN FORCE", path + ":14: document 2: did not find expected "}},
		{"mended again", "", "", nil},
		{"a misspelt field of the lab", "podCIDRs:", "podCIDR:", []string{"NOT IN FORCE", path + ":7: nodes[0].podCIDR: unknown field"}},
		{"a pod on no node", "node: node-a", "node: node-b", []string{"NOT IN FORCE", "\n  " + path + `:9: pods[0].node: no node "node-b"`}},
		{"a new node", "pods:", "- {name: node-b, addresses: [192.0.2.3]}\npods:", []string{"NOT APPLIED", "node node-b is new in the file: not in the running lab"}},
		{"a new pod on it", "pods:", "- {name: node-b, addresses: [192.0.2.3], podCIDRs: [10.244.1.0/24]}\npods:\n- {name: web-2, node: node-b, addresses: [10.244.1.3]}", []string{"NOT APPLIED", "pod default/web-2 is on node node-b in the file, which is not in the running lab"}},
		{"an option of the proxies", "nodes:\n", "proxy: {masqueradeAll: true}\nnodes:\n", []string{"NOT APPLIED", "proxy is changed in the file"}},
		{"an endpoint of no host", "[10.244.0.99]", "[10.244.0.98]", []string{"NOT APPLIED", "endpoint 10.244.0.98:80 of Service default/web: no host of the running lab has this address"}},
		{"an old spelling", "clusterIP: 10.96.0.1", "clusterIP: 10.96.0.01", []string{"WARNING", `"10.96.0.01" is read as 10.96.0.1`}},
		{"mended at last", "", "", nil},
	} {
		if !strings.Contains(watched, step.old) {
			t.Fatalf("%s: there is no %q", step.name, step.old)
		}
		save(strings.Replace(watched, step.old, step.new, 1))
		for met := false; !met; {
			select {
			case e := <-events.C:
				if e.Files == nil {
					continue
				}
				s := *e.Files
				met = (s.String() == "") == (len(step.want) == 0)
				for _, want := range step.want {
					met = met && strings.Contains(s.String(), want)
				}
				if !met {
					t.Logf("%s: %s", step.name, s)
				}
			case <-ctx.Done():
				t.Fatalf("%s: %q does not come", step.name, step.want)
			}
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	for e := range events.C {
		if e.Files != nil {
			t.Errorf("at the end: %s", e.Files)
		}
	}
}
