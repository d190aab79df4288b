package labapi

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Port is a port that a built-in server listens on.
type Port struct {
	Name     string            `json:"name"` // for Services that name their target port
	Port     uint16            `json:"port" range:"1-65535"`
	Protocol decision.Protocol `json:"protocol"` // TCP, the default, or UDP
	Server   Server            `json:"server"`   // what listens there
}

// Server is a kind of built-in server.
type Server string

// The kinds of built-in servers.
const (
	AnswerServer Server = ""    // answers with its name and the client's address; in files also "answer"
	DNSServer    Server = "dns" // the DNS of the cluster
)

// Pod is a network namespace behind a node. Its addresses are in the node's pod
// CIDRs.
type Pod struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"` // the default is "default"
	Labels    map[string]string `json:"labels"`    // for the selectors of Services
	Node      string            `json:"node"`
	Addresses []netip.Addr      `json:"addresses"`
	Ports     []Port            `json:"ports"`
	// GracePeriodSeconds is how long the pod goes on serving after its removal; the default is 2, Kubernetes' is 30.
	GracePeriodSeconds *uint16 `json:"gracePeriodSeconds" range:"0-3600"`
	// ReadinessProbe is by HTTP or TCP, from the pod's node, with Kubernetes' defaults; nil: the pod is ready at once.
	ReadinessProbe *corev1.Probe `json:"readinessProbe"`

	// Deployment is the name of the deployment in the same namespace that the pod is of; empty: none.
	Deployment string `json:"-"`
}

// FullName is "namespace/name".
func (p *Pod) FullName() string { return p.Namespace + "/" + p.Name }

// Client is a machine outside the cluster. It has no routes to pods and service addresses,
// unless RoutesToPods is set: then it reaches pods through their nodes.
type Client struct {
	Name         string       `json:"name"`
	Addresses    []netip.Addr `json:"addresses"`
	Ports        []Port       `json:"ports"`
	RoutesToPods bool         `json:"routesToPods"`
}
