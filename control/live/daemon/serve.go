package daemon

import (
	"context"
	"errors"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/live/apiserver"
	"github.com/nfqproxy/nfqproxy/control/live/health"
	"github.com/nfqproxy/nfqproxy/control/live/journal"
	"github.com/nfqproxy/nfqproxy/control/live/metrics"
	"github.com/nfqproxy/nfqproxy/control/live/publish"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostfilter"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
	"github.com/nfqproxy/nfqproxy/datapath/live/reconcile"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
	"github.com/nfqproxy/nfqproxy/datapath/live/takeover"
)

// proxy is the running daemon, and the [publish.Parts] that a service table passes through on its way into force.
type proxy struct {
	*process
	balance *balancer
	flows   *recording // nil: flows are not recorded

	config      engine.Config
	engine      *engine.Engine      // nil before the first table
	rules       *ruleset.Connection // nil: not opened yet
	udp         *reconcile.Reconciler
	checks      *health.ServiceServer
	predecessor *takeover.Rules // of kube-proxy, to be removed; nil: there are none
	applied     time.Time       // since then the table is in force

	supervisor *supervisor // nil: there is none
	served     sync.Once   // calls serving
}

// How much garbage there may be for each 100 bytes in use: while the objects are read, of which most becomes garbage, and
// when they have been. From then on most of what is in use is the service table, of which little changes, and flows make
// no garbage: only changes and readers do.
const (
	gcPercentAtStart = 50
	gcPercent        = 10
)

// setGCPercent sets the garbage collector's target, unless GOGC in the environment does.
func setGCPercent(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// serve runs until the context ends or a part fails.
func (p *proxy) serve(ctx context.Context) (err error) {
	setGCPercent(gcPercentAtStart)
	p.limitMemory()
	p.group, p.ctx = errgroup.WithContext(ctx)
	p.metrics = metrics.New(p.version)
	p.metrics.ReadLimits(&p.limits)
	p.filter = hostfilter.New(p.log)
	p.health = health.NewProxy(health.ProxyConfig{
		Timeout: 2 * p.cfg.SyncPeriod, Families: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, Answered: p.metrics.Answered,
		Fault: p.fault,
	})
	if !p.flags.observe { // which writes nothing to the API server, and changes nothing of the node
		p.events = apiserver.NewRecorder(p.ctx, p.client, p.cfg.Node.Name, p.log)
		defer p.events.Close()
		p.tuneOOM()
	}
	if err := p.checkKernel(); err != nil {
		return err
	}
	flows, err := p.openRecording()
	if err != nil {
		return err
	}
	if p.supervisor, err = findSupervisor(); err != nil {
		return err
	}
	p.confine()
	if p.host, err = hostnet.Open(); err != nil {
		return err
	}
	controller, err := servicetable.New(servicetable.Config{
		Node: p.cfg.Node, Objects: p.objects(), Addresses: p.addresses,
		Publish: p.publish, Progress: p, Warned: p.warned,
		MinSyncPeriod: p.cfg.MinSyncPeriod, Logger: p.log,
	})
	if err != nil {
		return errors.Join(err, p.host.Close())
	}
	if p.flows = flows; flows != nil {
		defer func() { err = errors.Join(err, flows.close()) }()
		if err := flows.start(controller); err != nil {
			return errors.Join(err, p.host.Close())
		}
	}
	p.checks = health.NewServiceServer(health.ServiceServerConfig{Healthy: p.health.Healthy, Report: p.checkFailed, Log: p.log,
		Connections: p.limits.Connections("health check node ports", health.CheckConnections)})
	defer p.checks.Close()
	p.listen("health", health.Connections, p.cfg.HealthzBindAddress, p.health.Handler())
	p.listen("metrics", health.MetricsConnections, p.cfg.MetricsBindAddress, p.metrics.Handler(metrics.HandlerConfig{Profiling: p.cfg.EnableProfiling, Log: p.log}))
	p.group.Go(func() error { return controller.Run(p.ctx) })
	err = p.group.Wait()
	if p.rules != nil {
		err = errors.Join(err, p.rules.Close())
	}
	if errors.Is(err, engine.ErrReplaced) {
		p.log.Info("another nfqproxy has taken over; exiting")
		return nil
	}
	return err
}

// checkKernel checks what the datapath needs. Kernel features are the most likely thing to be missing.
func (p *proxy) checkKernel() (err error) {
	if p.flags.observe {
		return nil
	}
	if _, err := engine.Preflight(); err != nil {
		if err := p.events.NodeNow("KernelFeatureMissing", err.Error()); err != nil {
			p.log.Debug("cannot write the event KernelFeatureMissing", "error", err)
		}
		return err
	}
	p.config.Predecessor, err = engine.CheckLock(p.config.WhenServed)
	return err
}

// publish puts a table into force: that of an observing daemon is for the records only. With the first one the datapath
// begins.
func (p *proxy) publish(t *decision.Table) {
	var err error
	before := p.inForce.Load()
	switch {
	case !p.flags.observe:
		err = publish.Publish(p, t, before)
	case before == nil:
		err = p.observeFlows(t)
	default:
		p.inForce.Store(t)
	}
	if err != nil {
		if p.ctx.Err() != nil {
			return // it ended while it waited for another nfqproxy
		}
		p.group.Go(func() error { return err })
		<-p.ctx.Done()
		return
	}
	if before == nil {
		// Reading all objects took memory that is no longer needed.
		p.group.Go(func() error {
			setGCPercent(gcPercent)
			debug.FreeOSMemory()
			return nil
		})
	}
}

// serving reports that the proxy serves. /readyz and the metrics report it already.
func (p *proxy) serving(t *decision.Table) {
	stuck := func() bool { return false }
	if e := p.engine; e != nil {
		stuck = e.Stuck
		p.log.Info("serving", "node", p.cfg.Node.Name, "services", t.ServiceCount(), "queue", e.FirstQueue(), "queues", e.Queues())
		p.events.Node(false, "Starting", "nfqproxy "+p.version+" serves")
	} else {
		p.log.Info("observing", "node", p.cfg.Node.Name, "services", t.ServiceCount(), "proxy", p.observed())
	}
	if err := p.flags.ready(); err != nil {
		p.log.Warn("cannot write to --ready-fd", "error", err)
	}
	p.group.Go(func() error { p.supervisor.run(p.ctx, stuck, p.log); return nil })
}

// The following methods are a [servicetable.Progress]: they report changes and their application to health and metrics.

func (p *proxy) Queued(services, slices int) {
	p.health.Queued()
	p.metrics.Queued(services, slices)
}

func (p *proxy) Taken() { p.health.Taken() }

func (p *proxy) Updated(s servicetable.Sync) {
	if p.inForce.Load() != s.Table {
		return // it could not be put into force
	}
	if p.flows != nil {
		p.flows.SetTable(journal.Published{Table: s.Table, InForce: p.applied, Origins: s.Origins})
	}
	p.health.Updated()
	p.metrics.Applied(s)
	p.served.Do(func() { p.serving(s.Table) })
}
