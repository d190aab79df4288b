package observe

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"time"
)

// Lab is a running lab. It is safe for concurrent use. Errors of invalid changes and faults are an [*Error].
type Lab interface {
	// LabStatus returns the nodes, pods, deployments, clients and faults there are now.
	LabStatus(ctx context.Context) (*LabStatus, error)
	// Change changes the lab, and returns what has changed, in a line for each.
	Change(ctx context.Context, c LabChange) ([]string, error)
	// AddFault puts a fault in force, and returns it as it is listed.
	AddFault(ctx context.Context, f Fault) (Fault, error)
	// RemoveFault ends a fault by its ID; 0: all of them. It returns those that it ended.
	RemoveFault(ctx context.Context, id int) ([]Fault, error)
}

// LabStatus is what a running lab consists of.
type LabStatus struct {
	Name    string          `json:"name"`
	Nodes   []LabNodeStatus `json:"nodes"`
	Pods    []LabPodStatus  `json:"pods"`
	Clients []TopologyHost  `json:"clients"`
	// Deployments are those with pods by their number.
	Deployments []LabDeploymentStatus `json:"deployments,omitempty"`
	// Faults are those that were added, and are in force.
	Faults []Fault `json:"faults,omitempty"`
}

// LabNodeStatus describes a node.
type LabNodeStatus struct {
	Name      string          `json:"name"`
	Addresses []netip.Addr    `json:"addresses"`
	PodCIDRs  []netip.Prefix  `json:"podCIDRs"`
	Daemon    LabDaemonStatus `json:"daemon"`
	// Down: it has lost its connection. Cordoned: it gets no new pods.
	Down     bool `json:"down,omitempty"`
	Cordoned bool `json:"cordoned,omitempty"`
}

// LabPodStatus describes a pod.
type LabPodStatus struct {
	TopologyPod
	State string `json:"state"` // see the Pod constants
	// Deployment is the namespace/name of the pod's deployment; empty: it is of none.
	Deployment string `json:"deployment,omitempty"`
	// Server is the state of its built-in server; empty: it has none.
	Server string `json:"server,omitempty"`
}

// The states of a pod's server.
const (
	ServerRuns    = "running"
	ServerStopped = "stopped"
)

// The states of a pod.
const (
	PodReady       = "ready"
	PodUnready     = "not ready"
	PodTerminating = "terminating"
)

// LabDeploymentStatus describes a deployment.
type LabDeploymentStatus struct {
	Name     string `json:"name"`     // namespace/name
	Replicas int    `json:"replicas"` // wanted
	Ready    int    `json:"ready"`
}

// LabDaemonStatus describes a node's daemon.
type LabDaemonStatus struct {
	State string `json:"state"`           // starting, ready, frozen, stopped, dead; after another proxy than nfqproxy; or only that, if it is no program
	PID   int    `json:"pid,omitempty"`   // within the lab
	Error string `json:"error,omitempty"` // how it died
}

// LabChange is a change of a running lab. Exactly one field is set.
type LabChange struct {
	// Apply is a manifest, in YAML or JSON: its objects are added, or replace those with their names.
	Apply  string       `json:"apply,omitempty"`
	Delete *LabDeletion `json:"delete,omitempty"`
	Scale  *LabScale    `json:"scale,omitempty"`
	// AddPod adds a pod. Without addresses it gets free ones of its node, and without a node the first one that takes
	// pods.
	AddPod    *LabPod        `json:"addPod,omitempty"`
	RemovePod *LabPodRemoval `json:"removePod,omitempty"`
	Ready     *LabReadiness  `json:"ready,omitempty"`
	Server    *LabServing    `json:"server,omitempty"`
	Node      *LabNodeEvent  `json:"node,omitempty"`
}

// Check reports a change without exactly one field. The error is an [*Error].
func (c *LabChange) Check() error {
	set := 0
	for _, is := range []bool{c.Apply != "", c.Delete != nil, c.Scale != nil, c.AddPod != nil, c.RemovePod != nil, c.Ready != nil, c.Server != nil, c.Node != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		return &Error{Status: http.StatusBadRequest, Message: fmt.Sprintf("%d changes: want one of apply, delete, scale, addPod, removePod, ready, server and node", set)}
	}
	return nil
}

// LabDeletion removes an object.
type LabDeletion struct {
	Kind string `json:"kind"` // of LabDeletionKinds
	Name string `json:"name"` // NAMESPACE/NAME, or NAME if it is unique
}

// LabDeletionKinds are the kinds of a LabDeletion.
var LabDeletionKinds = []string{"Service", "EndpointSlice", "Pod", "Deployment"}

// LabScale gives a deployment a number of replicas.
type LabScale struct {
	Deployment string `json:"deployment"` // NAMESPACE/NAME, or NAME if it is unique
	Replicas   uint16 `json:"replicas"`   // up to MaxReplicas
}

// MaxReplicas is the greatest number of replicas of a LabScale.
const MaxReplicas = 1000

// LabPodRemoval removes a pod. It is terminating for a time: its own or, if it is not nil, Grace.
type LabPodRemoval struct {
	Pod   string    `json:"pod"` // NAMESPACE/NAME, or NAME if it is unique
	Grace *Duration `json:"grace,omitempty"`
}

// MaxGrace is the longest Grace of a LabPodRemoval.
const MaxGrace = time.Hour

// LabReadiness makes a pod not ready, whatever its readiness probe finds, or ends that.
type LabReadiness struct {
	Pod   string `json:"pod"`
	Ready bool   `json:"ready"`
}

// LabServing stops the built-in server of a pod, or starts it again.
type LabServing struct {
	Pod     string `json:"pod"`
	Running bool   `json:"running"`
}

// LabNodeEvent is what happens to a node.
type LabNodeEvent struct {
	Node   string `json:"node"`
	Action string `json:"action"` // of LabNodeActions
	// Force: a drain also removes pods of no deployment.
	Force bool `json:"force,omitempty"`
}

// LabNodeActions are the actions of a LabNodeEvent: a node loses its connection and gets it again; its pods move to
// other nodes; it gets pods again.
var LabNodeActions = []string{"down", "up", "drain", "uncordon"}
