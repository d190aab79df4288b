package desired

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

const small = `apiVersion: nfqproxy.io/v1alpha1
kind: Lab
metadata: {name: small}
networks: [{cidr: 192.0.2.0/24, gateway: 192.0.2.1}]
nodes:
- {name: node-a, addresses: [192.0.2.2], podCIDRs: [10.244.0.0/24]}
pods:
- {name: web-1, node: node-a, addresses: [10.244.0.2], ports: [{port: 8080}]}
- {name: web-2, node: node-a, addresses: [10.244.0.3], ports: [{port: 8080}]}
---
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-x, labels: {kubernetes.io/service-name: web}}, addressType: IPv4,
 ports: [{port: 8080}], endpoints: [{addresses: [10.244.0.2]}, {addresses: [10.244.0.3]}]}
`

// TestTakeOver: a file whose EndpointSlices differ from what the controller would make is in force as it is.
func TestTakeOver(t *testing.T) {
	for text, want := range map[string]bool{small: true, strings.Replace(small, "port: 8080}], endpoints", "port: 8081}], endpoints", 1): false} {
		path := filepath.Join(t.TempDir(), "lab.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		written, err := labfile.NewWrittenSource(path).Load()
		if err != nil {
			t.Fatal(err)
		}
		if own := takeOver(written); own.services["default/web"] != want {
			t.Errorf("taken over: %t, want %t\n%s", !want, want, text)
		}
	}
}
