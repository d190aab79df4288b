package derivation

import (
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// TestDeriveDNS: the endpoints of kube-dns serve the names of the cluster, at port 53 of the Service and whatever their
// own port is; with and without Pods that declare it. Nothing else does.
func TestDeriveDNS(t *testing.T) {
	const service = `---
{apiVersion: v1, kind: Service, metadata: {name: kube-dns, namespace: kube-system}, spec: {clusterIP: 10.96.0.10, ports: [{name: dns, port: 53, targetPort: 1053, protocol: UDP}, {name: dns-tcp, port: 53, targetPort: 1053}, {name: metrics, port: 9153}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: kube-dns-1, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}, addressType: IPv4,
 ports: [{name: dns, port: 1053, protocol: UDP}, {name: dns-tcp, port: 1053, protocol: TCP}, {name: metrics, port: 9153, protocol: TCP}],
 endpoints: [{addresses: [10.244.1.2], nodeName: node-a, targetRef: {kind: Pod, namespace: kube-system, name: coredns}}]}
`
	const pod = `---
{apiVersion: v1, kind: Pod, metadata: {name: coredns, namespace: kube-system}, spec: {nodeName: node-a, containers: [{name: c, ports: [{containerPort: 1053, protocol: UDP}, {containerPort: 1053}, {containerPort: 9153}]}]}, status: {phase: Running, podIP: 10.244.1.2}}
`
	want := []labapi.Port{{Port: 1053, Protocol: decision.UDP, Server: labapi.DNSServer}, {Port: 1053, Protocol: decision.TCP, Server: labapi.DNSServer}, {Port: 9153, Protocol: decision.TCP}}
	node := nodeObject("node-a", "172.20.0.2", "10.244.1.0/24")
	for name, text := range map[string]string{
		"endpoints alone":         node + service,
		"a Pod with its ports":    node + pod + service,
		"a Pod without its ports": node + strings.Replace(pod, ", ports: [{containerPort: 1053, protocol: UDP}, {containerPort: 1053}, {containerPort: 9153}]", "", 1) + service,
	} {
		t.Run(name, func(t *testing.T) {
			s := derived(t, text)
			var got []labapi.Port
			for _, p := range s.Pods {
				if p.FullName() == "kube-system/coredns" {
					got = p.Ports
				} else if len(p.Ports) > 0 {
					t.Errorf("pod %s serves %v", p.FullName(), p.Ports)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("ports %v, want %v", got, want)
			}
		})
	}
	other := strings.ReplaceAll(service, "name: kube-dns", "name: other-dns")
	s := derived(t, node+strings.ReplaceAll(other, "service-name: kube-dns", "service-name: other-dns"))
	for _, p := range s.Pods {
		for _, port := range p.Ports {
			if port.Server != labapi.AnswerServer {
				t.Errorf("pod %s of another Service: %v", p.FullName(), port)
			}
		}
	}
}
