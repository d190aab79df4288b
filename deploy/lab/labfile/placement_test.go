package labfile

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/labapi"
)

const deploymentLab = `apiVersion: nfqproxy.io/v1alpha1
kind: Lab
metadata: {name: small}
networks: [{cidr: 192.0.2.0/24, gateway: 192.0.2.1}]
nodes:
- {name: a, addresses: [192.0.2.2], podCIDRs: [10.0.0.0/29]}
- {name: b, addresses: [192.0.2.3], podCIDRs: [10.0.1.0/29]}
pods: [{name: web-2, node: a, addresses: [10.0.0.3]}]
deployments: [{name: web, replicas: %d, nodes: [%s]}]
`

// TestDeployments: names and addresses that are free, on the nodes in turn, and what happens when there are none.
func TestDeployments(t *testing.T) {
	for _, test := range []struct {
		replicas   int
		nodes      string
		want, fail string
	}{
		{3, "a, b", "web-1 a 10.0.0.2, web-3 b 10.0.1.2, web-4 a 10.0.0.4", ""},
		{4, "a", "web-1 a 10.0.0.2, web-3 a 10.0.0.4, web-4 a 10.0.0.5, web-5 a 10.0.0.6", ""},
		{5, "a", "", "deployments[0]: node a has no free address in 10.0.0.0/29"}, // .7 is the broadcast address
		{1, "c", "", "deployments[0]: no node for its pods"},
		{0, "c", "", ""},
	} {
		lab, err := Parse("lab.yaml", fmt.Appendf(nil, deploymentLab, test.replicas, test.nodes))
		if test.fail != "" {
			if err == nil || !strings.Contains(err.Error(), test.fail) {
				t.Errorf("%d on %s: %v, want %s", test.replicas, test.nodes, err, test.fail)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var pods []string
		for _, p := range lab.Pods {
			if p.Deployment == "web" {
				pods = append(pods, fmt.Sprint(p.Name, " ", p.Node, " ", p.Addresses[0]))
			}
		}
		if got := strings.Join(pods, ", "); got != test.want {
			t.Errorf("%d on %s: %s, want %s", test.replicas, test.nodes, got, test.want)
		}
	}
}

// TestNamesAndAddressesCountUp: what an ended pod had does not come again, until a node has no other address.
func TestNamesAndAddressesCountUp(t *testing.T) {
	lab, err := Parse("lab.yaml", fmt.Appendf(nil, deploymentLab, 2, "a"))
	if err != nil {
		t.Fatal(err)
	}
	given := NewGiven(lab)
	d := &lab.Deployments[0]
	pods := lab.Pods // web-1 at .2, web-2 of the file at .3, web-3 at .4
	var got []string
	for range 5 {
		pods = slices.DeleteFunc(pods, func(p labapi.Pod) bool { return p.Deployment == "web" })
		added, err := lab.PodsOf(d, Placement{Pods: pods, Given: given})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range added {
			got = append(got, p.Name+" "+p.Addresses[0].String())
		}
		pods = append(pods, added...)
	}
	const want = "web-4 10.0.0.5, web-5 10.0.0.6, web-6 10.0.0.2, web-7 10.0.0.4, web-8 10.0.0.5, web-9 10.0.0.6, web-10 10.0.0.2, web-11 10.0.0.4, web-12 10.0.0.5, web-13 10.0.0.6"
	if text := strings.Join(got, ", "); text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	// A copy does not change the original.
	before := given.Clone()
	copied := given.Clone()
	if _, _, err := lab.Place(nil, Placement{Pods: pods, Given: copied}); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(before, given) || reflect.DeepEqual(copied, given) {
		t.Errorf("%v, %v, want %v", given, copied, before)
	}
	if _, _, err := lab.Place(nil, Placement{Given: copied, Unschedulable: func(string) bool { return true }}); err == nil {
		t.Error("a place on no node")
	}
}
