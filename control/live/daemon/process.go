package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/nfqproxy/nfqproxy/control/live/apiserver"
	"github.com/nfqproxy/nfqproxy/control/live/health"
	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/control/live/metrics"
	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
	"github.com/nfqproxy/nfqproxy/control/live/saved"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostfilter"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostmasq"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
)

// process is what all parts of the daemon share.
type process struct {
	cfg     proxyconfig.Config
	flags   *Flags
	version string
	log     *slog.Logger
	stdout  io.Writer

	group      *errgroup.Group
	ctx        context.Context
	client     apiserver.Client
	clientUses apiserver.Uses
	events     *apiserver.Recorder // nil: an observing daemon writes none
	host       *hostnet.Host
	metrics    *metrics.Metrics
	limits     limit.Set
	health     *health.Proxy
	// filter has the host's firewall accept flows to services.
	filter *hostfilter.Keeper
	// hostRules are the node's own masquerade rules; nil: they do not count.
	hostRules *hostmasq.Follower
	// confinement is what is in force; set before other goroutines start.
	confinement observe.Confinement

	// inForce and running are the table in force and the datapath, for any goroutine; nil before the first table.
	inForce atomic.Pointer[decision.Table]
	running atomic.Pointer[engine.Engine]
	// otherProxy is the service proxy that the daemon observes; nil: not known yet, or the daemon decides.
	otherProxy atomic.Pointer[string]
	// apiServer is the source of objects; nil: there is none yet.
	apiServer atomic.Pointer[apiserver.Source]
}

// listen serves one of our own addresses, unless it is empty.
func (p *process) listen(name string, connections limit.Numbers, address string, handler http.Handler) {
	if address == "" {
		return
	}
	s := &health.HTTPServer{Name: name, Address: address, Handler: handler, HardFail: p.cfg.BindAddressHardFail, Level: p.bindLevel, Log: p.log, Connections: p.limits.Connections(name, connections)}
	p.group.Go(func() error { return s.Run(p.ctx) })
}

// bindLevel is the level at which it is logged that an address cannot be bound. While this daemon waits for another one of the
// node, or takes over from it, that one has the addresses.
func (p *process) bindLevel(err error) slog.Level {
	if errors.Is(err, syscall.EADDRINUSE) && !p.flags.observe && p.flags.engine.WhenServed != engine.FailWhenServed && p.running.Load() == nil {
		return slog.LevelDebug
	}
	return slog.LevelError
}

// objects is where Services and EndpointSlices come from.
func (p *process) objects() servicetable.Source {
	var file *saved.File
	if p.flags.stateDir != "" {
		file = &saved.File{Path: filepath.Join(p.flags.stateDir, p.cfg.Node.Name+".yaml"), Node: p.cfg.Node.Name}
	}
	source := apiserver.New(apiserver.Config{
		Saved:  file,
		Client: p.client, Node: p.cfg.Node.Name,
		NeedNodeIPs: p.flags.waitForNode && len(p.cfg.Node.IPs) == 0, NeedPodCIDRs: p.flags.waitForNode && p.cfg.Node.Mode == servicetable.NodeCIDR,
		AllNodes: p.flags.allNodes,
		Pods:     p.flags.podNames, ResyncPeriod: p.cfg.ConfigSyncPeriod, NodeChanged: p.health.SetNode, Waiting: p.health.WaitingFor, Logger: p.log,
	})
	p.apiServer.Store(source)
	return source
}

// addresses is where the addresses of the node come from.
func (p *process) addresses(ctx context.Context, publish func([]netip.Addr)) error {
	stop := context.AfterFunc(ctx, func() { _ = p.host.Close() })
	defer stop()
	if err := p.host.Watch(publish); ctx.Err() == nil {
		return err
	}
	return nil
}

// stats are the datapath's; nil before it runs.
func (p *process) stats() *engine.Stats {
	e := p.running.Load()
	if e == nil {
		return nil
	}
	s := e.Stats()
	s.FilterRepaired = p.filter.Repaired()
	return &s
}

// faults are the damage of the kernel rules and of the rules in the host's firewall that could not be repaired; empty: none
// is known.
func (p *process) faults() (rules, firewall string) {
	if e := p.running.Load(); e != nil {
		rules = e.Fault()
	}
	return rules, p.filter.Fault()
}

// fault describes what is wrong with the kernel's rules.
func (p *process) fault() string {
	rules, firewall := p.faults()
	return strings.Join(slices.DeleteFunc([]string{rules, firewall}, func(f string) bool { return f == "" }), "; ")
}

// alert writes an event for an alert that the datapath has logged.
func (p *process) alert(a engine.Alert) { p.events.Node(!a.Over, a.Reason, a.Text) }

// warned writes an event for a warning that the controller has logged.
func (p *process) warned(w servicetable.Warning) {
	if w.Service == (decision.ServiceName{}) {
		p.events.Node(true, "NodeUnclear", w.Text)
		return
	}
	p.events.Service(w.Service.Namespace, w.Service.Name, "ServiceUnusable", w.Text)
}
