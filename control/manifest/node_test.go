package manifest

import "testing"

func TestNodeAddresses(t *testing.T) {
	mustLoad(t, "a.yaml", workerNode)
	wantErrors(t, "a.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: a}\nspec: {podCIDR: 10.244.0.0, podCIDRs: [10.244.0.0/33]}\nstatus: {addresses: [{type: Hostname, address: a}, {type: InternalIP, address: a}, {type: ExternalIP, address: 192.0.2.256}]}\n",
		`a.yaml: document 1: Node a: spec.podCIDR: "10.244.0.0" is not a CIDR`,
		`a.yaml: document 1: Node a: spec.podCIDRs[0]: "10.244.0.0/33" is not a CIDR`,
		`a.yaml: document 1: Node a: status.addresses[1].address: "a" is not an IP address`,
		`a.yaml: document 1: Node a: status.addresses[2].address: "192.0.2.256" is not an IP address`)
}

func TestPodAddresses(t *testing.T) {
	p := mustLoad(t, "a.yaml", webPod).Pods[0]
	if got := p.Spec.Containers[0].Resources.Limits.Memory().Value(); got != 64<<20 {
		t.Errorf("memory limit %d, want 64 MiB", got)
	}
	if got := p.Spec.Containers[0].LivenessProbe.HTTPGet.Port.StrVal; got != "http" {
		t.Errorf("probe port %q, want http", got)
	}
	mustLoad(t, "a.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: pending}\nstatus: {phase: Pending}\n")
	wantErrors(t, "a.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nstatus: {podIP: a, hostIP: b, podIPs: [{ip: c}], hostIPs: [{ip: d}]}\n",
		`a.yaml: document 1: Pod default/p: status.podIP: "a" is not an IP address`,
		`a.yaml: document 1: Pod default/p: status.hostIP: "b" is not an IP address`,
		`a.yaml: document 1: Pod default/p: status.podIPs[0].ip: "c" is not an IP address`,
		`a.yaml: document 1: Pod default/p: status.hostIPs[0].ip: "d" is not an IP address`)
}
