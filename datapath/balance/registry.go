package balance

import (
	"cmp"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Registry are the algorithms that names stand for. It is safe for concurrent use, except for Add.
type Registry struct{ entries map[string]Entry }

// Entry is an algorithm of a registry, or a family of algorithms with a parameter.
type Entry struct {
	Name string // lower case
	// Parameter is the parameter's name in messages; empty: there is none.
	Parameter string
	// Optional: the parameter may be left out.
	Optional bool
	// Colon: the parameter follows a colon, as in "script:my.star", and is not in parentheses.
	Colon bool
	// Simulated: it needs endpoints that report their load, which only a simulation has.
	Simulated bool
	// Summary is one line on what it does.
	Summary string
	// Make returns the algorithm for a parameter; empty: it was left out. The name of the algorithm is
	// filled in if it is empty.
	Make func(parameter string) (Algorithm, error)
}

// NewRegistry returns a registry with the built-in algorithms.
func NewRegistry() *Registry {
	r := &Registry{entries: make(map[string]Entry)}
	for _, e := range r.builtIn() {
		r.Add(e)
	}
	return r
}

// Add adds an entry, or replaces the one of the same name. It is to be called before the registry is in use.
func (r *Registry) Add(e Entry) { r.entries[e.Name] = e }

// Entries returns all entries, sorted by name.
func (r *Registry) Entries() []Entry {
	return slices.SortedFunc(maps.Values(r.entries), func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
}

// Usage is how the algorithm is written, with its parameter: "jsq(N)", "maglev[(SLOTS)]", "script:FILE".
func (e *Entry) Usage() string {
	switch {
	case e.Parameter == "":
		return e.Name
	case e.Colon:
		return e.Name + ":" + e.Parameter
	case e.Optional:
		return e.Name + "[(" + e.Parameter + ")]"
	}
	return e.Name + "(" + e.Parameter + ")"
}

// Parse reads the name of an algorithm, with its parameter in parentheses or, for entries with Colon,
// after a colon: "lc", "jsq(3)", "eject(maglev(4093))", "script:my.star". Empty stands for random.
func (r *Registry) Parse(text string) (Algorithm, error) {
	if text == "" {
		return randomAlgorithm, nil
	}
	name, rest, has := strings.Cut(text, "(")
	parameter, closed := strings.CutSuffix(rest, ")")
	if has && !closed {
		return Algorithm{}, fmt.Errorf("balancing algorithm %q: want NAME or NAME(PARAMETER)", text)
	}
	before, after, colon := strings.Cut(text, ":")
	if colon = colon && !has; colon {
		name, parameter, has = before, after, true
	}
	e, ok := r.entries[name]
	switch {
	case !ok:
		var known []string
		for _, e := range r.Entries() {
			known = append(known, e.Usage())
		}
		return Algorithm{}, fmt.Errorf("balancing algorithm %q: unknown; want one of %s", text, strings.Join(known, ", "))
	case has && e.Parameter == "":
		return Algorithm{}, fmt.Errorf("balancing algorithm %q: %s has no parameter", text, name)
	case has && e.Colon != colon, parameter == "" && (has || e.Parameter != "" && !e.Optional):
		return Algorithm{}, fmt.Errorf("balancing algorithm %q: want %s", text, e.Usage())
	}
	a, err := e.Make(parameter)
	if err != nil {
		return Algorithm{}, fmt.Errorf("balancing algorithm %q: %w", text, err)
	}
	if a.Name == "" {
		a.Name = text
	}
	return a, nil
}

// Canonical returns [decision.ServicePort.Balance] for a name: empty for random.
func (r *Registry) Canonical(text string) (string, error) {
	a, err := r.Parse(text)
	if err != nil || a.Name == randomAlgorithm.Name {
		return "", err
	}
	return a.Name, nil
}

// plain is an entry without a parameter.
func plain(name, summary string, feedback bool, make func(set *Set, before Picker) Picker) Entry {
	return Entry{Name: name, Summary: summary, Make: func(string) (Algorithm, error) {
		return Algorithm{Name: name, Feedback: feedback, New: make}, nil
	}}
}

// least is an entry of a leastConn.
func least(name, summary string, p leastConn) Entry {
	return plain(name, summary, true, func(set *Set, _ Picker) Picker {
		if len(set.positions(true)) == 0 {
			return random{set}
		}
		p := p
		p.set = set
		return &p
	})
}

func (r *Registry) builtIn() []Entry {
	return []Entry{
		{Name: "random", Summary: "kube-proxy's: each endpoint with the same probability", Make: func(string) (Algorithm, error) { return randomAlgorithm, nil }},
		plain("rr", "round robin: one after the other", false, func(set *Set, before Picker) Picker { return newRoundRobin(set, before, false) }),
		plain("wrr", "weighted round robin: turns in proportion to the weights, evenly spread", false, func(set *Set, before Picker) Picker { return newRoundRobin(set, before, true) }),
		least("lc", "fewest open connections (an inactive one counts 1/256)", leastConn{load: overhead, kind: decision.FewestOpen}),
		least("wlc", "fewest open connections in proportion to the weights", leastConn{load: overhead, weighted: true, kind: decision.FewestOpen}),
		least("sed", "shortest expected delay: (open+1)/weight", leastConn{load: expected, weighted: true, kind: decision.ShortestDelay}),
		least("nq", "never queue: an endpoint without open connections, otherwise sed", leastConn{load: expected, weighted: true, idle: true, kind: decision.ShortestDelay}),
		plain("sh", "hash of the source address", false, func(set *Set, _ Picker) Picker { return newHashed(set, false) }),
		plain("dh", "hash of the destination address", false, func(set *Set, _ Picker) Picker { return newHashed(set, true) }),
		{Name: "maglev", Parameter: "SLOTS", Optional: true, Summary: "hash of addresses and ports, with few changes when endpoints change", Make: makeMaglev},
		{Name: "p2c", Summary: "two at random, the one with fewer open connections", Make: func(string) (Algorithm, error) { return shortestQueue(2), nil }},
		{Name: "jsq", Parameter: "N", Summary: "N at random, the one with the fewest open connections", Make: makeShortestQueue},
		plain("ewma", "two at random, the one with the lower connect latency times open connections", true, func(set *Set, _ Picker) Picker {
			return newSampled(set, 2, latencyCost, decision.LowerCost)
		}),
		{Name: "eject", Parameter: "ALGORITHM", Summary: "another algorithm, without endpoints that refuse or do not answer", Make: r.makeEjecting},
	}
}

func makeMaglev(parameter string) (Algorithm, error) {
	size := DefaultMaglevSize
	if parameter != "" {
		n, err := strconv.Atoi(parameter)
		if err != nil || n < 2 || n > maxMaglevSize || !big.NewInt(int64(n)).ProbablyPrime(0) { // exact up to 64 bits
			return Algorithm{}, fmt.Errorf("want a prime number of slots up to %d, as 251, 4093 or 65537", maxMaglevSize)
		}
		size = n
	}
	a := Algorithm{New: func(set *Set, _ Picker) Picker { return newMaglev(set, size) }}
	if size == DefaultMaglevSize {
		a.Name = "maglev"
	}
	return a, nil
}

func makeShortestQueue(parameter string) (Algorithm, error) {
	n, err := strconv.Atoi(parameter)
	if err != nil || n < 1 || n > maxSample {
		return Algorithm{}, fmt.Errorf("want a sample of 1 to %d", maxSample)
	}
	return shortestQueue(n), nil
}

func shortestQueue(n int) Algorithm {
	return Algorithm{Feedback: true, OpenOnly: true, New: func(set *Set, _ Picker) Picker {
		return newSampled(set, n, openConnections, decision.FewerOpen)
	}}
}

func (r *Registry) makeEjecting(parameter string) (Algorithm, error) {
	if strings.HasPrefix(parameter, "eject") {
		return Algorithm{}, fmt.Errorf("eject is about another algorithm")
	}
	inner, err := r.Parse(parameter)
	if err != nil {
		return Algorithm{}, err
	}
	return Algorithm{Name: "eject(" + inner.Name + ")", Feedback: true, New: func(set *Set, before Picker) Picker {
		return newEjecting(set, inner, before)
	}}, nil
}

// Name is how people call an algorithm: random, if it is empty.
func Name(canonical string) string { return cmp.Or(canonical, randomAlgorithm.Name) }
