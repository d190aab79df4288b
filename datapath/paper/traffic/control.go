package traffic

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/algorithms"
)

// control is the control plane: it makes the tables. All nodes of a zone share them, for they are
// immutable; all zones do if no service depends on the zone.
type control struct {
	balances     []string // of services: decision.ServicePort.Balance
	destinations []netip.AddrPort
	zones        []string
	newest       []*decision.Table   // by zone
	versions     [][]*decision.Table // by version
	// ids are the servers' numbers, by the positions of endpoints.
	ids map[*decision.ServicePort][]int32
	// away: changes do not reach nodes. withheld: there is one.
	away     int
	withheld bool
	// unpublished are the services whose sets no table in force has; of a script only.
	unpublished map[int32]bool
	// started counts the endpoints that were started later; place is the next one's node.
	started, place int
}

func (k *control) server(d *decision.Decision) int32 { return k.ids[d.ServicePort][d.Index] }

// build makes the cluster.
func (s *simulation) build(algorithm string) error {
	k := &s.control
	k.ids = make(map[*decision.ServicePort][]int32, len(s.c.Cluster.Services))
	canonical := make(map[string]string)
	for i := range s.c.Cluster.Services {
		service := &s.c.Cluster.Services[i]
		name := cmp.Or(service.Algorithm, algorithm)
		if _, ok := canonical[name]; !ok {
			balance, err := s.o.Algorithms.Canonical(name)
			if err != nil {
				return err
			}
			canonical[name] = balance
		}
		k.balances = append(k.balances, canonical[name])
		k.destinations = append(k.destinations, netip.AddrPortFrom(service.ClusterIP, service.Port))
		var members []int32
		for _, e := range service.Endpoints {
			members = append(members, s.newServer(e, int32(i)))
		}
		for _, id := range members {
			e := &s.servers[id]
			e.listed, e.listening = true, true
		}
		s.members = append(s.members, members)
	}
	s.place()
	services := make([][]*decision.ServicePort, len(k.zones)) // by zone
	for i := range s.c.Cluster.Services {
		for z, port := range s.servicePorts(int32(i)) {
			services[z] = append(services[z], port)
		}
	}
	for _, ports := range services {
		k.newest = append(k.newest, decision.NewTable(1, time.Time{}, decision.Node{}, ports))
	}
	registry := s.sharing(s.o.Algorithms)
	for i := range s.nodes {
		n := &s.nodes[i]
		n.number, n.alive, n.factor, n.table = int32(i), true, 1, k.newest[n.zone]
		n.balancer = balance.New(registry, func() int64 { return s.now })
		n.balancer.Follow(n.table)
		n.routes = make(map[int32]*route)
		n.rand = stream(s.seed, "node", i)
	}
	k.versions = append(k.versions, slices.Clone(k.newest))
	for i := range s.c.Events {
		if l := s.c.Events[i].lifecycle(); l != nil {
			s.watch(s.service(l.Service), registry)
		}
	}
	return nil
}

// place makes the nodes, and the zones if a service depends on them.
func (s *simulation) place() {
	k := &s.control
	zoned := slices.ContainsFunc(s.c.Cluster.Services, func(s Service) bool { return s.SameZone })
	for i := range s.c.Cluster.Nodes {
		zone := ""
		if zoned {
			zone = s.c.Cluster.Nodes[i].Zone
		}
		z := slices.Index(k.zones, zone)
		if z < 0 {
			z = len(k.zones)
			k.zones = append(k.zones, zone)
		}
		s.nodes = append(s.nodes, node{zone: int32(z)})
	}
}

func (s *simulation) newServer(e Endpoint, service int32) int32 {
	s.servers = append(s.servers, server{
		service: service, node: int32(e.Node), weight: e.Weight, present: true, factor: 1,
		waiting: emptyList, taken: emptyList,
	})
	s.origins = append(s.origins, origin{e.AddrPort, -1})
	return int32(len(s.servers) - 1)
}

// servicePorts makes a service's port as the nodes of each zone see it.
func (s *simulation) servicePorts(number int32) []*decision.ServicePort {
	service, k := &s.c.Cluster.Services[number], &s.control
	type listed struct {
		text string
		id   int32
	}
	var in []listed
	for _, id := range s.members[number] {
		if e := &s.servers[id]; e.listed {
			in = append(in, listed{s.origins[id].addr.String(), id})
		}
	}
	slices.SortFunc(in, func(a, b listed) int { return strings.Compare(a.text, b.text) })
	ids, endpoints := make([]int32, len(in)), make([]decision.Endpoint, len(in))
	all := make([]uint32, len(in))
	for i, l := range in {
		e := &s.servers[l.id]
		ids[i], all[i] = l.id, uint32(i)
		endpoints[i] = decision.Endpoint{AddrPort: s.origins[l.id].addr, NodeName: s.c.Cluster.Nodes[e.node].Name, Ready: true, Serving: true, Weight: e.weight}
	}
	port := decision.ServicePort{
		Name: decision.ServicePortName{Namespace: service.Namespace, Name: service.Name}, Protocol: decision.TCP, Family: decision.FamilyOf(service.ClusterIP),
		ClusterIP: service.ClusterIP, Port: service.Port, Balance: k.balances[number], Endpoints: endpoints, HasEndpoints: len(in) > 0,
	}
	port.Usable[decision.Cluster] = all
	ports := make([]*decision.ServicePort, len(k.zones))
	for z := range ports {
		if ports[z] = &port; service.SameZone {
			own := port
			if usable := s.inZone(ids, k.zones[z]); len(usable) > 0 {
				own.Usable[decision.Cluster] = usable
			}
			ports[z] = &own
		}
		k.ids[ports[z]] = ids
	}
	return ports
}

// inZone are the positions of the endpoints in a zone.
func (s *simulation) inZone(ids []int32, zone string) (usable []uint32) {
	for i, id := range ids {
		if s.c.Cluster.Nodes[s.servers[id].node].Zone == zone {
			usable = append(usable, uint32(i))
		}
	}
	return usable
}

// publish makes the tables with the new endpoints of services, and delivers them.
func (s *simulation) publish(services ...int32) {
	k := &s.control
	changes := make([][]decision.Change, len(k.zones))
	for _, number := range services {
		service := &s.c.Cluster.Services[number]
		name := decision.ServiceName{Namespace: service.Namespace, Name: service.Name}
		for z, port := range s.servicePorts(number) {
			changes[z] = append(changes[z], decision.Change{Service: name, Ports: []*decision.ServicePort{port}})
		}
	}
	for z, t := range k.newest {
		k.newest[z] = t.Next(time.Time{}, decision.Node{}, changes[z]...)
	}
	for _, number := range services {
		s.compare(number)
	}
	if s.script != nil {
		if k.unpublished == nil {
			k.unpublished = make(map[int32]bool)
		}
		for _, number := range services {
			k.unpublished[number] = true
		}
	}
	if k.withheld = k.away > 0; !k.withheld {
		s.distribute()
	}
}

// distribute sends the newest tables to the nodes.
func (s *simulation) distribute() {
	k := &s.control
	s.notePublished()
	version := uint32(len(k.versions))
	k.versions = append(k.versions, slices.Clone(k.newest))
	for i := range s.nodes {
		if s.c.Cluster.Propagation == nil {
			s.deliver(int32(i), version)
		} else {
			s.queue.add(s.now+s.c.Cluster.Propagation.draw(s.delay), delivered, int32(i), version)
		}
	}
}

// deliver puts tables in force on a node, unless it has newer ones.
func (s *simulation) deliver(number int32, version uint32) {
	n := &s.nodes[number]
	if version > n.version {
		s.reports.node = number
		n.version, n.table = version, s.control.versions[version][n.zone]
		clear(n.routes)
		n.balancer.Follow(n.table)
	}
}

// service is the number of a service by its name, or namespace/name; empty: the first.
func (s *simulation) service(name string) int32 {
	i, _ := s.c.service(name)
	return int32(i)
}

func (c *Config) service(name string) (int, bool) {
	if name == "" {
		return 0, true
	}
	for i := range c.Cluster.Services {
		if one := &c.Cluster.Services[i]; one.Name == name || one.Namespace+"/"+one.Name == name {
			return i, true
		}
	}
	return 0, false
}

// EndpointAddr is the address of the i-th endpoint of a generated cluster: in 10.64.0.0/10.
func EndpointAddr(i int) netip.AddrPort { return netip.AddrPortFrom(nth(10<<24|64<<16, i), 8080) }

// ServiceAddr is the address of the i-th service of one: in 10.0.0.0/10.
func ServiceAddr(i int) netip.Addr { return nth(10<<24, i+1) }

func clientAddr(i int32) netip.Addr { return nth(172<<24|16<<16, int(i)) }

func nth(base uint32, i int) netip.Addr {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], base+uint32(i))
	return netip.AddrFrom4(a)
}

// MaxGenerated is the largest number of endpoints, and of services, of a generated cluster.
const MaxGenerated = 1 << 21

// Generate makes nodes in zones.
func Generate(nodes, zones int) []Node {
	all := make([]Node, nodes)
	for i := range all {
		all[i] = Node{Name: fmt.Sprintf("node-%d", i+1), Zone: fmt.Sprintf("zone-%d", i%max(zones, 1)+1)}
	}
	return all
}

// sharing are the algorithms for all nodes of a simulation. Nodes share what is the same for all: hash tables.
func (s *simulation) sharing(all *balance.Registry) *balance.Registry {
	own := balance.NewRegistry()
	algorithms.Add(own, informer{s})
	for _, e := range all.Entries() {
		switch e.Name {
		case "eject": // that of own selects with the algorithms of own
			continue
		case "maglev", "sh", "dh", "ring", "ring-table", "hrw", "jump", "multiprobe":
			original := e.Make
			e.Make = func(parameter string) (balance.Algorithm, error) {
				a, err := original(parameter)
				if err != nil {
					return a, err
				}
				shared := newSharedPickers(a.New)
				a.New = shared.pick
				return a, nil
			}
			e.Make = once(e.Make)
		}
		if !e.Simulated {
			own.Add(e)
		}
	}
	return own
}

// once makes the algorithm of each parameter once.
func once(of func(string) (balance.Algorithm, error)) func(string) (balance.Algorithm, error) {
	made := make(map[string]balance.Algorithm)
	return func(parameter string) (balance.Algorithm, error) {
		if a, ok := made[parameter]; ok {
			return a, nil
		}
		a, err := of(parameter)
		if err == nil {
			made[parameter] = a
		}
		return a, err
	}
}

// sharedPickers are the pickers of an algorithm without a state of its own.
type sharedPickers struct {
	made func(*balance.Set, balance.Picker) balance.Picker
	// newest are those of the newest sets of each service.
	newest map[netip.AddrPort][]sharedPicker
}

type sharedPicker struct {
	service *decision.ServicePort
	picker  balance.Picker
}

func newSharedPickers(made func(*balance.Set, balance.Picker) balance.Picker) *sharedPickers {
	return &sharedPickers{made, make(map[netip.AddrPort][]sharedPicker)}
}

// keptSets is of how many sets of a service pickers are kept: nodes get tables at different times.
const keptSets = 8

func (p *sharedPickers) pick(set *balance.Set, before balance.Picker) balance.Picker {
	if len(set.Candidates) != len(set.Service.Usable[set.Policy]) { // without ejected ones, which are a node's own
		return p.made(set, before)
	}
	at := netip.AddrPortFrom(set.Service.ClusterIP, set.Service.Port)
	newest := p.newest[at]
	for _, one := range newest {
		if one.service == set.Service {
			return one.picker
		}
	}
	one := sharedPicker{set.Service, p.made(set, before)}
	if newest = append(newest, one); len(newest) > keptSets {
		newest = slices.Delete(newest, 0, 1)
	}
	p.newest[at] = newest
	return one.picker
}
