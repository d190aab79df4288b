package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nfqproxy/nfqproxy/control/live/apiserver"
	"github.com/nfqproxy/nfqproxy/control/live/confine"
	"github.com/nfqproxy/nfqproxy/control/live/health"
	"github.com/nfqproxy/nfqproxy/control/live/journal"
	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/control/live/metrics"
	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
	"github.com/nfqproxy/nfqproxy/control/live/saved"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/control/view/otlp"
	"github.com/nfqproxy/nfqproxy/datapath/balance/script"
	"github.com/nfqproxy/nfqproxy/datapath/balance/shadow"
	"github.com/nfqproxy/nfqproxy/datapath/balance/tracking"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostfilter"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostmasq"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
	"github.com/nfqproxy/nfqproxy/datapath/live/reconcile"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
)

// proxy is the running program. Data flows one way: objects and addresses -> controller
// -> tables -> datapath; results -> health and metrics.
type proxy struct {
	cfg          proxyconfig.Config
	flags        *runFlags
	log          *slog.Logger
	scripts      []*script.Script // for balancing
	stdout       io.Writer
	oomScore     *int // nil: left as it is
	engineConfig engine.Config

	group      *errgroup.Group
	ctx        context.Context
	client     kubernetes.Interface // nil: the objects come from manifests
	clientUses apiserver.Uses
	events     *apiserver.Recorder // nil, likewise
	host       *hostnet.Host
	metrics    *metrics.Metrics
	limits     limit.Set
	health     *health.Proxy
	checks     *health.ServiceServer
	engine     *engine.Engine      // nil before the first table
	rules      *ruleset.Connection // nil: not opened yet
	udp        *reconcile.Reconciler
	balance    *tracking.Tracker
	shadows    *shadow.Shadows // nil: none
	balancing  bool            // balance follows connections
	table      *decision.Table // in force
	applied    time.Time       // since then
	flows      *flowView       // nil: flows are not recorded
	// inForce and running are table and engine, for any goroutine.
	inForce atomic.Pointer[decision.Table]
	running atomic.Pointer[engine.Engine]
	// apiServer is the source of objects; nil: there is none, or objects come from files.
	apiServer atomic.Pointer[apiserver.Source]
	// hostRules are the node's own masquerade rules; nil: they do not count.
	hostRules *hostmasq.Follower
	// filter has the host's firewall accept flows to services.
	filter      *hostfilter.Keeper
	predecessor predecessor
	// flowLog is the file of the flow log; nil: there is none, or it is standard output.
	flowLog *os.File
	export  *otlp.Exporter // nil: there is none
	// confinement is what is in force; set before other goroutines start.
	confinement confine.State
	supervisor  *supervisor // nil: there is none
	announce    sync.Once   // calls serving
}

// gcPercent is how much garbage there may be for each 100 bytes in use. Most of what is
// in use is the service table, of which little changes: half of Go's default costs hardly
// any time and saves every node of a large cluster some ten MiB.
const gcPercent = 50

// serve runs until the context ends or a part fails.
func (p *proxy) serve(ctx context.Context) (err error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	p.limitMemory()
	p.group, p.ctx = errgroup.WithContext(ctx)
	p.metrics = metrics.New(version)
	p.metrics.ReadLimits(&p.limits)
	p.filter = hostfilter.New(p.log)
	p.health = health.NewProxy(health.ProxyConfig{
		Timeout: 2 * p.cfg.SyncPeriod, Families: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, Answered: p.metrics.Answered,
		Fault: p.fault,
	})
	if p.client != nil {
		if p.events, err = apiserver.NewRecorder(p.ctx, p.client, p.cfg.Node.Name); err != nil {
			return err
		}
		defer p.events.Close()
	}
	// Kernel features are the most likely thing to be missing.
	if _, err := engine.Preflight(); err != nil {
		if err := p.events.NodeNow("KernelFeatureMissing", err.Error()); err != nil {
			p.log.Debug("cannot write the event KernelFeatureMissing", "error", err)
		}
		return err
	}
	if p.engineConfig.Predecessor, err = engine.CheckLock(p.engineConfig.WhenServed); err != nil {
		return err
	}
	p.tuneOOM()
	if err := p.openFlowLog(); err != nil {
		return err
	}
	if err := p.openExport(); err != nil {
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
		Publish: p.publish, Progress: progress{p}, Warned: p.warned,
		MinSyncPeriod: p.cfg.MinSyncPeriod, Logger: p.log,
	})
	if err != nil {
		return errors.Join(err, p.host.Close())
	}
	if p.flags.wantsFlows() {
		defer func() { err = errors.Join(err, p.closeFlows()) }()
		if err := p.watchFlows(controller); err != nil {
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
		p.log.Info("another nfqproxy has taken over; ending")
		return nil
	}
	return err
}

// connect makes the client of the API server, if there is to be one. It reads files only.
func (p *proxy) connect() (err error) {
	if len(p.flags.objects) > 0 {
		return nil
	}
	c := apiserver.Connection{
		Kubeconfig: p.cfg.Kubeconfig, Master: p.flags.master, QPS: p.cfg.QPS, Burst: p.cfg.Burst,
		ContentType: p.cfg.ContentType, AcceptContentTypes: p.cfg.AcceptContentTypes, UserAgent: "nfqproxy/" + version,
	}
	p.client, p.clientUses, err = c.Connect(p.log)
	return err
}

// listen serves one of our own addresses, unless it is empty.
func (p *proxy) listen(name string, connections limit.Numbers, address string, handler http.Handler) {
	if address == "" {
		return
	}
	s := &health.HTTPServer{Name: name, Address: address, Handler: handler, HardFail: p.cfg.BindAddressHardFail, Log: p.log, Connections: p.limits.Connections(name, connections)}
	p.group.Go(func() error { return s.Run(p.ctx) })
}

// objects is where Services and EndpointSlices come from.
func (p *proxy) objects() servicetable.Source {
	if p.client == nil {
		return servicetable.Manifests(p.flags.objects...)
	}
	var file *saved.File
	if p.flags.stateDir != "" {
		file = &saved.File{Path: filepath.Join(p.flags.stateDir, p.cfg.Node.Name+".yaml"), Node: p.cfg.Node.Name}
	}
	source := apiserver.New(apiserver.Config{
		Saved:  file,
		Client: p.client, Node: p.cfg.Node.Name,
		NeedNodeIPs: len(p.cfg.Node.IPs) == 0, NeedPodCIDRs: p.cfg.Node.Mode == servicetable.NodeCIDR,
		AllNodes: p.flags.flowAPI.hubbleTLS.Enabled(), // a relay learns the nodes from any daemon
		Pods:     p.flags.podNames, ResyncPeriod: p.cfg.ConfigSyncPeriod, NodeChanged: p.health.SetNode, Waiting: p.health.WaitingFor, Logger: p.log,
	})
	p.apiServer.Store(source)
	return source
}

// addresses is where the addresses of the node come from.
func (p *proxy) addresses(ctx context.Context, publish func([]netip.Addr)) error {
	stop := context.AfterFunc(ctx, func() { _ = p.host.Close() })
	defer stop()
	if err := p.host.Watch(publish); ctx.Err() == nil {
		return err
	}
	return nil
}

// publish puts a table into force. With the first one the datapath begins.
func (p *proxy) publish(t *decision.Table) {
	if p.engine == nil {
		if err := p.begin(t); err != nil {
			if p.ctx.Err() != nil {
				return // it ended while it waited for another nfqproxy
			}
			p.group.Go(func() error { return err })
			<-p.ctx.Done()
			return
		}
		p.applied = time.Now()
		// Reading all objects took memory that is no longer needed.
		p.group.Go(func() error { debug.FreeOSMemory(); return nil })
	} else {
		if !slices.Equal(t.Node().Addresses, p.table.Node().Addresses) {
			p.hostRules.HostChanged()
		}
		p.filter.Follow(t)
		p.udp.Announce(t)
		p.followBalance(t)
		p.engine.Apply(t)
		p.applied = time.Now()
		p.udp.SetTable(t)
		p.log.Debug("new service table", "generation", t.Generation(), "services", t.ServiceCount())
	}
	p.checks.SetAddresses(health.ListenAddresses(t))
	p.checks.Update(health.Changes(t, p.table))
	p.table = t
	p.inForce.Store(t)
}

// begin opens the datapath.
func (p *proxy) begin(t *decision.Table) error {
	err := p.predecessor.look(p.flags.takeover, p.log)
	if err != nil {
		return err
	}
	p.filter.Follow(t)
	p.engineConfig.Alert = p.alert
	p.engineConfig.Prepare = func() error { return p.prepare(t.Node()) }
	if p.flags.hostMasq == hostMasqueradeAuto {
		p.hostRules = hostmasq.Follow(hostmasq.Kernel(p.host), p.log)
		p.engineConfig.HostRules = p.hostRules
	}
	if p.rules, err = ruleset.OpenConnection(p.flags.ownTables); err != nil {
		return err
	}
	p.engineConfig.Rules = p.rules
	p.udp, err = reconcile.Open(reconcile.Config{Interval: p.cfg.SyncPeriod, Observe: p.reconciled}, p.rules)
	if err != nil {
		return err
	}
	if p.flags.wantsLives() {
		p.followKernel()
	}
	p.openBalance()
	p.balance.Follow(t)
	p.followBalance(t)
	e, err := engine.Open(p.ctx, p.engineConfig, p.host, t)
	if err != nil {
		return errors.Join(err, p.udp.Close())
	}
	p.engine = e
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
	p.udp.SetTable(t)
	p.group.Go(func() error {
		p.udp.Loop(p.ctx)
		return p.udp.Close()
	})
	if err := p.predecessor.finish(p.log); err != nil {
		p.log.Error("cannot remove kube-proxy's rules; continuing with our own", "error", err)
	}
	return nil
}

// serving reports that the proxy serves. /readyz and the metrics report it already.
func (p *proxy) serving(t *decision.Table) {
	p.log.Info("serving", "node", p.cfg.Node.Name, "services", t.ServiceCount(), "queue", p.engine.FirstQueue(), "queues", p.engine.Queues())
	p.events.Node(false, "Starting", "nfqproxy "+version+" serves")
	if err := p.flags.ready(); err != nil {
		p.log.Warn("cannot write to --ready-fd", "error", err)
	}
	p.group.Go(func() error { p.supervisor.run(p.ctx, p.engine.Stuck, p.log); return nil })
}

// fault describes what is wrong with the kernel's rules.
func (p *proxy) fault() string {
	rules, firewall := inspected{p}.Faults()
	return strings.Join(slices.DeleteFunc([]string{rules, firewall}, func(f string) bool { return f == "" }), "; ")
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

// alert writes an event for an alert that the datapath has logged.
func (p *proxy) alert(a engine.Alert) { p.events.Node(!a.Over, a.Reason, a.Text) }

// warned writes an event for a warning that the controller has logged.
func (p *proxy) warned(w servicetable.Warning) {
	if w.Service == (decision.ServiceName{}) {
		p.events.Node(true, "NodeUnclear", w.Text)
		return
	}
	p.events.Service(w.Service.Namespace, w.Service.Name, "ServiceUnusable", w.Text)
}

// checkFailed reports a health check node port that cannot be served or, without an error,
// that is served again.
func (p *proxy) checkFailed(service types.NamespacedName, address netip.AddrPort, err error) {
	if err == nil {
		p.log.Info("serving the health check node port", "service", service, "address", address)
		return
	}
	p.log.Error("cannot serve the health check node port", "service", service, "address", address, "error", err)
	p.events.Service(service.Namespace, service.Name, "FailedToStartServiceHealthcheck", "node "+p.cfg.Node.Name+" cannot serve health check node port "+address.String()+": "+err.Error())
}

// progress reports changes and their application to health and metrics.
type progress struct{ *proxy }

func (p progress) Queued(services, slices int) {
	p.health.Queued()
	p.metrics.Queued(services, slices)
}

func (p progress) Taken() { p.health.Taken() }

func (p progress) Updated(s servicetable.Sync) {
	if p.table != s.Table {
		return // it could not be put into force
	}
	if p.flows != nil {
		p.flows.SetTable(journal.Published{Table: s.Table, InForce: p.applied, Origins: s.Origins})
	}
	p.health.Updated()
	p.metrics.Applied(metrics.Sync{
		Table: s.Table, Duration: time.Since(s.Began), Services: s.Services, EndpointSlices: s.EndpointSlices, Triggers: s.Triggers,
	})
	p.announce.Do(func() { p.serving(s.Table) })
}
