// Package algorithms has balancing algorithms from publications beside those of the daemon: hashes, draws, and
// algorithms for endpoints that report their load. The comment of each names its source.
package algorithms

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
)

// Cluster is a simulated cluster, as the node that makes a picker or uses it sees it. It is for one goroutine, and so are the pickers
// that need one.
type Cluster interface {
	// Client is the number of the node among all nodes, from 0.
	Client() int
	// Endpoint is the number of an endpoint in the cluster, by its position in Set.Candidates.
	Endpoint(set *balance.Set, candidate int) int
	// Report is what an endpoint says of itself now. It counts as a message.
	Report(endpoint int) Report
	// Probe sends a probe to an endpoint. The answer reaches the Prober a round trip later, unless the endpoint is gone.
	// It counts as a message.
	Probe(endpoint int, of *balance.Endpoint, to Prober)
	// Posted are the numbers of connections, by endpoint, on a board for all nodes that is renewed each time that age has
	// passed. It has no endpoints that are newer.
	Posted(age time.Duration) []int32
	// Join makes a queue the node's for the service of a set: an endpoint that becomes idle joins the queue of
	// one random node, which counts as a message.
	Join(set *balance.Set, queue IdleQueue)
}

// Report is the state of an endpoint.
type Report struct {
	// Open counts its connections: requests in flight.
	Open int
	// Latency is the median of the newest responses that began with about as many connections; 0: there is none.
	Latency time.Duration
	// Done counts the connections that it has worked on, and Worked is the time that its workers took for them.
	Done   uint64
	Worked time.Duration
}

// Prober receives answers of probes.
type Prober interface {
	Answer(e *balance.Endpoint, r Report, now int64)
}

// IdleQueue is a node's queue of idle endpoints of a service.
type IdleQueue interface {
	// Idle adds an endpoint.
	Idle(endpoint netip.AddrPort)
	// Busy removes an endpoint that has got a connection. It reports whether it was in the queue.
	Busy(endpoint netip.AddrPort) bool
}

// errNoCluster is the error of algorithms that need a Cluster where there is none.
var errNoCluster = errors.New("it needs endpoints that report their load: only simulated experiments have them")

// Add adds the algorithms to a registry. c is for those that need one; nil: they are errors.
func Add(r *balance.Registry, c Cluster) {
	for _, e := range all(r, c) {
		if e.Simulated && c == nil {
			e.Make = func(string) (balance.Algorithm, error) { return balance.Algorithm{}, errNoCluster }
		}
		r.Add(e)
	}
}

// Names returns a registry that knows all names and parameters. The algorithms that need a Cluster cannot be used.
func Names() *balance.Registry {
	r := balance.NewRegistry()
	Add(r, struct{ Cluster }{})
	return r
}

func all(r *balance.Registry, c Cluster) []balance.Entry {
	return []balance.Entry{
		{Name: "ring", Parameter: "POINTS", Optional: true, Summary: "consistent hash of addresses and ports: a ring with 160 points for each endpoint", Make: numbered(1000, 160, func(n int) newPicker {
			return hashing(func(set *balance.Set) lookup { return newRing(set, n).find })
		})},
		{Name: "ring-table", Parameter: "SLOTS", Optional: true, Summary: "a table of 65537 slots, of which 1000 points of each endpoint, in turn, claim free ones", Make: numbered(655373, 65537, func(n int) newPicker {
			return hashing(func(set *balance.Set) lookup { return newRingTable(set, n) })
		})},
		{Name: "hrw", Summary: "rendezvous hash of addresses and ports: the endpoint with the highest random weight", Make: plain(hashing(newRendezvous))},
		{Name: "jump", Summary: "jump consistent hash of addresses and ports", Make: plain(hashing(newJump))},
		{Name: "multiprobe", Parameter: "PROBES", Optional: true, Summary: "consistent hash of addresses and ports: one point for each endpoint, and the nearest of 21 probes", Make: numbered(100, 21, func(n int) newPicker {
			return hashing(func(set *balance.Set) lookup { return newMultiProbe(set, n) })
		})},
		{Name: "bounded", Parameter: "PERCENT", Optional: true, Summary: "as ring, but no endpoint has more than 25 percent above the mean of open connections", Make: feedback(numbered(1000, 25, newBounded))},
		{Name: "wpod", Parameter: "N", Summary: "N drawn in proportion to the weights, the one with the fewest open connections per weight", Make: feedback(numbered(maxSample, 0, newWeighted))},
		{Name: "rr-random", Summary: "round robin that begins with a random endpoint on each node", Make: plain(newRandomStart(r))},
		{Name: "subset", Parameter: "SIZE:ALGORITHM", Summary: "another algorithm among a subset of the endpoints, which depends on the node's number", Simulated: true, Make: func(p string) (balance.Algorithm, error) { return newSubset(r, c, p) }},
		{Name: "stale", Parameter: "AGE[:N]", Summary: "the fewest connections of all or of N endpoints, by a board that is renewed each AGE", Simulated: true, Make: func(p string) (balance.Algorithm, error) { return newStale(c, p) }},
		{Name: "jiq", Summary: "join the idle queue: idle endpoints report to one node; if a node knows none, at random", Simulated: true, Make: feedback(plain(newIdleQueue(c)))},
		{Name: "prequal", Parameter: "RATE", Optional: true, Summary: "probes, 3 for each flow: the lowest latency of endpoints without many connections", Simulated: true, Make: feedback(numbered(10, 3, newPrequal(c)))},
		{Name: "wrr-report", Parameter: "PERIOD", Optional: true, Summary: "weighted round robin by the endpoints' reports, each second: throughput over utilization", Simulated: true, Make: newReported(c)},
	}
}

// newPicker is [balance.Algorithm.New].
type newPicker = func(set *balance.Set, before balance.Picker) balance.Picker

// made makes an algorithm of a parameter, as [balance.Entry.Make].
type made = func(parameter string) (balance.Algorithm, error)

func plain(p newPicker) made {
	return func(string) (balance.Algorithm, error) { return balance.Algorithm{New: p}, nil }
}

// numbered is an algorithm with a whole number as its parameter.
func numbered(most, byDefault int, of func(n int) newPicker) made {
	return func(parameter string) (balance.Algorithm, error) {
		n := byDefault
		if parameter != "" {
			var err error
			if n, err = strconv.Atoi(parameter); err != nil || n < 1 || n > most {
				return balance.Algorithm{}, fmt.Errorf("want a number from 1 to %d", most)
			}
		}
		return balance.Algorithm{New: of(n)}, nil
	}
}

// feedback marks algorithms that depend on what happens to connections.
func feedback(m made) made {
	return func(parameter string) (balance.Algorithm, error) {
		a, err := m(parameter)
		a.Feedback = true
		return a, err
	}
}

// duration reads a time of a parameter.
func duration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(strings.TrimSpace(text))
	if err != nil || d <= 0 || d > 24*time.Hour {
		return 0, fmt.Errorf("want a time with its unit, as 100ms, and not %q", text)
	}
	return d, nil
}

// heaviest is the largest weight.
func heaviest(set *balance.Set) uint64 {
	c := slices.MaxFunc(set.Candidates, func(a, b balance.Candidate) int { return int(a.Weight) - int(b.Weight) })
	return uint64(max(c.Weight, 1))
}

// endpoints are the numbers of all candidates.
func endpoints(set *balance.Set, c Cluster) []int {
	all := make([]int, len(set.Candidates))
	for i := range all {
		all[i] = c.Endpoint(set, i)
	}
	return all
}
