// Package live runs experiments in a lab: a real kernel, the real daemon on each node, and real connections of
// clients to servers with workers and a queue. [Backend] is the [experiment.Backend].
package live

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/balance/script"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// Limits of a live experiment: a lab is on one machine.
const (
	MaxNodes     = 16
	MaxClients   = 100 // addresses on each node
	MaxEndpoints = 128
	MaxWorkers   = 2048 // of all endpoints
	MaxRate      = 5000 // flows per second, mean
)

// Backend runs cells in a lab of this process, which must be in namespaces of its own (netns.Isolation).
type Backend struct {
	// Executable is the path of the daemon; empty: that of [program.FindDaemon]. Env is added to its environment.
	Executable string
	Env        []string
}

var _ experiment.Backend = Backend{}

// Name implements [experiment.Backend].
func (Backend) Name() string { return "live" }

// Parallel implements [experiment.Backend].
func (Backend) Parallel() int { return 1 }

// Check reports why an experiment cannot run live; nil: it can.
func Check(x *experiment.Experiment) error {
	if err := checkAlgorithms(x); err != nil {
		return err
	}
	for i := range x.Points {
		if err := check(x, &x.Points[i]); err != nil {
			return err
		}
	}
	return nil
}

func check(x *experiment.Experiment, p *experiment.Point) error {
	if p.MSER {
		return fmt.Errorf("%s: warmup: mser-5 is only for simulations: a live experiment needs a time", x.Metadata.Name)
	}
	if x.Batches > 0 {
		return fmt.Errorf("%s: batches is only for simulations: a live experiment computes its intervals from its runs", x.Metadata.Name)
	}
	c := p.Config
	if c.Workload.Requests != nil {
		return fmt.Errorf("%s: workload.requests: clients of a live experiment send one request per connection: use --simulate", x.Metadata.Name)
	}
	for i := range c.Events {
		if c.Events[i].Autoscale != nil {
			return fmt.Errorf("%s: events[%d].autoscale: the load of a live experiment does not change its endpoints: use --simulate", x.Metadata.Name, i)
		}
	}
	script, err := c.Script()
	if err != nil {
		return err
	}
	perNode, workers := c.PerNode(), 0
	for _, e := range script.Endpoints {
		workers += c.Cluster.Services[e.Service].Concurrency
	}
	flows := 0
	for range c.Flows(1) {
		flows++
	}
	rate := float64(flows) / c.Duration.Seconds()
	for _, limit := range []struct {
		what       string
		have, most int
	}{
		{"nodes", len(c.Cluster.Nodes), MaxNodes}, {"clients on each node", perNode, MaxClients},
		{"endpoints, with those that events start,", len(script.Endpoints), MaxEndpoints},
		{"workers of all endpoints", workers, MaxWorkers}, {"flows per second", int(rate), MaxRate},
	} {
		if limit.have > limit.most {
			return fmt.Errorf("%s: %d %s: at most %d can run live", x.Metadata.Name, limit.have, limit.what, limit.most)
		}
	}
	return nil
}

// checkAlgorithms reports an algorithm that the daemon does not have.
func checkAlgorithms(x *experiment.Experiment) error {
	r := balance.NewRegistry()
	r.Add(script.Entry(func(string) (balance.Algorithm, error) { return balance.Algorithm{}, nil })) // loaded with the experiment
	names := slices.Clone(x.Algorithms)
	for i := range x.Cluster.Services {
		names = append(names, x.Cluster.Services[i].Algorithm)
	}
	for _, name := range names {
		name, _ = strings.CutSuffix(name, traffic.SecondChance)
		if _, err := r.Parse(name); err != nil {
			return fmt.Errorf("%s: algorithm %s: nfqproxyd does not support it, so it cannot run live: use --simulate", x.Metadata.Name, name)
		}
	}
	return nil
}

// giveUp is after what time a client without any reply gives up.
func giveUp(c *traffic.Config) time.Duration {
	if c.Workload.GiveUp > 0 {
		return c.Workload.GiveUp
	}
	return traffic.DefaultGiveUp
}
