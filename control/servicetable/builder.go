// Package servicetable makes the service table: from Kubernetes objects and what is
// known of the node to an immutable [decision.Table]. The [Controller] builds a new one
// whenever an input changes; its work is in proportion to the change.
//
// It is a ground package.
package servicetable

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Build makes the service ports of all Services, in the order of namespace and
// name. Warnings, one line each, are about objects that are valid but probably not as
// intended. Build is pure: the same input gives the same output, and it does not
// change or keep the objects.
func Build(objects *kube.Objects, node NodeConfig) ([]*decision.ServicePort, []string) {
	services, warnings, _ := build(objects, node)
	return services, warnings
}

// build is Build, and returns the node's own object, too; nil: there is none.
func build(objects *kube.Objects, node NodeConfig) (services []*decision.ServicePort, warnings []string, object *corev1.Node) {
	b := newBuilder(node)
	b.apply(fullUpdate(objects))
	changes, about := b.build()
	warnings = b.nodeWarnings()
	for _, w := range about {
		warnings = append(warnings, w.Text)
	}
	return new(decision.Table).Next(time.Time{}, decision.Node{}, changes...).Services(), warnings, b.node()
}

// Table builds the table of a simulated node: its addresses are its configured ones
// and those of its Node object. It also returns the warnings of [Build],
// and of conflicts.
func Table(objects *kube.Objects, config NodeConfig) (*decision.Table, []string) {
	services, warnings, object := build(objects, config)
	addresses := slices.Clone(config.ips(object))
	if object != nil {
		for _, a := range object.Status.Addresses {
			if a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP {
				addresses = appendAddress(addresses, a.Address)
			}
		}
	}
	table := decision.NewTable(1, time.Time{}, config.node(object, addresses), services)
	for _, c := range table.Conflicts() {
		warnings = append(warnings, c.Error())
	}
	return table, warnings
}

// fullUpdate is the update to the objects.
func fullUpdate(o *kube.Objects) Update {
	u := Update{All: true, Warnings: o.Warnings}
	for _, s := range o.Services {
		u.Add(NewService(s), false)
	}
	for _, s := range o.EndpointSlices {
		u.Add(NewEndpointSlice(s), false)
	}
	for _, n := range o.Nodes {
		u.Add(n, false)
	}
	for _, p := range o.Pods {
		u.Add(p, false)
	}
	return u
}

// builder holds the present objects, and the service ports built from them. A change of an object
// costs work in proportion to its Service.
type builder struct {
	config   NodeConfig
	services map[decision.ServiceName]*serviceState
	// owned are the slices that belong to a Service.
	owned   map[types.NamespacedName]*EndpointSlice
	nodes   map[string]*corev1.Node
	at      location
	about   map[string][]string // warnings about Nodes and Pods, by the object
	source  []string            // warnings of the source of objects
	weights weights
	// balance is the algorithm of Services for which it was set by hand.
	balance map[decision.ServiceName]string
	// stale are the Services to be made again.
	stale map[decision.ServiceName]bool
}

// serviceState is one Service with all that belongs to it. It may lack any part: slices
// can be there before their Service, or without one.
type serviceState struct {
	object   *Service
	slices   []*EndpointSlice        // in the order of their names
	ports    []*decision.ServicePort // as last made
	warnings []string
}

func (c *NodeConfig) location(zone string) location {
	return location{
		node: c.Name, zone: zone, kernelDecides: c.KernelDecides, ignoreExternalIPs: c.IgnoreExternalIPs,
		balance: c.Balance, algorithms: c.algorithms(),
	}
}

func newBuilder(config NodeConfig) *builder {
	return &builder{
		config:   config,
		services: make(map[decision.ServiceName]*serviceState),
		owned:    make(map[types.NamespacedName]*EndpointSlice),
		nodes:    make(map[string]*corev1.Node),
		about:    make(map[string][]string),
		weights:  make(weights),
		at:       config.location(config.Zone),
		stale:    make(map[decision.ServiceName]bool),
	}
}

// apply takes an update over.
func (b *builder) apply(u Update) {
	if u.All {
		b.complete(&u)
		clear(b.about)
		b.source = u.Warnings
	}
	for name, object := range u.Services {
		k := decision.ServiceName(name)
		s := b.touch(k)
		s.object = object
		b.drop(k, s)
	}
	for name, slice := range u.EndpointSlices {
		b.applySlice(name, slice)
	}
	for name, object := range u.Nodes {
		if object == nil {
			delete(b.nodes, name)
			delete(b.about, "node "+name)
		} else {
			b.nodes[name] = object
			b.warn("node "+name, nodeSpellings(object).Warning("node "+name))
		}
	}
	for name, object := range u.Pods {
		about := "pod " + name.String()
		if object == nil {
			delete(b.about, about)
		} else {
			_, _, weight := weightOf(about, object.Annotations)
			b.warn(about, podSpellings(object).Warning(about), weight)
		}
	}
	b.weigh(&u)
	if at := b.config.location(b.config.zone(b.node())); at != b.at {
		b.at = at
		for k := range b.services {
			b.stale[k] = true
		}
	}
}

// warn keeps the warnings about a Node or Pod; empty ones are none.
func (b *builder) warn(object string, warnings ...string) {
	warnings = slices.DeleteFunc(warnings, func(w string) bool { return w == "" })
	if len(warnings) > 0 {
		b.about[object] = warnings
	} else {
		delete(b.about, object)
	}
}

// complete adds to an update with all objects those that are not in it: they are gone.
func (b *builder) complete(u *Update) {
	u.Services, u.EndpointSlices, u.Nodes = maps.Clone(u.Services), maps.Clone(u.EndpointSlices), maps.Clone(u.Nodes)
	for k, s := range b.services {
		if _, ok := u.Services[types.NamespacedName(k)]; !ok && s.object != nil {
			set(&u.Services, types.NamespacedName(k), nil)
		}
	}
	for name := range b.owned {
		if _, ok := u.EndpointSlices[name]; !ok {
			set(&u.EndpointSlices, name, nil)
		}
	}
	for name := range b.nodes {
		if _, ok := u.Nodes[name]; !ok {
			set(&u.Nodes, name, nil)
		}
	}
}

func set[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = make(map[K]V)
	}
	(*m)[k] = v
}

// applySlice adds a slice to the Service named by its label, if it has the label.
func (b *builder) applySlice(name types.NamespacedName, slice *EndpointSlice) {
	if before, ok := b.owned[name]; ok {
		k := before.owner()
		s := b.touch(k)
		if i, ok := s.find(name.Name); ok {
			s.slices = slices.Delete(s.slices, i, i+1)
		}
		delete(b.owned, name)
		b.drop(k, s)
	}
	if slice == nil || slice.service == "" {
		return
	}
	s := b.touch(slice.owner())
	i, _ := s.find(name.Name)
	s.slices = slices.Insert(s.slices, i, slice)
	b.owned[name] = slice
}

// find returns the place of the slice of the name, and whether it is there.
func (s *serviceState) find(name string) (int, bool) {
	return slices.BinarySearchFunc(s.slices, name, func(e *EndpointSlice, name string) int { return cmp.Compare(e.Name, name) })
}

// touch returns the Service of the name, which is to be made again.
func (b *builder) touch(k decision.ServiceName) *serviceState {
	b.stale[k] = true
	s, ok := b.services[k]
	if !ok {
		s = new(serviceState)
		b.services[k] = s
	}
	return s
}

// drop removes a Service without any parts left.
func (b *builder) drop(k decision.ServiceName, s *serviceState) {
	if s.object == nil && len(s.slices) == 0 && len(s.ports) == 0 {
		delete(b.services, k)
	}
}

// build makes what is stale. It gives the Services whose part of the table is another
// now, and the warnings that were not there before, in the order of the Services.
func (b *builder) build() (changes []decision.Change, warnings []Warning) {
	for _, k := range slices.SortedFunc(maps.Keys(b.stale), decision.ServiceName.Compare) {
		s, ok := b.services[k]
		if !ok {
			continue
		}
		var ports []*decision.ServicePort
		var all []string
		if s.object != nil {
			at, svc := b.locationOf(k), s.object.Object()
			ports, all = servicePorts(svc, s.slices, b.weights, at), append(serviceWarnings(svc), balanceWarnings(svc, at)...)
			for _, slice := range s.slices {
				all = append(all, slice.warnings...)
			}
		}
		if len(ports)+len(s.ports) > 0 && !reflect.DeepEqual(ports, s.ports) {
			changes = append(changes, decision.Change{Service: k, Ports: ports})
		}
		for _, w := range all {
			if !slices.Contains(s.warnings, w) {
				warnings = append(warnings, Warning{k, w})
			}
		}
		s.ports, s.warnings = ports, all
		b.drop(k, s)
	}
	b.stale = make(map[decision.ServiceName]bool) // emptied, the first one would stay as large as it was
	return changes, warnings
}

// node is the node's own object; nil: there is none.
func (b *builder) node() *corev1.Node { return b.nodes[b.config.Name] }
