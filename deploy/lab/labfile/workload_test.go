package labfile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// TestWorkloads: deployments and pods of a lab file are the same after they were objects.
func TestWorkloads(t *testing.T) {
	const text = `apiVersion: nfqproxy.io/v1alpha1
kind: Lab
metadata: {name: small}
networks: [{cidr: 192.0.2.0/24, gateway: 192.0.2.1}]
nodes: [{name: a, addresses: [192.0.2.2], podCIDRs: [10.0.0.0/24]}]
pods:
- {name: shell, node: a, addresses: [10.0.0.9]}
- {name: dns, node: a, addresses: [10.0.0.10], labels: {k: v}, gracePeriodSeconds: 7, ports: [{port: 80}, {name: dns, port: 53, protocol: UDP, server: dns}, {name: dns-tcp, port: 53, server: dns}]}
deployments:
- {name: web, namespace: shop, replicas: 2, labels: {app: web, tier: front}, nodes: [a], gracePeriodSeconds: 0, ports: [{name: http, port: 8080}], readinessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 1}}
- {name: all, readinessProbe: {tcpSocket: {port: 80}}}
`
	lab, err := Parse("lab.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for i := range lab.Deployments {
		d := &lab.Deployments[i]
		got, err := DeploymentOf(again(t, d.Object()))
		if err != nil || !reflect.DeepEqual(got, *d) {
			t.Errorf("%v: %+v, want %+v", err, got, *d)
		}
	}
	for i := range lab.Pods {
		p := lab.Pods[i]
		got, err := PodOf(again(t, PodObject(&p)))
		p.Addresses, p.Deployment = nil, ""
		if err != nil || !reflect.DeepEqual(got, p) {
			t.Errorf("%v: %+v, want %+v", err, got, p)
		}
	}
	owner := PodObject(&lab.Pods[len(lab.Pods)-1]).OwnerReferences
	if len(owner) != 1 || owner[0].Kind != "Deployment" || owner[0].Name != "all" {
		t.Errorf("the owner of a deployment's pod is %+v", owner)
	}
}

// again is an object after it was text, read by LoadApplied.
func again[T any](t *testing.T, o *T) *T {
	t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	head := `{"apiVersion": "v1", "kind": "Pod",`
	if _, ok := any(o).(*appsv1.Deployment); ok {
		head = `{"apiVersion": "apps/v1", "kind": "Deployment",`
	}
	objects, err := LoadApplied(strings.NewReader(head+string(data[1:])), []string{"-"})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := any(o).(*corev1.Pod); ok {
		return any(objects.Pods[0]).(*T)
	}
	return any(objects.Deployments[0]).(*T)
}

// TestLoadApplied: what a lab cannot have is an error with document and field; what has no meaning there is none.
func TestLoadApplied(t *testing.T) {
	const fine = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {a: b}}
spec:
  replicas: 3
  strategy: {rollingUpdate: {maxSurge: 1}}
  selector: {matchLabels: {app: web}, matchExpressions: [{key: tier, operator: Exists}]}
  template:
    metadata: {labels: {app: web, tier: front}}
    spec:
      nodeSelector: {kubernetes.io/os: linux}
      containers:
      - name: nginx
        image: nginx:1.29
        env: [{name: A, value: b}]
        resources: {limits: {memory: 1Gi}}
        ports: [{name: http, containerPort: 80}, {containerPort: 53, protocol: UDP}]
        readinessProbe: {httpGet: {path: /, port: http}}
      - {name: other, readinessProbe: {exec: {command: [a]}}}
`
	o, err := LoadApplied(nil, []string{write(t, fine+"---\napiVersion: v1\nkind: Secret\nmetadata: {name: a}\n", t.TempDir(), "a.yaml")})
	if err != nil || len(o.Deployments) != 1 || len(o.Skipped) != 1 {
		t.Fatalf("%+v, %v", o, err)
	}
	if d, err := DeploymentOf(o.Deployments[0]); err != nil || len(d.Ports) != 2 || d.Ports[0].Name != "http" || d.ReadinessProbe == nil || *d.Replicas != 3 || d.Nodes != nil || d.GracePeriodSeconds != nil {
		t.Errorf("%+v, %v", d, err)
	}
	for _, test := range []struct{ old, new, want string }{
		{"replicas: 3", "replicas: 1001", "spec.replicas: 1001: want a number from 0 to 1000"},
		{"replicas: 3", "replicas: -1", "spec.replicas: -1: want a number from 0 to 1000"},
		{"replicas: 3", "replica: 3", "spec.replica: unknown field"},
		{"matchLabels: {app: web}", "matchLabels: {app: other}", "spec.selector: it does not match spec.template.metadata.labels"},
		{"operator: Exists", "operator: Is", `spec.selector: "Is" is not a valid label selector operator`},
		{"kubernetes.io/os: linux", "disk: ssd", "spec.template.spec.nodeSelector[disk]: a lab selects nodes by the label kubernetes.io/hostname only"},
		{"containerPort: 80}", "containerPort: 80000}", "spec.template.spec.containers[0].ports[0].containerPort: 80000 is not a port number (1 to 65535)"},
		{"protocol: UDP", "protocol: SCTP", "spec.template.spec.containers[0].ports[1].protocol: SCTP: the built-in server supports TCP and UDP"},
		{"containerPort: 53, protocol: UDP", "containerPort: 80", "spec.template.spec.containers[0].ports[1]: port 80/TCP is given twice"},
		{"      containers:", "      terminationGracePeriodSeconds: 9999\n      containers:", "spec.template.spec.terminationGracePeriodSeconds: 9999: want a number from 0 to 3600"},
		{"{httpGet: {path: /, port: http}}", "{httpGet: {port: web}}", `spec.template.spec.containers[0].readinessProbe.httpGet.port: no port has the name "web"`},
		{"{httpGet: {path: /, port: http}}", "{httpGet: {port: 0}}", "spec.template.spec.containers[0].readinessProbe.httpGet.port: 0 is not a port number (1 to 65535)"},
		{"{httpGet: {path: /, port: http}}", "{httpGet: {port: 80, scheme: HTTPS}}", "spec.template.spec.containers[0].readinessProbe.httpGet.scheme: HTTPS: the built-in server supports HTTP"},
		{"{httpGet: {path: /, port: http}}", "{tcpSocket: {port: 80, host: a}}", "spec.template.spec.containers[0].readinessProbe.tcpSocket.host: a lab probes the pod's own address"},
		{"{httpGet: {path: /, port: http}}", "{tcpSocket: {port: 80}, httpGet: {port: 80}}", "spec.template.spec.containers[0].readinessProbe: httpGet and tcpSocket cannot be used together"},
		{"{httpGet: {path: /, port: http}}", "{tcpSocket: {port: 80}, periodSeconds: -1}", "spec.template.spec.containers[0].readinessProbe.periodSeconds: -1: want a number from 1 to 3600"},
		{"{exec: {command: [a]}}", "{tcpSocket: {port: 80}}", "spec.template.spec.containers[1].readinessProbe: a second readinessProbe: a pod of a lab can have one"},
		{"      nodeSelector: {kubernetes.io/os: linux}", "      affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: In, values: [ssd]}]}]}}}",
			"spec.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution: a lab supports one expression only: kubernetes.io/hostname In [...]"},
	} {
		text := strings.Replace(fine, test.old, test.new, 1)
		if text == fine {
			t.Fatalf("there is no %q", test.old)
		}
		_, err := LoadApplied(bytes.NewReader([]byte(text)), []string{"-"})
		place, problem, ok := strings.Cut(fmt.Sprint(err), ": document 1: Deployment default/web: ")
		if !ok || !strings.HasPrefix(place, "standard input:") || problem != test.want {
			t.Errorf("%s:\ngot  %v\nwant %s", test.new, err, test.want)
		}
	}
	if o, err := Load([]string{write(t, fine, t.TempDir(), "a.yaml")}); err != nil || len(o.Deployments) != 0 || len(o.Skipped) != 1 {
		t.Errorf("Load: %+v, %v", o, err)
	}
}
