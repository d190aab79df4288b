package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/live/health"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostmasq"
	"github.com/nfqproxy/nfqproxy/datapath/live/reconcile"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
	"github.com/nfqproxy/nfqproxy/datapath/live/takeover"
)

// FindPredecessor looks for the rules that kube-proxy left in this node's kernel, and logs them.
func (p *proxy) FindPredecessor() error {
	found, err := takeover.Find()
	switch {
	case err != nil && p.flags.takeover:
		return fmt.Errorf("--takeover: %w", err)
	case err != nil:
		p.log.Debug("cannot look for kube-proxy's rules", "error", err)
	case p.flags.takeover:
		for _, line := range found.Lines() {
			p.log.Info("takeover: will remove " + line)
		}
		for _, line := range found.Notes() {
			p.log.Warn("takeover: " + line)
		}
		p.predecessor = found
	case !found.Empty():
		p.log.Warn("kube-proxy's rules are still in the kernel: nfqproxy decides new flows before they apply, but packets still traverse them; --takeover removes them", "tables", len(found.Lines()))
	}
	return nil
}

func (p *proxy) AddressesChanged() { p.hostRules.HostChanged() }

func (p *proxy) Accept(t *decision.Table) { p.filter.Follow(t) }

func (p *proxy) Connect() (err error) {
	if p.flags.hostMasq == hostMasqueradeAuto {
		p.hostRules = hostmasq.Follow(hostmasq.Kernel(p.host), p.log)
		p.config.HostRules = p.hostRules
	}
	if p.rules, err = ruleset.OpenConnection(p.flags.ownTables); err != nil {
		return err
	}
	p.config.Rules = p.rules
	connections, err := conntrack.Open(new(conntrack.Locks))
	if err != nil {
		return err
	}
	p.udp = reconcile.New(reconcile.Config{Connections: connections, Seen: p.rules, Interval: p.cfg.SyncPeriod, Observe: p.reconciled})
	if p.flags.wantsLives() {
		if err := p.flows.followKernel(); err != nil {
			p.log.Warn("no conntrack events: flow life cycles are not available", "error", err)
		}
	}
	return nil
}

func (p *proxy) Announce(t *decision.Table) { p.udp.Announce(t) }

func (p *proxy) Balance(t, before *decision.Table) { p.balance.follow(t, before) }

func (p *proxy) Open(t *decision.Table) error {
	p.config.Balancer, p.config.Alert = p.balance, p.alert
	// The kernel's state that the datapath's own rules depend on.
	p.config.Prepare = func() error {
		p.filter.Sync()
		return p.tune(t.Node())
	}
	e, err := engine.Open(p.ctx, p.config, p.host, t)
	if err != nil {
		return errors.Join(err, p.udp.Close())
	}
	p.engine, p.applied = e, time.Now()
	p.running.Store(e)
	p.metrics.ReadStats(func() engine.Stats { return *p.stats() })
	p.group.Go(func() error {
		err := e.Run(p.ctx)
		p.log.Info("stopped", "flows", e.Stats())
		return err
	})
	p.group.Go(func() error { p.hostRules.Run(p.ctx); return nil })
	p.group.Go(func() error { return p.filter.Run(p.ctx) })
	p.group.Go(func() error { p.checkMarks(t); return nil })
	p.group.Go(func() error {
		p.udp.Loop(p.ctx)
		return p.udp.Close()
	})
	return nil
}

func (p *proxy) Apply(t *decision.Table) {
	p.engine.Apply(t)
	p.applied = time.Now()
	p.log.Debug("new service table", "generation", t.Generation(), "services", t.ServiceCount())
}

func (p *proxy) Reconcile(t *decision.Table) { p.udp.SetTable(t) }

func (p *proxy) RemovePredecessor() {
	if p.predecessor == nil || p.predecessor.Empty() {
		return
	}
	if err := p.predecessor.Remove(); err != nil {
		p.log.Error("cannot remove kube-proxy's rules; continuing with our own", "error", err)
		return
	}
	p.log.Info("takeover: removed kube-proxy's rules; if they appear again, kube-proxy still runs on this node")
}

func (p *proxy) Check(t, before *decision.Table) {
	p.checks.SetAddresses(health.ListenAddresses(t))
	p.checks.Update(health.Changes(t, before))
	p.inForce.Store(t)
}

// reconciled logs and counts a pass over the UDP flows.
func (p *proxy) reconciled(f decision.Family, r reconcile.Result, err error) {
	p.metrics.Reconciled(f, r.Took, r.Total())
	if err != nil {
		p.log.Error("cannot remove all UDP flows that contradict the service table; trying again soon", "family", f, "failed", r.Failed, "error", err)
	}
	if r.Total() > 0 {
		p.log.Debug("removed UDP flows that contradict the service table", "family", f, "reasons", r.Deleted)
	}
}

// checkFailed reports a health check node port that cannot be served or, without an error,
// that is served again.
func (p *process) checkFailed(service types.NamespacedName, address netip.AddrPort, err error) {
	if err == nil {
		p.log.Info("serving the health check node port", "service", service, "address", address)
		return
	}
	p.log.Error("cannot serve the health check node port", "service", service, "address", address, "error", err)
	p.events.Service(service.Namespace, service.Name, "FailedToStartServiceHealthcheck", "node "+p.cfg.Node.Name+" cannot serve health check node port "+address.String()+": "+err.Error())
}
