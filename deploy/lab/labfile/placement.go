package labfile

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/labapi"
)

// Deployment is a number of like pods. Their names are NAME-1, NAME-2 and so on; they are on the nodes in turn.
type Deployment struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"` // the default is "default"
	Replicas  *uint16           `json:"replicas" range:"0-1000"`
	Labels    map[string]string `json:"labels"` // of the pods; the default is {app: NAME}
	Nodes     []string          `json:"nodes"`  // the default is all
	Ports     []labapi.Port     `json:"ports"`
	// GracePeriodSeconds is that of the pods, see LabPod.
	GracePeriodSeconds *uint16 `json:"gracePeriodSeconds" range:"0-3600"`
	// ReadinessProbe is that of the pods, see LabPod.
	ReadinessProbe *corev1.Probe `json:"readinessProbe"`
}

// FullName is "namespace/name".
func (d *Deployment) FullName() string { return d.Namespace + "/" + d.Name }

// Placement is what decides about the names, nodes and addresses of further pods of a lab.
type Placement struct {
	Pods []labapi.Pod // the existing ones
	// Unschedulable nodes get no pods; nil: all get some.
	Unschedulable func(node string) bool
	// Given are the names and addresses that pods got before, and is changed.
	Given *Given
}

// Given are the names and addresses that pods got, so that those of ended pods do not come again at once.
type Given struct {
	numbers   map[string]int              // the last one of a deployment's pods, by its full name
	addresses map[netip.Prefix]netip.Addr // the last one of a node's prefix
}

// NewGiven is what the pods of the deployments of a lab got.
func NewGiven(l *Lab) *Given {
	g := &Given{numbers: make(map[string]int), addresses: make(map[netip.Prefix]netip.Addr)}
	for i := range l.Pods {
		p := &l.Pods[i]
		if p.Deployment == "" {
			continue
		}
		owner := p.Namespace + "/" + p.Deployment
		if n, err := strconv.Atoi(strings.TrimPrefix(p.Name, p.Deployment+"-")); err == nil {
			g.numbers[owner] = max(g.numbers[owner], n)
		}
		for _, a := range p.Addresses {
			for _, n := range l.Nodes {
				for _, c := range n.PodCIDRs {
					if c.Contains(a) && g.addresses[c].Less(a) {
						g.addresses[c] = a
					}
				}
			}
		}
	}
	return g
}

// Clone is a copy to change.
func (g *Given) Clone() *Given { return &Given{maps.Clone(g.numbers), maps.Clone(g.addresses)} }

// PodsOf returns the pods that a deployment has to get besides the existing ones, so that it has its number of replicas.
// Their names count up. An error is that of a node without a free address, or that there is no node.
func (l *Lab) PodsOf(d *Deployment, p Placement) (added []labapi.Pod, err error) {
	names := make(map[string]bool)
	have := 0
	for i := range p.Pods {
		names[p.Pods[i].FullName()] = true
		if p.Pods[i].Deployment == d.Name && p.Pods[i].Namespace == d.Namespace {
			have++
		}
	}
	places := l.placesOf(d, &p)
	for i := p.Given.numbers[d.FullName()] + 1; have < int(*d.Replicas); i++ {
		pod := labapi.Pod{Name: fmt.Sprintf("%s-%d", d.Name, i), Namespace: d.Namespace, Labels: d.Labels, Ports: d.Ports, GracePeriodSeconds: d.GracePeriodSeconds, ReadinessProbe: d.ReadinessProbe, Deployment: d.Name}
		if names[pod.FullName()] {
			continue
		}
		if pod.Node, pod.Addresses, err = places.next(p.Given); err != nil {
			return added, err
		}
		p.Given.numbers[d.FullName()] = i
		have++
		added = append(added, pod)
	}
	return added, nil
}

// Place returns a node, one of the given ones if there are any, and addresses for a pod of no deployment.
func (l *Lab) Place(nodes []string, p Placement) (node string, addresses []netip.Addr, err error) {
	return l.placesOf(&Deployment{Nodes: nodes}, &p).next(p.Given)
}

// places are the nodes for the pods of a deployment.
type places struct {
	nodes []*Node
	pods  map[string]int // of the deployment, by node
	taken map[netip.Addr]bool
}

func (l *Lab) placesOf(d *Deployment, p *Placement) *places {
	at := &places{pods: make(map[string]int), taken: make(map[netip.Addr]bool)}
	for i := range l.Nodes {
		if n := &l.Nodes[i]; (len(d.Nodes) == 0 || slices.Contains(d.Nodes, n.Name)) && (p.Unschedulable == nil || !p.Unschedulable(n.Name)) {
			at.nodes = append(at.nodes, n)
		}
	}
	for i := range p.Pods {
		pod := &p.Pods[i]
		for _, a := range pod.Addresses {
			at.taken[a] = true
		}
		if pod.Deployment == d.Name && pod.Namespace == d.Namespace {
			at.pods[pod.Node]++
		}
	}
	return at
}

// next is the node with the fewest pods, the first one of several, and addresses of it.
func (at *places) next(given *Given) (string, []netip.Addr, error) {
	if len(at.nodes) == 0 {
		return "", nil, errors.New("no node for its pods")
	}
	node := slices.MinFunc(at.nodes, func(a, b *Node) int { return at.pods[a.Name] - at.pods[b.Name] })
	addresses, err := node.free(at.taken, given)
	if err == nil {
		at.pods[node.Name]++
	}
	return node.Name, addresses, err
}

// free takes a free address of each of the node's prefixes for pods: the next one after the last that was given, as the
// plug-in host-local does (plugins/ipam/host-local/backend/allocator of containernetworking).
func (n *Node) free(taken map[netip.Addr]bool, given *Given) (all []netip.Addr, _ error) {
	for _, c := range n.PodCIDRs {
		if c.IsSingleIP() {
			continue
		}
		first := c.Addr().Next().Next() // the one before is the gateway
		usable := func(a netip.Addr) bool { return c.Contains(a) && (!a.Is4() || c.Contains(a.Next())) }
		start := first
		if last, ok := given.addresses[c]; ok && usable(last.Next()) {
			start = last.Next()
		}
		a := start
		for taken[a] {
			if a = a.Next(); !usable(a) {
				a = first
			}
			if a == start {
				break
			}
		}
		if !usable(a) || taken[a] {
			return nil, fmt.Errorf("node %s has no free address in %s", n.Name, c)
		}
		taken[a], given.addresses[c] = true, a
		all = append(all, a)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("node %s has no podCIDRs", n.Name)
	}
	return all, nil
}
