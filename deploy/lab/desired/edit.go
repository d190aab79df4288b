package desired

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// Edit puts the files' new contents in force: what differs from the files before. What commands have changed stays, unless the
// files change the same. changes is what was changed, notApplied what requires a restart of the lab.
func (s *State) Edit(written *manifest.Objects, now time.Time) (changes, notApplied []string) {
	add := func(format string, args ...any) { changes = append(changes, fmt.Sprintf(format, args...)) }
	from, to := labfile.Of(s.Written), labfile.Of(written)
	notApplied = fixedFields(s.start, to)
	s.editDeployments(from, to, now, add)
	for _, p := range s.editPods(from, to, now, add) {
		notApplied = append(notApplied, fmt.Sprintf("pod %s is on node %s in the file, which is not in the running lab", p.FullName(), p.Node))
	}
	s.editClients(from, to, add)
	dropChanged(s.applied.services, s.Written.Services, written.Services, add, "Service")
	dropChanged(s.applied.slices, s.Written.EndpointSlices, written.EndpointSlices, add, "EndpointSlice")
	s.write(s.withNodes(written))
	return changes, notApplied
}

// withNodes are objects of the files with the nodes that only the running lab has: there are pods on them.
func (s *State) withNodes(written *manifest.Objects) *manifest.Objects {
	all := *written
	for _, n := range s.Written.Nodes {
		named := func(other *corev1.Node) bool { return other.Name == n.Name }
		if !slices.ContainsFunc(written.Nodes, named) && slices.ContainsFunc(s.start.Nodes, func(h labfile.Node) bool { return h.Name == n.Name }) {
			all.Nodes = append(slices.Clip(all.Nodes), n)
		}
	}
	return &all
}

// differences compares hosts by name.
func differences[T any](from, to []T, name func(*T) string) (added, changed, removed []*T) {
	before := make(map[string]*T)
	for i := range from {
		before[name(&from[i])] = &from[i]
	}
	for i := range to {
		n := name(&to[i])
		switch old, ok := before[n]; {
		case !ok:
			added = append(added, &to[i])
		case !reflect.DeepEqual(*old, to[i]):
			changed = append(changed, &to[i])
		}
		delete(before, n)
	}
	for i := range from {
		if before[name(&from[i])] != nil {
			removed = append(removed, &from[i])
		}
	}
	return added, changed, removed
}

func (s *State) editDeployments(from, to *labfile.Lab, now time.Time, add func(string, ...any)) {
	added, changed, removed := differences(from.Deployments, to.Deployments, (*labfile.Deployment).FullName)
	for _, d := range removed {
		s.removeDeployment(d, now, add)
	}
	for _, d := range append(added, changed...) {
		s.setDeployment(d, now, add)
	}
}

// removeDeployment removes a deployment, if the lab still has it.
func (s *State) removeDeployment(d *labfile.Deployment, now time.Time, add func(string, ...any)) {
	before := len(s.Lab.Deployments)
	s.Lab.Deployments = slices.DeleteFunc(s.Lab.Deployments, func(e labfile.Deployment) bool { return e.FullName() == d.FullName() })
	if len(s.Lab.Deployments) < before {
		add("deployment %s is removed", d.FullName())
		s.endPodsOf(d, now, add)
	}
}

// setDeployment adds a deployment, or changes the one with its name.
func (s *State) setDeployment(d *labfile.Deployment, now time.Time, add func(string, ...any)) {
	i := slices.IndexFunc(s.Lab.Deployments, func(e labfile.Deployment) bool { return e.FullName() == d.FullName() })
	if i < 0 {
		s.Lab.Deployments = append(s.Lab.Deployments, *d)
		add("deployment %s is added", d.FullName())
		return
	}
	old := s.Lab.Deployments[i]
	if reflect.DeepEqual(old, *d) {
		add("deployment %s is unchanged", d.FullName())
		return
	}
	s.Lab.Deployments[i] = *d
	add("deployment %s is changed", d.FullName())
	// Other pods are necessary, unless only their number changed.
	if old.Replicas = d.Replicas; !reflect.DeepEqual(old, *d) {
		s.endPodsOf(d, now, add)
	}
}

func (s *State) endPodsOf(d *labfile.Deployment, now time.Time, add func(string, ...any)) {
	for _, p := range s.podsOf(d) {
		add("%s", s.end(p, now, nil))
	}
}

// singlePods are the pods of a spec that are of no deployment.
func singlePods(s *labfile.Lab) (all []labapi.Pod) {
	for _, p := range s.Pods {
		if p.Deployment == "" {
			all = append(all, p)
		}
	}
	return all
}

// editPods returns the pods that the lab has no node for.
func (s *State) editPods(from, to *labfile.Lab, now time.Time, add func(string, ...any)) (homeless []*labapi.Pod) {
	added, changed, removed := differences(singlePods(from), singlePods(to), (*labapi.Pod).FullName)
	for _, p := range removed {
		if own := s.Pod(p.FullName()); own != nil {
			add("%s", s.end(own, now, nil))
		}
	}
	for _, p := range append(added, changed...) {
		if !slices.ContainsFunc(s.Lab.Nodes, func(n labfile.Node) bool { return n.Name == p.Node }) {
			homeless = append(homeless, p)
			continue
		}
		if own := s.Pod(p.FullName()); own != nil {
			*own = *p
			before := s.pods[p.FullName()]
			s.pods[p.FullName()] = podState{probe: before.probe, failure: before.failure}
			add("pod %s is replaced", p.FullName())
			continue
		}
		s.Lab.Pods = append(s.Lab.Pods, *p)
		add("pod %s is added on %s with %s", p.FullName(), p.Node, strings.Trim(fmt.Sprint(p.Addresses), "[]"))
	}
	return homeless
}

func (s *State) editClients(from, to *labfile.Lab, add func(string, ...any)) {
	added, changed, removed := differences(from.Clients, to.Clients, func(c *labapi.Client) string { return c.Name })
	for _, c := range append(removed, changed...) {
		s.Lab.Clients = slices.DeleteFunc(s.Lab.Clients, func(e labapi.Client) bool { return e.Name == c.Name })
	}
	for _, c := range append(added, changed...) {
		s.Lab.Clients = append(s.Lab.Clients, *c)
	}
	for _, c := range removed {
		add("client %s is removed", c.Name)
	}
	for _, c := range added {
		add("client %s is added with %s", c.Name, strings.Trim(fmt.Sprint(c.Addresses), "[]"))
	}
	for _, c := range changed {
		add("client %s is replaced", c.Name)
	}
}

// dropChanged removes objects of commands that the files have changed since.
func dropChanged[T object](applied map[string]T, from, to []T, add func(string, ...any), kind string) {
	find := func(list []T, name string) (o T) {
		if i := slices.IndexFunc(list, func(o T) bool { return nameOf(o) == name }); i >= 0 {
			o = list[i]
		}
		return o
	}
	for name := range applied {
		if !reflect.DeepEqual(find(from, name), find(to, name)) {
			delete(applied, name)
			add("%s %s is that of the file again", kind, name)
		}
	}
}

// fixedFields are the differences to another spec that a running lab does not apply.
func fixedFields(s, to *labfile.Lab) (all []string) {
	added, changed, removed := differences(s.Nodes, to.Nodes, func(n *labfile.Node) string { return n.Name })
	for _, n := range added {
		all = append(all, fmt.Sprintf("node %s is new in the file: not in the running lab", n.Name))
	}
	for _, n := range changed {
		all = append(all, fmt.Sprintf("node %s is changed in the file: unchanged in the running lab", n.Name))
	}
	for _, n := range removed {
		all = append(all, fmt.Sprintf("node %s is removed from the file: still in the running lab", n.Name))
	}
	for _, f := range []struct {
		field  string
		differ bool
	}{
		{"metadata.name", s.Name != to.Name}, {"networks", !reflect.DeepEqual(s.Networks, to.Networks)},
		{"clusterCIDRs", !reflect.DeepEqual(s.ClusterCIDRs, to.ClusterCIDRs)}, {"proxy", !reflect.DeepEqual(s.Proxy, to.Proxy)},
	} {
		if f.differ {
			all = append(all, fmt.Sprintf("%s is changed in the file: unchanged in the running lab", f.field))
		}
	}
	return all
}
