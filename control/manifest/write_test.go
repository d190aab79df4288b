package manifest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/kube"
)

// TestWrite: what was read and written is read as the same again; what is empty is not written.
func TestWrite(t *testing.T) {
	const text = `apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: default
spec:
  clusterIP: 10.96.0.10
  ports:
  - {port: 80, targetPort: http, protocol: TCP}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  namespace: default
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
ports:
- {name: "", port: 8080, protocol: TCP}
endpoints:
- addresses: [10.244.0.2]
  conditions: {ready: false}
---
apiVersion: v1
kind: Node
metadata: {name: node-a}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: default}
status: {podIP: 10.244.0.2}
`
	read, err := Options{Deployments: true}.LoadText("text", text)
	if err != nil {
		t.Fatal(err)
	}
	written, err := read.YAML()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Options{Deployments: true}.LoadText("written", written)
	if err != nil {
		t.Fatalf("%v\n%s", err, written)
	}
	again.Files, read.Files = nil, nil
	if diff := cmp.Diff(read, again); diff != "" {
		t.Errorf("-read +again:\n%s\n%s", diff, written)
	}

	o := &kube.Objects{
		Services: []*corev1.Service{{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "a-1", ResourceVersion: "5"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}},
		Nodes:    []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}},
	}
	const want = `apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  ports:
  - port: 80
---
apiVersion: v1
kind: Node
metadata:
  name: node-a
`
	got, err := o.YAML()
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
}
