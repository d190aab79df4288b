// Package lab runs multi-node clusters in network namespaces: nodes, pods and external
// clients with real routes between them, servers in the pods, and a daemon of this
// program on each node. Everything is in memory and ends with the process.
//
// [Load] reads a lab file (package labfile); [FromObjects] derives one from Kubernetes objects (package derivation). Package desired
// says what a running lab is to be; this package carries it out.
// [Up] starts it in a process that is already isolated (see package netns). The commands of
// "nfqproxy lab" are [RunUp], [RunDemo], [Exec], [ChangeOf], [StatusOf] and [Down].
package lab

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// The parts of a lab.
type (
	// Spec is a lab: the first document of a lab file.
	Spec = labfile.Lab
	// Network is a network of a lab.
	Network = labfile.Network
	// Port is a port that a pod listens on.
	Port = labapi.Port
	// Node is a node of a lab.
	Node = labfile.Node
	// Pod is a pod of a lab.
	Pod = labapi.Pod
	// Deployment is a number of like pods.
	Deployment = labfile.Deployment
	// Client is a machine outside the cluster.
	Client = labapi.Client
	// Proxy is the configuration of the nodes' proxies.
	Proxy = labfile.Proxy
)

// The changes of a running lab by a command, or by the flow API.
type (
	// Change is a change; exactly one field is set.
	Change = labapi.Change
	// Deletion removes an object.
	Deletion = labapi.Deletion
	// Scale gives a deployment a number of replicas.
	Scale = labapi.Scale
	// RemovePod removes a pod.
	RemovePod = labapi.PodRemoval
	// Readiness makes a pod not ready, whatever its readiness probe finds, or ends that.
	Readiness = labapi.Readiness
	// Serving stops the built-in server of a pod, or starts it again.
	Serving = labapi.Serving
	// NodeEvent is what happens to a node.
	NodeEvent = labapi.NodeEvent
	// Fault is something wrong in a running lab.
	Fault = labapi.Fault
)

// observeAll has kube-proxy serve the nodes that have nfqproxy, and nfqproxyd observe all nodes.
func observeAll(s *Spec) {
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.HasDaemon() {
			n.Proxy = labfile.KubeProxy
		}
		n.Observe = true
	}
}

// machine is a node, a pod or a client.
type machine struct {
	Answer    // its identity
	addresses []netip.Addr
	ports     []Port
}

// machinesOf are all hosts but the router.
func machinesOf(s *Spec) (all []machine) {
	for _, n := range s.Nodes {
		all = append(all, machine{Answer{Node: n.Name}, n.Addresses, n.Ports})
	}
	for _, p := range s.Pods {
		all = append(all, machine{Answer{Pod: p.FullName(), Node: p.Node}, p.Addresses, p.Ports})
	}
	for _, c := range s.Clients {
		all = append(all, machine{Answer{Host: c.Name}, c.Addresses, c.Ports})
	}
	return all
}

// devices names network devices after the host at their other end, within the kernel's
// limit of 15 bytes (IFNAMSIZ).
type devices map[string]bool

const maxDevice = 15

func (d devices) name(host string) string {
	name := host
	if len(name) > maxDevice || d[name] || name == "lo" || name == "all" || name == "default" || strings.HasPrefix(name, "eth") {
		for i := 1; ; i++ {
			suffix := fmt.Sprintf("-%d", i)
			name = host[:min(len(host), maxDevice-len(suffix))] + suffix
			if !d[name] {
				break
			}
		}
	}
	d[name] = true
	return name
}
