package labfile

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	corev1 "k8s.io/api/core/v1"
)

// loadText is Load for a text.
func loadText(text string) (*manifest.Objects, error) {
	return manifest.Options{Extension: reading}.LoadText("lab.yaml", text)
}

// write makes a file and the directories above it.
func write(t *testing.T, content string, path ...string) string {
	t.Helper()
	name := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func node(name string) string {
	return "apiVersion: v1\nkind: Node\nmetadata: {name: " + name + "}\n"
}

// kept lists the names of the nodes and pods.
func kept(o *manifest.Objects) (names []string) {
	for _, n := range o.Nodes {
		names = append(names, "Node "+n.Namespace+"/"+n.Name)
	}
	for _, p := range o.Pods {
		names = append(names, "Pod "+p.Namespace+"/"+p.Name)
	}
	return names
}

const labFile = `
apiVersion: nfqproxy.io/v1alpha1
kind: Lab
metadata: {name: small}
clusterCIDRs: [10.244.0.0/16]
networks: [{cidr: 172.20.0.0/16, gateway: 172.20.0.1}, {cidr: "fd00:172::/64", gateway: "fd00:172::1"}]
nodes:
- {name: n1, addresses: [172.20.0.2, "fd00:172::2"], podCIDRs: [10.244.1.0/24], ports: [{port: 6443}]}
- {name: n2, addresses: [172.20.0.03], podCIDRs: [10.244.2.0/24]}
pods:
- {name: web-1, node: n1, addresses: [10.244.1.2], ports: [{port: 80, protocol: TCP}]}
- {name: web-2, namespace: shop, node: n2, addresses: [10.244.2.2]}
clients: [{name: outside, addresses: [172.20.0.9], routesToPods: true}]
proxy: {masqueradeAll: true, masqueradeHairpin: false, nodePortAddresses: [172.20.0.0/16]}
`

// least is a Lab of one node.
const least = `apiVersion: nfqproxy.io/v1alpha1
kind: Lab
metadata: {name: least}
networks: [{cidr: 172.20.0.0/16, gateway: 172.20.0.1}]
nodes: [{name: a, addresses: [172.20.0.2]}]
`

func TestALabsHostsAreObjects(t *testing.T) {
	o, err := loadText(labFile)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := kept(o), []string{"Node /n1", "Node /n2", "Pod default/web-1", "Pod shop/web-2"}; !slices.Equal(got, want) {
		t.Fatalf("kept %v, want %v", got, want)
	}
	if n := o.Nodes[0]; len(n.Status.Addresses) != 2 || n.Status.Addresses[1].Address != "fd00:172::2" || !slices.Equal(n.Spec.PodCIDRs, []string{"10.244.1.0/24"}) {
		t.Errorf("node %+v", n)
	}
	if p := o.Pods[1]; p.Status.PodIP != "10.244.2.2" || p.Spec.NodeName != "n2" || len(p.Status.PodIPs) != 1 {
		t.Errorf("pod %+v", p)
	}
	if l := Of(o); l == nil || len(l.ClusterCIDRs) != 1 || len(l.Proxy.NodePortAddresses) != 1 || !l.Proxy.MasqueradeAll || !bool(l.Proxy.NoHairpinMasquerade) {
		t.Errorf("lab %+v", l)
	}
	if want := []string{`Lab: old spelling of addresses: nodes[1].addresses[0] "172.20.0.03" is read as 172.20.0.3; write them in this form`}; !slices.Equal(o.Warnings, want) {
		t.Errorf("warnings %q, want %q", o.Warnings, want)
	}
	if len(o.Skipped) > 0 {
		t.Errorf("skipped %v", o.Skipped)
	}
}

func TestObjectsGoBeforeALabs(t *testing.T) {
	o, err := loadText(labFile + `---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: a}}
spec: {podCIDR: 10.9.0.0/24}
status: {addresses: [{type: ExternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1}
status: {podIP: 10.244.1.99}
`)
	if err != nil {
		t.Fatal(err)
	}
	n := o.Nodes[0]
	var addresses []string
	for _, a := range n.Status.Addresses {
		addresses = append(addresses, a.Address)
	}
	if n.Labels["topology.kubernetes.io/zone"] != "a" || len(n.Spec.PodCIDRs) > 0 || !slices.Equal(addresses, []string{"192.0.2.1", "fd00:172::2"}) {
		t.Errorf("node %+v", n)
	}
	if p := o.Pods[0]; p.Status.PodIP != "10.244.1.99" || len(p.Status.PodIPs) > 0 {
		t.Errorf("pod %+v", p)
	}
}

func TestAFaultyLab(t *testing.T) {
	const head = "apiVersion: nfqproxy.io/v1alpha1\nkind: Lab\n"
	for text, want := range map[string]string{
		"pods: [{name: a, adresses: [10.0.0.1]}]":                                             "lab.yaml:3: document 1: Lab: pods[0].adresses: unknown field, did you mean \"addresses\"?",
		"pods: [{name: a, addresses: [10.0.0.1/8]}]":                                          `lab.yaml:3: document 1: Lab: pods[0].addresses[0]: "10.0.0.1/8" is not an IP address`,
		"pods: [{name: a, addresses: [null]}]":                                                "lab.yaml:3: document 1: Lab: pods[0].addresses[0]: want an IP address, have nothing",
		"nodes: [{name: a, ports: [{}]}]":                                                     "lab.yaml:3: document 1: Lab: nodes[0].ports[0].port: missing",
		"pods: [{name: a, readinessProbe: {httpGet: {port: http}}}]":                          `lab.yaml:3: document 1: Lab: pods[0].readinessProbe.httpGet.port: no port has the name "http"`,
		"deployments: [{name: a, replicas: 0, readinessProbe: {exec: {}}}]":                   "lab.yaml:3: document 1: Lab: deployments[0].readinessProbe: a lab supports httpGet and tcpSocket",
		"deployments: [{name: a, replicas: 0, readinessProbe: {tcpSocket: {port: 1, x: 1}}}]": "lab.yaml:3: document 1: Lab: deployments[0].readinessProbe.tcpSocket.x: unknown field; known fields: host, port",
		"proxy: {queues: 257}":                                                                "lab.yaml:3: document 1: Lab: proxy.queues: want a whole number from 1 to 256, have 257",
		"nodes: [{addresses: [10.0.0.1]}]":                                                    "lab.yaml:3: document 1: Lab: nodes[0].name: missing",
		"clusterCIDRs: [10.0.0.0]":                                                            `lab.yaml:3: document 1: Lab: clusterCIDRs[0]: "10.0.0.0" is not a CIDR (address/bits)`,
	} {
		if _, err := loadText(head + text + "\n"); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"apiVersion: nfqproxy.io/v1alpha2\nkind: Lab\n":  `lab.yaml:7: document 2: Lab: apiVersion: want nfqproxy.io/v1alpha1, have "nfqproxy.io/v1alpha2"`,
		"apiVersion: nfqproxy.io/v1alpha1\nkind: Labb\n": `lab.yaml:8: document 2: Labb: kind: no kind "Labb" (did you mean "Lab"?)`,
		least: "lab.yaml:7: document 2: Lab: a second Lab: the first is in lab.yaml: document 1",
	} {
		if _, err := loadText(least + "---\n" + text); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestTheFilesOfALabAreRead(t *testing.T) {
	dir := t.TempDir()
	write(t, node("b"), dir, "more", "b.yaml")
	c := write(t, node("c"), t.TempDir(), "c.yaml")
	lab := write(t, least+"objects: [more, "+c+"]\n", dir, "lab.yaml")
	o, err := Load([]string{lab})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{lab, filepath.Join(dir, "more", "b.yaml"), c}; !slices.Equal(o.Files, want) {
		t.Errorf("read %v, want %v", o.Files, want)
	}
	if o, err := Load([]string{lab, c, filepath.Join(dir, "more")}); err != nil || len(o.Nodes) != 3 {
		t.Errorf("given twice: %v", err)
	}
}

// TestTheFilesOfALabAreWatched changes a file that only the lab's file names.
func TestTheFilesOfALabAreWatched(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	more := write(t, node("b"), elsewhere, "b.yaml")
	lab := write(t, least+"objects: ["+more+"]\n", dir, "lab.yaml")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	published := make(chan *manifest.Objects, 100)
	ended := make(chan error, 1)
	go func() { ended <- NewSource(lab).Run(ctx, func(o *manifest.Objects, _ error) { published <- o }) }()
	for i, want := range []string{"b", "c"} {
		if i > 0 {
			write(t, node(want), elsewhere, "b.yaml")
		}
		for found := false; !found; {
			select {
			case o := <-published:
				found = o != nil && slices.ContainsFunc(o.Nodes, func(n *corev1.Node) bool { return n.Name == want })
			case <-ctx.Done():
				t.Fatalf("node %s does not come", want)
			}
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestLoadTextReadsNoFiles: a Lab in a text names files in vain.
func TestLoadTextReadsNoFiles(t *testing.T) {
	other := write(t, node("a"), t.TempDir(), "other.yaml")
	o, err := LoadText("the text", least+"objects: ["+other+"]\n")
	if err != nil || Of(o) == nil || len(o.Nodes) != 1 {
		t.Errorf("%+v, %v", o, err)
	}
}
