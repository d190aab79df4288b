package web_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
)

// fakeLab is the lab of a fake's cluster. Its changes change what it lists, and nothing else.
type fakeLab struct {
	mu     sync.Mutex
	status labapi.Status
	last   int // the number of the last fault
	// changes are those that were made.
	changes []labapi.Change
}

// newFakeLab has the world's nodes and pods, of which those of the namespace shop are of deployments.
func newFakeLab(w *world) *fakeLab {
	l := &fakeLab{status: labapi.Status{Name: "shop", Clients: w.hosts}}
	for _, n := range w.nodes {
		l.status.Nodes = append(l.status.Nodes, labapi.NodeStatus{Name: n.name, Addresses: n.addresses, PodCIDRs: n.cidrs, Daemon: labapi.DaemonStatus{State: "ready", PID: 1}})
	}
	for _, p := range w.pods {
		pod := labapi.PodStatus{TopologyPod: p, State: labapi.PodReady, Server: labapi.ServerRuns}
		if parts := strings.Split(p.Name, "-"); strings.HasPrefix(p.Name, "shop/") && len(parts) == 3 {
			pod.Deployment = parts[0]
		}
		l.status.Pods = append(l.status.Pods, pod)
		if i := slices.IndexFunc(l.status.Deployments, func(d labapi.DeploymentStatus) bool { return d.Name == pod.Deployment }); i >= 0 {
			l.status.Deployments[i].Replicas++
		} else if pod.Deployment != "" {
			l.status.Deployments = append(l.status.Deployments, labapi.DeploymentStatus{Name: pod.Deployment, Replicas: 1})
		}
	}
	l.count()
	return l
}

// count counts the ready pods.
func (l *fakeLab) count() {
	for i := range l.status.Deployments {
		d := &l.status.Deployments[i]
		d.Ready = 0
		for _, p := range l.status.Pods {
			if p.Deployment == d.Name && p.State == labapi.PodReady {
				d.Ready++
			}
		}
	}
}

// made returns the changes so far.
func (l *fakeLab) made() []labapi.Change {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.changes)
}

// LabStatus returns a copy.
func (l *fakeLab) LabStatus(context.Context) (*labapi.Status, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.status
	s.Nodes, s.Pods, s.Deployments, s.Faults = slices.Clone(s.Nodes), slices.Clone(s.Pods), slices.Clone(s.Deployments), slices.Clone(s.Faults)
	return &s, nil
}

// Change changes what is listed.
func (l *fakeLab) Change(_ context.Context, c labapi.Change) ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.count()
	l.changes = append(l.changes, c)
	wrong := func(field, message string) ([]string, error) {
		return nil, &observe.Error{Status: http.StatusBadRequest, Field: field, Message: message}
	}
	pod := func(name string) *labapi.PodStatus {
		return &l.status.Pods[slices.IndexFunc(l.status.Pods, func(p labapi.PodStatus) bool { return p.Name == name })]
	}
	switch {
	case strings.HasPrefix(c.Apply, "apiVersion: v1\nkind: Service\n"):
		return []string{"Service default/web2 is added"}, nil
	case c.Apply != "":
		return wrong("apply", "manifest: document 1: apiVersion: missing: not a Kubernetes object")
	case c.Scale != nil:
		i := slices.IndexFunc(l.status.Deployments, func(d labapi.DeploymentStatus) bool { return d.Name == c.Scale.Deployment })
		before := l.status.Deployments[i].Replicas
		l.status.Deployments[i].Replicas = int(c.Scale.Replicas)
		return []string{fmt.Sprintf("deployment %s: %d replicas, had %d", c.Scale.Deployment, c.Scale.Replicas, before)}, nil
	case c.AddPod != nil && c.AddPod.Name == "Web":
		return wrong("", `pod default/Web: "Web" is not a valid name`)
	case c.AddPod != nil:
		l.status.Pods = append(l.status.Pods, labapi.PodStatus{TopologyPod: observe.TopologyPod{Name: c.AddPod.FullName(), Node: c.AddPod.Node, Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.7")}}, State: labapi.PodReady})
		return []string{fmt.Sprintf("pod %s is added on %s with 10.244.1.7", c.AddPod.FullName(), c.AddPod.Node)}, nil
	case c.RemovePod != nil:
		pod(c.RemovePod.Pod).State = labapi.PodTerminating
		return []string{fmt.Sprintf("pod %s is terminating, and ends in 2s", c.RemovePod.Pod)}, nil
	case c.Delete != nil && c.Delete.Name != "web2":
		return wrong("delete.name", fmt.Sprintf("no %s %q", c.Delete.Kind, c.Delete.Name))
	case c.Delete != nil:
		return []string{c.Delete.Kind + " default/web2 is removed"}, nil
	case c.Server != nil:
		pod(c.Server.Pod).Server = map[bool]string{false: labapi.ServerStopped, true: labapi.ServerRuns}[c.Server.Running]
		return []string{fmt.Sprintf("the server of pod %s is %s", c.Server.Pod, pod(c.Server.Pod).Server)}, nil
	case c.Ready != nil && c.Ready.Ready:
		pod(c.Ready.Pod).State = labapi.PodReady
		return []string{fmt.Sprintf("pod %s is ready", c.Ready.Pod)}, nil
	case c.Ready != nil:
		pod(c.Ready.Pod).State = labapi.PodUnready
		return []string{fmt.Sprintf("pod %s is not ready", c.Ready.Pod)}, nil
	}
	n := &l.status.Nodes[slices.IndexFunc(l.status.Nodes, func(n labapi.NodeStatus) bool { return n.Name == c.Node.Node })]
	switch c.Node.Action {
	case "down", "up":
		n.Down = c.Node.Action == "down"
	default:
		n.Cordoned = c.Node.Action == "drain"
	}
	return []string{fmt.Sprintf("node %s: %s", n.Name, c.Node.Action)}, nil
}

// AddFault lists a valid fault.
func (l *fakeLab) AddFault(_ context.Context, f labapi.Fault) (labapi.Fault, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := f.Check(); err != nil {
		return f, err
	}
	l.last++
	f.ID, f.Text = l.last, f.String()
	l.status.Faults = append(l.status.Faults, f)
	return f, nil
}

// RemoveFault lists it no more.
func (l *fakeLab) RemoveFault(_ context.Context, id int) (ended []labapi.Fault, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status.Faults = slices.DeleteFunc(l.status.Faults, func(f labapi.Fault) bool {
		if id != 0 && f.ID != id {
			return false
		}
		ended = append(ended, f)
		return true
	})
	return ended, nil
}
