package daemon

import (
	"errors"
	"fmt"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/otherproxy"
)

// decidingFlags are flags about decisions and rules, which --observe leaves to the node's own proxy.
var decidingFlags = []string{
	"decide", "balance", "balance-script", "shadow", "second-chance", "seed", "host-masquerade", "takeover", "when-served",
	"flow-api-holds", "queues", "queue-num", "queue-timeout", "busy-poll", "debug-batch-delay",
}

// checkObserve validates the flags of a daemon that only observes.
func (f *Flags) checkObserve() error {
	for _, name := range decidingFlags {
		if f.set.Changed(name) {
			return fmt.Errorf("--%s has no meaning with --observe: the node's own service proxy decides", name)
		}
	}
	if !f.wantsLives() {
		return errors.New("--observe requires --flow-api: without it nobody can read the records")
	}
	return nil
}

// findProxyInterval is how often the daemon looks which proxy serves the node.
const findProxyInterval = 30 * time.Second

// observeFlows begins to make records of the flows that the node's own proxy decides, by the first table.
func (p *proxy) observeFlows(t *decision.Table) error {
	p.inForce.Store(t)
	p.findOtherProxy()
	p.group.Go(func() error {
		tick := time.NewTicker(findProxyInterval)
		defer tick.Stop()
		for {
			select {
			case <-p.ctx.Done():
				return nil
			case <-tick.C:
				p.findOtherProxy()
			}
		}
	})
	p.followRules()
	return p.flows.followKernel()
}

// followRules tells the journal when the rules of the node's own proxy change.
func (p *proxy) followRules() {
	flows := p.flows
	rules, err := otherproxy.OpenRules()
	if err != nil {
		p.log.Warn("cannot tell when the service proxy's rules change", "error", err)
		return
	}
	flows.done.Go(func() {
		if err := rules.Run(flows.ctx, flows); err != nil {
			flows.RulesMissed()
			p.log.Warn("can no longer tell when the service proxy's rules change", "error", err)
		}
	})
}

// findOtherProxy notes which proxy serves the node.
func (p *process) findOtherProxy() {
	name, err := otherproxy.Find()
	if err != nil {
		p.log.Warn("cannot find out which service proxy serves the node", "error", err)
		name = otherproxy.Unknown
	}
	if before := p.otherProxy.Swap(&name); before == nil || *before != name {
		p.log.Info("observing", "proxy", name)
	}
}

// observed is the name of the proxy that the daemon observes; empty: it decides itself.
func (p *process) observed() string {
	if name := p.otherProxy.Load(); name != nil {
		return *name
	}
	if p.flags.observe {
		return otherproxy.Unknown
	}
	return ""
}
