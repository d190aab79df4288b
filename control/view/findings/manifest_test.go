package findings_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/control/view/findings"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
)

const service = `apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
spec:
  clusterIP: 10.96.0.10
  clusterIPs:
  - 10.96.0.10
  internalTrafficPolicy: Cluster
  ports:
  - port: 80
    protocol: TCP
    targetPort: 8080
  sessionAffinity: None
  type: ClusterIP
`

const endpointSlice = `addressType: IPv4
apiVersion: discovery.k8s.io/v1
endpoints:
- addresses:
  - 10.244.1.2
  conditions: {}
kind: EndpointSlice
metadata:
  labels:
    kubernetes.io/service-name: web
  name: web-1
  namespace: shop
ports:
- name: ""
  port: 8080
  protocol: TCP
`

// TestManifest: the objects of a Service are as they were written, without those of others.
func TestManifest(t *testing.T) {
	added := strings.Replace(service, "  name: web\n", "  name: web\n  uid: a-1\n  resourceVersion: \"5\"\n  creationTimestamp: 2026-01-02T03:04:05Z\n", 1)
	others := strings.ReplaceAll(strings.ReplaceAll(service, "10.96.0.10", "10.96.0.11")+"---\n"+endpointSlice, "web", "other")
	file := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, []byte(endpointSlice+"---\n"+others+"---\n"+added), 0o600); err != nil {
		t.Fatal(err)
	}
	objects, err := manifest.Load([]string{file})
	if err != nil {
		t.Fatal(err)
	}
	d := &findings.Doctor{Objects: func(context.Context) (*manifest.Objects, servicetable.NodeConfig, error) {
		return objects, servicetable.NodeConfig{}, nil
	}}
	m, err := d.Manifest(t.Context(), "shop", "web")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&remote.Manifest{Service: "shop/web", YAML: service + "---\n" + endpointSlice}, m); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	var e *observe.Error
	if _, err := d.Manifest(t.Context(), "shop", "none"); !errors.As(err, &e) || e.Status != 404 || e.Message != "Service shop/none not found" {
		t.Error(err)
	}
	if _, err := new(findings.Doctor).Manifest(t.Context(), "shop", "web"); !errors.As(err, &e) || e.Status != 404 {
		t.Error(err)
	}
}
