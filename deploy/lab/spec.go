// Package lab runs multi-node clusters in network namespaces: nodes, pods and external
// clients with real routes between them, servers in the pods, and a daemon of this
// program on each node. Everything is in memory and ends with the process.
//
// [Load] reads a lab file into a [Spec]; [FromObjects] derives one from Kubernetes objects.
// [Up] starts it in a process that is already isolated (see package netns). The commands of
// "nfqproxy lab" are [RunUp], [RunDemo], [Exec], [StatusOf] and [Down].
package lab

import (
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// APIVersion and Kind identify the first document of a lab file.
const (
	APIVersion = "nfqproxy.dev/v1alpha1"
	Kind       = "Lab"
)

// Spec is a lab: the first document of a lab file. [Parse] returns valid ones only.
type Spec struct {
	Name         string
	ClusterCIDRs []netip.Prefix // of the pods
	Networks     []Network
	Nodes        []Node
	Pods         []Pod
	Clients      []Client
	Proxy        Proxy
	// Objects are files and directories with Kubernetes objects besides the lab
	// file, as it names them: relative to its directory.
	Objects []string
}

// Network is a subnet of nodes and clients. All networks share one wire, the fabric, which
// is also the router between them.
type Network struct {
	CIDR    netip.Prefix
	Gateway netip.Addr // the fabric's address
}

// Port is a port that a built-in server listens on.
type Port struct {
	Port     uint16
	Protocol decision.Protocol // TCP or UDP
}

// Node is a machine of the cluster; it runs a daemon. It has at most one address
// of each family, each in one of the networks.
type Node struct {
	Name      string
	Addresses []netip.Addr
	// PodCIDRs are the prefixes of its pods: at most one prefix per family, whose first
	// address is the pods' gateway, and any number of single addresses, whose gateway is
	// the node's own address.
	PodCIDRs []netip.Prefix
	Ports    []Port // served on the node's own addresses
}

// Pod is a network namespace behind a node. Its addresses are in the node's pod
// CIDRs.
type Pod struct {
	Name      string
	Namespace string
	Node      string
	Addresses []netip.Addr
	Ports     []Port
}

// FullName is "namespace/name".
func (p *Pod) FullName() string { return p.Namespace + "/" + p.Name }

// Client is a machine outside the cluster. It has no routes to pods and service addresses,
// unless RoutesToPods is set: then it reaches pods through their nodes.
type Client struct {
	Name         string
	Addresses    []netip.Addr
	Ports        []Port
	RoutesToPods bool
}

// Proxy are options of the nodes' daemons.
type Proxy struct {
	Seed          *uint64 // nil: random
	Queues        uint16  // 0: the daemon's default
	MasqueradeAll bool
	// NoHairpinMasquerade breaks the flows of pods to themselves, to show why they are
	// masqueraded: "masqueradeHairpin: false" in the file.
	NoHairpinMasquerade bool
	NodePortAddresses   []netip.Prefix
}
