package cli

import (
	"errors"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/balance/shadow"
	"github.com/nfqproxy/nfqproxy/datapath/balance/tracking"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// makeBalance makes the Balancer. It follows connections only if there are shadows, or a Service is balanced by
// an algorithm of its own: see followBalance.
func (p *proxy) makeBalance(shadows []balance.Algorithm) {
	clock := tracking.NewClock()
	if len(shadows) > 0 {
		p.shadows = shadow.New(shadows, clock.Now)
	}
	p.balance = tracking.New(balance.New(p.cfg.Node.Algorithms, clock.Now), p.shadows, clock)
}

// openBalance gives the Balancer to the datapath.
func (p *proxy) openBalance() {
	p.engineConfig.Balancer = p.balance
	p.watchScripts()
	if p.shadows != nil {
		p.metrics.ReadShadows(p.shadows.Totals)
	}
}

// watchScripts has scripts compiled anew when they are saved, and shows what goes wrong in them.
func (p *proxy) watchScripts() {
	for _, s := range p.scripts {
		s.Failed = func(port decision.ServicePortName, message string) {
			p.log.Warn("balancing script failed: the endpoint is drawn at random", "script", s.Name(), "service", port.String(), "error", message)
		}
		p.group.Go(func() error {
			err := s.Watch(p.ctx, func(err error) {
				if err != nil {
					p.log.Error("cannot use the new version of a balancing script: the version before stays", "error", err)
					return
				}
				p.log.Info("balancing script changed", "script", s.Path())
			})
			if err != nil {
				p.log.Error("changes of a balancing script have no effect until the daemon starts again", "error", err)
			}
			return nil
		})
	}
	p.metrics.ReadScripts(func(each func(script string, failures uint64)) {
		for _, s := range p.scripts {
			each(s.Name(), s.Failures())
		}
	})
}

// followBalance begins to follow connections with the first table that has a Service with an
// algorithm of its own; with shadows, with the first. It is called before the table is in force.
func (p *proxy) followBalance(t *decision.Table) {
	if p.balancing || p.shadows == nil && !balanced(t, p.table) {
		return
	}
	p.balancing = true
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
		if err := p.balance.Run(p.ctx, events, connections); err != nil {
			p.log.Error("conntrack events failed: algorithms that count open connections balance as if none had ended", "error", err)
		}
		return connections.Close()
	})
}

// balanced reports whether a Service that is new in the table has an algorithm of its own.
func balanced(t, since *decision.Table) (found bool) {
	t.ChangedServices(since, func(_ decision.ServiceName, _, is []*decision.ServicePort) {
		for _, s := range is {
			found = found || s.Balance != ""
		}
	})
	return found
}
