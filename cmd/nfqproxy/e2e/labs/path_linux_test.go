package labs

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/nodepath"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// pathServices are services whose endpoint is my-nginx-2 on kind-worker2, and one without any. kind-control-plane has the
// load balancer IP, as with kube-vip.
const pathServices = `
---
apiVersion: v1
kind: Service
metadata: {name: local, namespace: default}
spec:
  type: NodePort
  externalTrafficPolicy: Local
  clusterIP: 10.96.1.1
  clusterIPs: [10.96.1.1]
  ports:
  - {port: 80, targetPort: 80, nodePort: 30081, protocol: TCP}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: local-1, namespace: default, labels: {kubernetes.io/service-name: local}}
addressType: IPv4
ports:
- {name: "", port: 80, protocol: TCP}
endpoints:
- {addresses: [10.244.2.2], nodeName: kind-worker2, targetRef: {kind: Pod, namespace: default, name: my-nginx-2}, conditions: {ready: true}}
---
apiVersion: v1
kind: Service
metadata: {name: balanced, namespace: default}
spec:
  type: LoadBalancer
  allocateLoadBalancerNodePorts: false
  clusterIP: 10.96.1.3
  clusterIPs: [10.96.1.3]
  ports:
  - {port: 80, targetPort: 80, protocol: TCP}
status: {loadBalancer: {ingress: [{ip: 172.20.0.200}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: balanced-1, namespace: default, labels: {kubernetes.io/service-name: balanced}}
addressType: IPv4
ports:
- {name: "", port: 80, protocol: TCP}
endpoints:
- {addresses: [10.244.2.2], nodeName: kind-worker2, targetRef: {kind: Pod, namespace: default, name: my-nginx-2}, conditions: {ready: true}}
---
apiVersion: v1
kind: Service
metadata: {name: nowhere, namespace: default}
spec:
  type: NodePort
  clusterIP: 10.96.1.2
  clusterIPs: [10.96.1.2]
  ports:
  - {port: 80, targetPort: 80, nodePort: 30082, protocol: TCP}
---
`

// pathLab runs a lab kind with this name and pathServices, whose only endpoint of web servers is my-nginx-2 on
// kind-worker2. The result runs a command that must not fail, and returns its output.
func pathLab(t *testing.T, name string) (run func(t *testing.T, args ...string) string) {
	t.Helper()
	netnstest.RequireTool(t, "bash")
	dir := filepath.Join(t.TempDir(), "mine")
	if code, _, stderr := e2etest.Run(t, nil, "lab", "init", "kind", dir); code != 0 {
		t.Fatal(stderr)
	}
	file := filepath.Join(dir, "kind.yaml")
	const first = "- addresses: [10.244.1.2]\n  nodeName: kind-worker\n  targetRef: {kind: Pod, namespace: default, name: my-nginx-1}\n  conditions: {ready: true}\n"
	text := strings.Replace(e2etest.ReadFile(t, file), "name: kind\n", "name: "+name+"\n", 1)
	if !strings.Contains(text, first) {
		t.Fatal("the lab has other endpoints")
	}
	if err := os.WriteFile(file, []byte(strings.Replace(text, first, "", 1)+pathServices), 0o600); err != nil {
		t.Fatal(err)
	}
	startLab(t, file)
	return func(t *testing.T, args ...string) string {
		t.Helper()
		code, stdout, stderr := e2etest.Run(t, nil, args...)
		if code != 0 {
			t.Fatalf("nfqproxy %s: exit code %d: %s", strings.Join(args, " "), code, stderr)
		}
		return stdout
	}
}

// TestPathsInALab: a connection of a running lab is one row with all nodes that its first packet passed, and one
// story, whichever node's record it is asked of. It runs before the parallel tests: one of them is about
// the labs that run.
func TestPathsInALab(t *testing.T) {
	netnstest.RequireTool(t, "ip")
	run := pathLab(t, "path")
	run(t, "lab", "exec", "--lab", "path", "kind-control-plane", "--", "ip", "address", "add", "172.20.0.200/32", "dev", "eth0")
	const server, worker, worker2, controlPlane = "10.244.2.2:80", "kind-worker", "kind-worker2", "kind-control-plane"
	for _, tt := range []struct {
		name, from, to, protocol string
		nodes                    []string
		// segments are the packet before the first node and after each one: %s is the client, and the
		// source's port is left out.
		segments []string
		has      []string
	}{
		{"cluster IP", "shell", "10.96.118.136/80", "tcp", []string{worker, worker2},
			[]string{"%s -> 10.96.118.136:80", "%s -> " + server + "  (destination translated)", "%s -> " + server}, []string{"service  default/my-nginx-service, by its cluster IP", "source   unchanged"}},
		{"node port", "outside", "172.20.0.4/30080", "tcp", []string{controlPlane, worker2},
			[]string{"%s -> 172.20.0.4:30080", "172.20.0.4 -> " + server + "  (destination and source translated)", "172.20.0.4 -> " + server}, []string{"by its node port", "masqueraded", "un-SNAT"}},
		{"load balancer IP", "outside", "172.20.0.200/80", "tcp", []string{controlPlane, worker2},
			[]string{"%s -> 172.20.0.200:80", "172.20.0.4 -> " + server + "  (destination and source translated)", "172.20.0.4 -> " + server}, []string{"service  default/balanced, by its load balancer IP", "masqueraded", "un-SNAT"}},
		{"policy Local", "outside", "172.20.0.3/30081", "tcp", []string{worker2}, nil, []string{", on node kind-worker2\n", "source    unchanged"}},
		{"hairpin", "my-nginx-2", "10.96.118.136/80", "tcp", []string{worker2}, nil, []string{", on node kind-worker2\n", "hairpin: the endpoint would reply to itself directly"}},
		{"hairpin through another node", "my-nginx-2", "172.20.0.4/30080", "tcp", []string{worker2, controlPlane, worker2},
			[]string{"%s -> 172.20.0.4:30080", "%s -> 172.20.0.4:30080", "172.20.0.4 -> " + server + "  (destination and source translated)", "172.20.0.4 -> " + server}, []string{"un-SNAT"}},
		{"three nodes", "shell", "172.20.0.4/30080", "tcp", []string{worker, controlPlane, worker2},
			[]string{"%s -> 172.20.0.4:30080", "%s -> 172.20.0.4:30080", "172.20.0.4 -> " + server + "  (destination and source translated)", "172.20.0.4 -> " + server}, []string{"un-SNAT"}},
		{"UDP", "shell", "10.96.0.10/53", "udp", []string{worker, controlPlane},
			[]string{"%s -> 10.96.0.10:53", "%s -> 10.244.0.N:53  (destination translated)", "%s -> 10.244.0.N:53"}, []string{"service  kube-system/kube-dns:dns"}},
		{"rejected at the second node", "shell", "172.20.0.4/30082", "tcp", []string{worker, controlPlane},
			[]string{"%s -> 172.20.0.4:30082", "%s -> 172.20.0.4:30082"}, []string{"rejected: no usable endpoint in the cluster", "✗  rejected"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			script := "exec 3<>/dev/" + tt.protocol + "/" + tt.to
			if tt.protocol == "udp" {
				script += "; echo >&3"
			}
			if code, _, stderr := e2etest.Run(t, nil, "lab", "exec", "--lab", "path", tt.from, "--", "bash", "-c", script); code != 0 && !strings.HasPrefix(tt.name, "rejected") {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			address, port, _ := strings.Cut(tt.to, "/")
			filters := []string{"--lab", "path", "--source", tt.from, "--destination", address + ":" + port, "--verdict", "dnat,reject", "--limit", "1"}
			var r flow.Record
			var nodes []string
			e2etest.Eventually(t, e2etest.Timeout, "a row of "+strings.Join(tt.nodes, ", "), func() bool {
				r, nodes = flow.Record{}, nil
				out := run(t, append([]string{"flows", "-o", "jsonl", "--join"}, filters...)...)
				if out == "" {
					return false
				}
				if err := json.Unmarshal([]byte(out), &r); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				for _, hop := range nodepath.Of(&r) {
					if hop.Record != nil {
						nodes = append(nodes, hop.Node)
					}
				}
				return slices.Equal(nodes, tt.nodes)
			})
			if table := run(t, append([]string{"flows", "--no-headers"}, filters...)...); !strings.HasSuffix(table, "   "+strings.Join(tt.nodes, " → ")+"\n") || strings.Count(table, "\n") != 1 {
				t.Errorf("want one row with %s:\n%s", strings.Join(tt.nodes, " → "), table)
			}
			way := ""
			for _, o := range append([]*flow.Record{&r}, r.Others...) {
				var story string
				e2etest.Eventually(t, e2etest.Timeout, "the story of all nodes", func() bool {
					story = run(t, "flows", o.ID, "--lab", "path")
					return len(tt.nodes) == 1 || strings.Contains(story, "\nthrough "+strings.Join(tt.nodes, ", then ")+"\n")
				})
				for _, want := range tt.has {
					if !strings.Contains(story, want) {
						t.Errorf("the story of %s lacks %q:\n%s", o.Node, want, story)
					}
				}
				if tt.segments == nil {
					continue
				}
				drawn, _, _ := strings.Cut(story, "\n  reply path")
				drawn, _, _ = strings.Cut(drawn, "\n  on node ")
				if way != "" && drawn != way {
					t.Errorf("the story of %s is another one:\n%s\nwant\n%s", o.Node, drawn, way)
				}
				way = drawn
			}
			if tt.segments == nil {
				return
			}
			var got, want []string
			for line := range strings.Lines(way) {
				if segment, ok := strings.CutPrefix(line, "    │  "); ok {
					got = append(got, strings.TrimSuffix(segment, "\n"))
				}
			}
			client, _, _ := strings.Cut(r.Source, ":")
			for _, s := range tt.segments {
				want = append(want, strings.ReplaceAll(s, "%s", client))
			}
			for i := range got {
				source, after, _ := strings.Cut(got[i], " -> ")
				source, _, _ = strings.Cut(source, ":")
				got[i] = strings.NewReplacer("10.244.0.2:", "10.244.0.N:", "10.244.0.3:", "10.244.0.N:").Replace(fmt.Sprintf("%s -> %s", source, after))
			}
			if !slices.Equal(got, want) {
				t.Errorf("the packet is\n%s\nwant\n%s\nin\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"), way)
			}
		})
	}
}
