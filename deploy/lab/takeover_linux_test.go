package lab

import (
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/labapi"
)

const taken = `apiVersion: nfqproxy.io/v1alpha1
kind: Lab
metadata: {name: taken}
clusterCIDRs: [10.244.0.0/16]
networks: [{cidr: 192.0.2.0/24, gateway: 192.0.2.1}]
nodes:
- {name: node-a, addresses: [192.0.2.2], podCIDRs: [10.244.0.0/24]}
- {name: node-b, addresses: [192.0.2.3], podCIDRs: [10.244.1.0/24]}
pods:
- {name: web-1, node: node-a, addresses: [10.244.0.2], ports: [{port: 8080}]}
- {name: web-2, node: node-b, addresses: [10.244.1.2], ports: [{port: 8080}]}
- {name: web-3, node: node-b, addresses: [10.244.1.3], ports: [{port: 8080}]}
---
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-x, labels: {kubernetes.io/service-name: web}}, addressType: IPv4,
 ports: [{port: 8080}], endpoints: [{addresses: [10.244.0.2]}, {addresses: [10.244.1.2], conditions: {ready: true}}, {addresses: [10.244.1.3]}]}
---
{apiVersion: v1, kind: Service, metadata: {name: hand}, spec: {ports: [{port: 80, targetPort: 8080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: hand, labels: {kubernetes.io/service-name: hand}}, addressType: IPv4,
 ports: [{port: 8080}], endpoints: [{addresses: [10.244.0.2]}, {addresses: [10.244.1.2]}]}
---
{apiVersion: v1, kind: Service, metadata: {name: other}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: other, labels: {kubernetes.io/service-name: other}}, addressType: IPv4,
 ports: [{port: 8081}], endpoints: [{addresses: [10.244.1.2]}]}
`

// TestTakeOver: the controller owns the EndpointSlices of a file that are those of a selector, and keeps their names. A change
// that others ignore says so.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	l := newLivingLabOf(t, taken)
	ready := func(service string) string {
		var all []string
		for _, s := range l.Objects().EndpointSlices {
			if s.Labels[discoveryv1.LabelServiceName] != service {
				continue
			}
			for _, e := range s.Endpoints {
				if e.Conditions.Ready == nil || *e.Conditions.Ready {
					all = append(all, s.Name+" "+e.Addresses[0])
				}
			}
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	expect := func(service, want string) {
		t.Helper()
		if got := ready(service); got != want {
			t.Errorf("endpoints of %s: %q, want %q", service, got, want)
		}
	}
	const hand, other = "hand 10.244.0.2, hand 10.244.1.2", "other 10.244.1.2"
	ignored := func(c Change, want ...string) {
		t.Helper()
		var got []string
		for _, line := range l.do(c) {
			if strings.HasPrefix(line, "EndpointSlice ") {
				got = append(got, line)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
		expect("hand", hand)
		expect("other", other)
	}
	const unselected = "EndpointSlice default/hand is not changed, and still has default/web-2 as ready: Service default/hand has no selector; change it in the file, or with lab apply"
	const unlike = "EndpointSlice default/other is not changed, and still has default/web-2 as ready: Service default/other has EndpointSlices that no controller would make of its pods; change it in the file, or with lab apply"
	expect("web", "web-x 10.244.0.2, web-x 10.244.1.2, web-x 10.244.1.3")
	ignored(Change{Ready: &Readiness{Pod: "web-3"}})
	expect("web", "web-x 10.244.0.2, web-x 10.244.1.2")
	ignored(Change{Node: &NodeEvent{Node: "node-b", Action: "down"}}, unselected, unlike)
	expect("web", "web-x 10.244.0.2")
	ignored(Change{Node: &NodeEvent{Node: "node-b", Action: "up"}})
	expect("web", "web-x 10.244.0.2, web-x 10.244.1.2")
	ignored(Change{RemovePod: &RemovePod{Pod: "web-2", Grace: new(labapi.Duration(0))}}, unselected, unlike)
	expect("web", "web-x 10.244.0.2")
}
