package daemon

import (
	"errors"
	"slices"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/algorithms"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/balance/script"
	"github.com/nfqproxy/nfqproxy/datapath/balance/shadow"
	"github.com/nfqproxy/nfqproxy/datapath/balance/tracking"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// balancer is the Balancer of the datapath. It follows connections only if there are shadows, or a Service is
// balanced by an algorithm of its own: see follow.
type balancer struct {
	*tracking.Tracker
	process *process
	scripts []*script.Script
	shadows *shadow.Shadows // nil: none
	follows bool            // connections
}

func newBalancer(p *process, a algorithms.Algorithms) *balancer {
	b := &balancer{process: p, scripts: a.Scripts}
	clock := tracking.NewClock()
	if len(a.Shadows) > 0 {
		b.shadows = shadow.New(a.Shadows, clock.Now)
	}
	b.Tracker = tracking.New(balance.New(a.Registry, clock.Now), b.shadows, clock)
	return b
}

// watchScripts has scripts compiled anew when they are saved, and shows what goes wrong in them.
func (b *balancer) watchScripts() {
	p := b.process
	for _, s := range b.scripts {
		s.Failed = func(port decision.ServicePortName, message string) {
			p.log.Warn("balancing script failed: the endpoint is drawn at random", "script", s.Name(), "service", port.String(), "error", message)
		}
		p.group.Go(func() error {
			err := s.Watch(p.ctx, func(err error) {
				if err != nil {
					p.log.Error("cannot use the new version of a balancing script: the previous one stays in use", "error", err)
					return
				}
				p.log.Info("balancing script changed", "script", s.Path())
			})
			if err != nil {
				p.log.Error("changes to a balancing script have no effect until the daemon restarts", "error", err)
			}
			return nil
		})
	}
	p.metrics.ReadScripts(func(each func(script string, failures uint64)) {
		for _, s := range b.scripts {
			each(s.Name(), s.Failures())
		}
	})
}

// follow prepares for a table that is not yet in force; before is the one in force, nil at first. It begins to follow
// connections with the first table that has a Service with an algorithm of its own; with shadows, with the first.
func (b *balancer) follow(t, before *decision.Table) {
	p := b.process
	if before == nil {
		b.watchScripts()
		if b.shadows != nil {
			p.metrics.ReadShadows(b.shadows.Totals)
		}
		b.Follow(t)
	}
	if b.follows {
		return
	}
	b.follows = b.shadows != nil
	t.ChangedServices(before, func(_ decision.ServiceName, _, is []*decision.ServicePort) {
		b.follows = b.follows || slices.ContainsFunc(is, func(s *decision.ServicePort) bool { return s.Balance != "" })
	})
	if !b.follows {
		return
	}
	events, err := conntrack.Watch(conntrack.WatchConfig{Buffer: eventBuffer})
	var connections *conntrack.Table
	if err == nil {
		var locks conntrack.Locks
		if connections, err = conntrack.Open(&locks); err != nil {
			err = errors.Join(err, events.Close())
		}
	}
	if err != nil {
		p.log.Error("no conntrack events: algorithms that count open connections balance as if none had ended", "error", err)
		return
	}
	p.group.Go(func() error {
		if err := b.Run(p.ctx, events, connections); err != nil {
			p.log.Error("conntrack events failed: algorithms that count open connections balance as if none had ended", "error", err)
		}
		return connections.Close()
	})
}
