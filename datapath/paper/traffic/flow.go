package traffic

import (
	"cmp"
	"iter"
	"math/rand/v2"
	"time"
)

// Flow is a flow of a workload. Its node is Client / the number of clients on each node.
type Flow struct {
	At time.Duration
	// Client is the number of the client among all, and Port its source port.
	Client int
	Port   uint16
	Node   int // in Cluster.Nodes
	// Service is in Cluster.Services.
	Service    int
	Work, Idle time.Duration
	// Requests is the number of the client's requests, and Seed that of what is drawn for them; only with Workload.Requests.
	Requests int
	Seed     uint64
}

// Flows are the flows of the workload with a seed, in order: those of [Run] with the same seed, also of nodes
// that are lost by then. The config must be valid, and is only read.
func (c *Config) Flows(seed uint64) iter.Seq[Flow] {
	return func(yield func(Flow) bool) {
		var f Flow
		for s := newSource(c, seed); s.next(&f) && f.At < c.Duration && yield(f); {
		}
	}
}

// source makes flows. All of them are drawn in the same way, whatever happens to them.
type source struct {
	workload *Workload
	arrivals *arrivals
	ports    []uint16 // the last source port of each client
	perNode  int
	portsOf  int
	// streams of random numbers
	clients, services, work, idle, requests *rand.Rand
	popularity                              zipf
}

func newSource(c *Config, seed uint64) *source {
	w := &c.Workload
	perNode := c.PerNode()
	return &source{
		workload: w, arrivals: newArrivals(c, stream(seed, "arrivals", 0)),
		ports: make([]uint16, perNode*len(c.Cluster.Nodes)), perNode: perNode, portsOf: cmp.Or(w.Clients.Ports, portRange),
		clients: stream(seed, "clients", 0), services: stream(seed, "services", 0), work: stream(seed, "work", 0), idle: stream(seed, "idle", 0),
		requests:   stream(seed, "requests", 0),
		popularity: newZipf(len(c.Cluster.Services), w.Zipf),
	}
}

// next makes the next flow. It reports false after the last one.
func (s *source) next(f *Flow) bool {
	at, t := s.arrivals.next()
	if at == never {
		return false
	}
	f.At, f.Client, f.Service = time.Duration(at), s.clients.IntN(len(s.ports)), s.popularity.draw(s.services)
	f.Work, f.Idle = time.Duration(s.workload.Work.draw(s.work)), time.Duration(s.workload.Idle.draw(s.idle))
	if t != nil && t.Service >= 0 {
		f.Service = t.Service
	}
	if t != nil && t.Work >= 0 {
		f.Work = t.Work
	}
	if q := s.workload.Requests; q != nil {
		f.Requests, f.Seed = q.PerConnection.draw(s.requests), s.requests.Uint64()
	}
	if s.ports[f.Client]++; int(s.ports[f.Client]) >= s.portsOf {
		s.ports[f.Client] = 0
	}
	f.Node, f.Port = f.Client/s.perNode, firstPort+s.ports[f.Client]
	return true
}
