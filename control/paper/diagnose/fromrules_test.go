package diagnose

import (
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

const nodeWithPod = `{apiVersion: v1, kind: List, items: [
{apiVersion: v1, kind: Node, metadata: {name: node-a}, status: {addresses: [{type: InternalIP, address: 192.0.2.11}], conditions: [{type: Ready, status: Unknown}]}},
{apiVersion: v1, kind: Pod, metadata: {name: db-0, namespace: shop}, spec: {nodeName: node-a, containers: [{name: db, image: db}]}, status: {phase: Running, podIP: 10.244.1.5, podIPs: [{ip: 10.244.1.5}]}},
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {clusterIP: 10.96.0.20, clusterIPs: [10.96.0.20], externalIPs: [192.0.2.50], ports: [{port: 80}]}}]}`

// TestAddAddresses: addresses of Services, of IPVS's device and of the loopback device are not the node's.
func TestAddAddresses(t *testing.T) {
	objects, err := labfile.LoadOnce(strings.NewReader(nodeWithPod), []string{"-"})
	if err != nil {
		t.Fatal(err)
	}
	var h netfilter.Host
	for _, text := range []string{
		`[{"ifname":"lo","addr_info":[{"local":"127.0.0.1","prefixlen":8}]},{"ifname":"eth0","addr_info":[{"local":"192.0.2.11","prefixlen":24},{"local":"192.0.2.50","prefixlen":32},{"local":"fe80::1","prefixlen":64}]},
		{"ifname":"cni0","addr_info":[{"local":"10.244.1.1","prefixlen":24}]},{"ifname":"kube-ipvs0","addr_info":[{"local":"10.96.0.30","prefixlen":32}]}]`,
		`[{"dst":"default","gateway":"192.0.2.1","dev":"eth0"}]`,
	} {
		if err := h.Read(strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	AddAddresses(objects, "node-a", &h)
	var got []string
	for _, a := range objects.Nodes[0].Status.Addresses {
		got = append(got, a.Address)
	}
	if want := "192.0.2.11 10.244.1.1"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
}

// TestCutOff: a node that is not ready may be off, unless a flow to its endpoint was answered.
func TestCutOff(t *testing.T) {
	objects, err := labfile.LoadOnce(strings.NewReader(nodeWithPod), []string{"-"})
	if err != nil {
		t.Fatal(err)
	}
	for _, answered := range []bool{false, true} {
		c := New(objects, servicetable.NodeConfig{})
		if answered {
			c.Observe([]*flow.Record{{Endpoint: "10.244.1.5:5432", Protocol: "TCP", Life: &flow.Life{State: flow.Closed, Answered: true}}}, time.Time{})
		}
		a, err := c.Why(Question{From: "10.244.9.9", To: "10.244.1.5:5432"})
		if err != nil {
			t.Fatal(err)
		}
		if !a.Works || (a.Unless != "") == answered {
			t.Errorf("answered %t: works %t, unless %q", answered, a.Works, a.Unless)
		}
	}
}
