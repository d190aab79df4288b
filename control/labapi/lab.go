// Package labapi is what a running lab serves beside the flow API of a daemon: its state and changes, faults, requests of its hosts,
// and lessons of a course.
//
// It is a ground package.
package labapi

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// Lab is a running lab. It is safe for concurrent use. Errors of invalid changes and faults are an [*observe.Error].
type Lab interface {
	// LabStatus returns the nodes, pods, deployments, clients and faults there are now.
	LabStatus(ctx context.Context) (*Status, error)
	// Change changes the lab, and returns what has changed, in a line for each.
	Change(ctx context.Context, c Change) ([]string, error)
	// AddFault puts a fault in force, and returns it as it is listed.
	AddFault(ctx context.Context, f Fault) (Fault, error)
	// RemoveFault ends a fault by its ID; 0: all of them. It returns those that it ended.
	RemoveFault(ctx context.Context, id int) ([]Fault, error)
}

// Status describes a running lab.
type Status struct {
	Name    string                 `json:"name"`
	Nodes   []NodeStatus           `json:"nodes"`
	Pods    []PodStatus            `json:"pods"`
	Clients []observe.TopologyHost `json:"clients"`
	// Deployments are the ones whose pods are given by their number.
	Deployments []DeploymentStatus `json:"deployments,omitempty"`
	// Faults are the faults in force.
	Faults []Fault `json:"faults,omitempty"`
}

// NodeStatus describes a node.
type NodeStatus struct {
	Name      string         `json:"name"`
	Addresses []netip.Addr   `json:"addresses"`
	PodCIDRs  []netip.Prefix `json:"podCIDRs"`
	Daemon    DaemonStatus   `json:"daemon"`
	// Observer is the nfqproxyd that observes the node's proxy, which is another one; nil: there is none.
	Observer *DaemonStatus `json:"observer,omitempty"`
	// Down: it has lost its connection. Cordoned: it gets no new pods.
	Down     bool `json:"down,omitempty"`
	Cordoned bool `json:"cordoned,omitempty"`
}

// PodStatus describes a pod.
type PodStatus struct {
	observe.TopologyPod
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

// DeploymentStatus describes a deployment.
type DeploymentStatus struct {
	Name     string `json:"name"`     // namespace/name
	Replicas int    `json:"replicas"` // wanted
	Ready    int    `json:"ready"`
}

// DaemonStatus describes a node's daemon: its service proxy, or the one that observes it.
type DaemonStatus struct {
	State string `json:"state"`           // starting, ready, frozen, stopped, dead; after another proxy than nfqproxy; or only that, if it is no program
	PID   int    `json:"pid,omitempty"`   // within the lab
	Error string `json:"error,omitempty"` // how it died
}

// Change is a change of a running lab. Exactly one field is set.
type Change struct {
	// Apply is a manifest, in YAML or JSON: its objects are added, or replace those with their names.
	Apply  string    `json:"apply,omitempty"`
	Delete *Deletion `json:"delete,omitempty"`
	Scale  *Scale    `json:"scale,omitempty"`
	// AddPod adds a pod. Without addresses it gets free ones of its node, and without a node the first one that takes
	// pods.
	AddPod    *Pod        `json:"addPod,omitempty"`
	RemovePod *PodRemoval `json:"removePod,omitempty"`
	Ready     *Readiness  `json:"ready,omitempty"`
	Server    *Serving    `json:"server,omitempty"`
	Node      *NodeEvent  `json:"node,omitempty"`
}

// Check reports a change without exactly one field. The error is an [*observe.Error].
func (c *Change) Check() error {
	set := 0
	for _, is := range []bool{c.Apply != "", c.Delete != nil, c.Scale != nil, c.AddPod != nil, c.RemovePod != nil, c.Ready != nil, c.Server != nil, c.Node != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		return &observe.Error{Status: http.StatusBadRequest, Message: fmt.Sprintf("%d changes: want one of apply, delete, scale, addPod, removePod, ready, server and node", set)}
	}
	return nil
}

// Deletion removes an object.
type Deletion struct {
	Kind string `json:"kind"` // of DeletionKinds
	Name string `json:"name"` // NAMESPACE/NAME, or NAME if it is unique
}

// DeletionKinds are the kinds of a Deletion.
var DeletionKinds = []string{"Service", "EndpointSlice", "Pod", "Deployment"}

// Scale gives a deployment a number of replicas.
type Scale struct {
	Deployment string `json:"deployment"` // NAMESPACE/NAME, or NAME if it is unique
	Replicas   uint16 `json:"replicas"`   // up to MaxReplicas
}

// MaxReplicas is the greatest number of replicas of a Scale.
const MaxReplicas = 1000

// PodRemoval removes a pod. It is terminating for a time: its own or, if it is not nil, Grace.
type PodRemoval struct {
	Pod   string    `json:"pod"` // NAMESPACE/NAME, or NAME if it is unique
	Grace *Duration `json:"grace,omitempty"`
}

// MaxGrace is the longest Grace of a PodRemoval.
const MaxGrace = time.Hour

// Readiness makes a pod not ready, whatever its readiness probe finds, or ends that.
type Readiness struct {
	Pod   string `json:"pod"`
	Ready bool   `json:"ready"`
}

// Serving stops the built-in server of a pod, or starts it again.
type Serving struct {
	Pod     string `json:"pod"`
	Running bool   `json:"running"`
}

// NodeEvent is an event that a user causes on a node.
type NodeEvent struct {
	Node   string `json:"node"`
	Action string `json:"action"` // of NodeActions
	// Force: a drain also removes pods of no deployment.
	Force bool `json:"force,omitempty"`
}

// NodeActions are the actions of a NodeEvent: a node loses its connection and gets it again; its pods move to
// other nodes; it gets pods again.
var NodeActions = []string{"down", "up", "drain", "uncordon"}

// ChangeList is the flow API's response with what a change of a lab has changed.
type ChangeList struct {
	Changes []string `json:"changes"` // a line for each
}

// FaultList is the flow API's response with faults of a lab.
type FaultList struct {
	Faults []Fault `json:"faults"`
	// Kinds are the kinds of faults; none: the faults are those that were removed.
	Kinds []FaultKind `json:"kinds,omitempty"`
}
