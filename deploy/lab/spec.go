// Package lab runs multi-node clusters in network namespaces: nodes, pods and external
// clients with real routes between them, servers in the pods, and a daemon of this
// program on each node. Everything is in memory and ends with the process.
//
// [Load] reads a lab file into a [Spec]; [FromObjects] derives one from Kubernetes objects.
// [Up] starts it in a process that is already isolated (see package netns). The commands of
// "nfqproxy lab" are [RunUp], [RunDemo], [Exec], [ChangeOf], [StatusOf] and [Down].
package lab

import (
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// Spec is a lab: the first document of a lab file. [Parse] returns valid ones only.
type Spec labfile.Lab

// specOf is the lab of objects; nil: they are of none.
func specOf(o *manifest.Objects) *Spec { return (*Spec)(labfile.Of(o)) }

// Configure takes over the settings of a lab; nil: there is none.
func (s *Spec) Configure(c *servicetable.NodeConfig) {
	if s == nil {
		return
	}
	c.ClusterCIDRs, c.NodePortAddresses = s.ClusterCIDRs, s.Proxy.NodePortAddresses
	c.MasqueradeAll, c.NoHairpinMasquerade = s.Proxy.MasqueradeAll, bool(s.Proxy.NoHairpinMasquerade)
	c.Balance = string(s.Proxy.Balance)
}

// The parts of a lab.
type (
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

// observe has kube-proxy serve the nodes that have nfqproxy, and nfqproxyd observe all nodes.
func (s *Spec) observe() {
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.HasDaemon() {
			n.Proxy = labfile.KubeProxy
		}
		n.Observe = true
	}
}
