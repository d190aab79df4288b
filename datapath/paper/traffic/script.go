package traffic

import (
	"maps"
	"slices"
	"time"
)

// Script is what the events of a config do to a cluster, step by step, without any flow: for a run of the same
// events elsewhere.
type Script struct {
	// Endpoints are all that there ever are: first those that are there at the start, service by service.
	Endpoints []ScriptEndpoint
	Steps     []Step // in the order of their times
}

// ScriptEndpoint is an endpoint. Those that are there at the start are in their service, and listen.
type ScriptEndpoint struct {
	Service int // in Cluster.Services
	Node    int // in Cluster.Nodes
	Weight  uint16
	Initial bool // it is there at the start
}

// Step is a change of the cluster.
type Step struct {
	At   time.Duration
	Kind StepKind
	// Endpoint is that of Listens, Deaf, Gone and Slowed, in Script.Endpoints.
	Endpoint int
	// Node is that of NodeSlowed, and the first of NodesLost, up to the last node. Of Flushed it is the number of
	// nodes: the first ones.
	Node int
	// Factor is that of the time of the work; of Slowed and NodeSlowed.
	Factor float64
	// Published are the sets of endpoints that the nodes get to know; of Published.
	Published []Set
}

// Set is the set of a service's endpoints, in Script.Endpoints.
type Set struct {
	Service   int
	Endpoints []int
}

// StepKind is the kind of a [Step].
type StepKind uint8

// The kinds of steps.
const (
	Listens    StepKind = iota + 1 // the endpoint accepts connections
	Deaf                           // it refuses them; those that are open go on
	Gone                           // it does not exist any more
	Slowed                         // its work takes longer, or as long as before
	NodeSlowed                     // the work of all endpoints of a node does
	NodesLost                      // nodes do not exist any more, with their clients; their endpoints are gone before
	Flushed                        // nodes lose their connection tables
	Published                      // the control plane sends sets of endpoints to the nodes
)

// Script returns what the events do. The config must be valid, and is only read.
func (c *Config) Script() (*Script, error) {
	quiet := *c
	quiet.Workload.Arrivals = Arrivals{Process: traced}
	// No flow is decided, and the algorithms may be those of Options.Algorithms.
	quiet.Cluster.Services = slices.Clone(c.Cluster.Services)
	for i := range quiet.Cluster.Services {
		quiet.Cluster.Services[i].Algorithm = ""
	}
	w := &Script{}
	s := newSimulation(&quiet, 0, Options{})
	s.script = w
	if err := s.build(""); err != nil {
		return nil, err
	}
	initial := len(s.servers)
	s.schedule()
	if err := s.run(); err != nil {
		return nil, err
	}
	for i := range s.servers {
		e := &s.servers[i]
		w.Endpoints = append(w.Endpoints, ScriptEndpoint{int(e.service), int(e.node), e.weight, i < initial})
	}
	return w, nil
}

// note appends a step to the script, if one is written.
func (s *simulation) note(step Step) {
	if s.script == nil {
		return
	}
	step.At = time.Duration(s.now)
	s.script.Steps = append(s.script.Steps, step)
}

// notePublished appends the sets of services.
func (s *simulation) notePublished() {
	if s.script == nil {
		return
	}
	var sets []Set
	for _, service := range slices.Sorted(maps.Keys(s.control.unpublished)) {
		set := Set{Service: int(service)}
		for _, id := range s.members[service] {
			if s.servers[id].listed {
				set.Endpoints = append(set.Endpoints, int(id))
			}
		}
		sets = append(sets, set)
	}
	clear(s.control.unpublished)
	s.note(Step{Kind: Published, Published: sets})
}
