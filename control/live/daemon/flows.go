package daemon

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/explain"
	"github.com/nfqproxy/nfqproxy/control/live/apiserver"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/live/health"
	"github.com/nfqproxy/nfqproxy/control/live/hold"
	"github.com/nfqproxy/nfqproxy/control/live/journal"
	"github.com/nfqproxy/nfqproxy/control/live/localnode"
	"github.com/nfqproxy/nfqproxy/control/live/metrics"
	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/balance/shadow"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
	"github.com/nfqproxy/nfqproxy/datapath/live/nfqueue"
	"github.com/nfqproxy/nfqproxy/datapath/live/otherproxy"
)

// wantsFlows reports whether flows are recorded at all.
func (f *Flags) wantsFlows() bool { return f.flowLog != "" || f.wantsLives() }

// wantsLives reports whether the life cycles of flows are recorded, too.
func (f *Flags) wantsLives() bool { return f.flowAPI.addresses != "" }

// recording is the journal of this node's flows and its outputs: the flow log and the flow API.
type recording struct {
	*journal.Journal
	*process
	config  *engine.Config // gets the journal as its sink
	shadows *shadow.Shadows
	node    *localnode.Node
	log     *journal.Log // nil: there is none
	logTo   io.Writer    // nil: there is none
	// open is what close closes: the file of the flow log, and what has the kernel note when packets arrive.
	open []io.Closer
	ctx  context.Context
	stop context.CancelFunc
	done sync.WaitGroup
}

// openRecording opens the outputs, before the process is confined; nil: flows are not recorded.
func (p *proxy) openRecording() (*recording, error) {
	f := p.flags
	if !f.wantsFlows() {
		return nil, nil
	}
	v := &recording{process: p.process, config: &p.config, shadows: p.balance.shadows}
	switch f.flowLog {
	case "":
	case "-":
		v.logTo = v.stdout
	default:
		file, err := os.OpenFile(f.flowLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
		if err != nil {
			return nil, wrap("--flow-log", err)
		}
		v.logTo, v.open = file, append(v.open, file)
	}
	return v, nil
}

// Lost counts the flows that overflowed the journal's buffers, and those that the log dropped.
func (v *recording) Lost() uint64 {
	n := v.Journal.Lost()
	if v.log != nil {
		n += v.log.Lost()
	}
	return n
}

// start starts to record flows and to serve them. close has to follow.
func (v *recording) start(controller *servicetable.Controller) error {
	owners, f := controller.Owners(), v.flags
	keeping := journal.Config{Flows: f.flowAPI.buffer, Meter: v.metrics}
	if f.observe {
		keeping.Observe = &journal.Observe{Proxy: v.observed, OnlyServices: f.scope == scopeServices}
	}
	v.Journal = journal.New(keeping)
	v.ctx, v.stop = context.WithCancel(context.Background())
	c := localnode.Config{
		Name: v.cfg.Node.Name, Version: v.version, Journal: v.Journal, Owners: owners,
		Table: v.inForce.Load, Stats: v.stats, HostRules: v.hostRulesInForce, Daemon: v, Algorithms: v.cfg.Node.Algorithms, Shadows: v.shadows,
	}
	if !f.observe {
		c.Switch = controller.Balance
	}
	if f.flowAPI.holds {
		holder := hold.New(hold.Config{Node: v.cfg.Node.Name, Names: owners.Owner, Log: v.process.log})
		c.Holder, v.config.Gate = holder, holder
	}
	v.node, v.config.Sink = localnode.New(c), v
	if f.wantsLives() {
		services, _ := metrics.ParseServicePatterns(f.flowAPI.serviceMetrics) // which check has read
		v.metrics.ReadFlows(v.node, metrics.ServiceMetrics{Services: services, Limit: f.flowAPI.metricsLimit})
	}
	v.done.Go(func() { v.Run(v.ctx) })
	if v.logTo != nil {
		v.log = v.NewLog(v.logTo, journal.LogConfig{Names: owners.Owner, Steps: f.flowLogSteps, Failed: func(err error) {
			v.process.log.Warn("cannot write the flow log; no more records are written", "error", err)
		}})
	}
	return v.serve()
}

// hostRulesInForce are the node's own masquerade rules; nil: they do not count.
func (v *recording) hostRulesInForce() explain.HostRules {
	if v.running.Load() == nil || v.hostRules == nil {
		return nil
	}
	return v.hostRules
}

// Describe implements [localnode.Daemon].
func (v *recording) Describe(d *observe.Daemon) {
	d.Observed, d.Confinement = v.observed(), v.confinement
	if source := v.apiServer.Load(); source != nil {
		d.Source.Saved = source.Saved()
	}
	d.Source.WaitingFor, d.Source.Late = v.health.Pending()
	d.Rules.Fault, d.HostFirewall.Fault = v.faults()
	d.HostNAT.Applied = v.flags.hostMasq == hostMasqueradeAuto
	if v.running.Load() != nil { // which sets the rules
		d.HostNAT.Unknown = v.hostRules.Unknown()
	}
	if v.log != nil {
		if err := v.log.Err(); err != nil {
			d.FlowLog = err.Error()
		}
	}
}

// CheckRules implements [localnode.Daemon].
func (v *recording) CheckRules(ctx context.Context) (engine.RuleCheck, error) {
	e := v.running.Load()
	if e == nil {
		return engine.RuleCheck{}, errors.New("the datapath has not started")
	}
	return e.CheckRules(ctx)
}

// serve serves the flow API at its addresses, if it has any.
func (v *recording) serve() error {
	f := &v.flags.flowAPI
	addresses := f.list()
	if len(addresses) == 0 {
		return nil
	}
	c := flowapi.Config{Observer: v.node, Limits: &v.limits, Log: v.process.log}
	if f.tokenFile != "" {
		var err error
		if c.Token, err = flowapi.ReadToken("--flow-api-token-file", f.tokenFile); err != nil {
			return err
		}
	}
	if !v.flags.observe {
		c.Balancing = v.node
	}
	if f.account != "" {
		account, _ := apiserver.ParseAccount(f.account) // which check has read
		c.Reviewer = &apiserver.Tokens{Client: v.client, Account: account}
	}
	server := flowapi.New(c)
	for _, a := range addresses {
		if err := v.serveAt(server, a); err != nil {
			return err
		}
	}
	return nil
}

// serveAt serves the flow API at one address. An address that is in use does not stop the
// proxy: it is tried again, as those of health and metrics are.
func (v *recording) serveAt(server *flowapi.API, address flowapi.Address) error {
	l, err := flowapi.Listen(address)
	if _, refused := errors.AsType[syscall.Errno](err); err != nil && (!refused || v.cfg.BindAddressHardFail) {
		return err
	}
	v.group.Go(func() error {
		for ; err != nil; l, err = flowapi.Listen(address) {
			v.process.log.Log(v.process.ctx, v.bindLevel(err), "cannot serve the flow API; trying again", "in", health.RebindInterval, "error", err)
			select {
			case <-v.process.ctx.Done():
				return nil
			case <-time.After(health.RebindInterval):
			}
		}
		return server.Serve(v.process.ctx, l)
	})
	return nil
}

// eventBuffer is how many bytes of events may wait.
const eventBuffer = 8 << 20

// followKernel feeds the journal with the kernel's conntrack events. After an error, records have no life cycle.
func (v *recording) followKernel() error {
	if v.flags.accounting {
		changes, err := proxyconfig.FlowAccounting(proxyconfig.KernelFiles{Host: hostSysctls})
		for _, c := range changes {
			v.process.log.Info("set " + c)
		}
		if err != nil {
			v.process.log.Warn("cannot enable connection accounting: records lack details", "error", err)
		}
	}
	events, err := conntrack.Watch(conntrack.WatchConfig{Buffer: eventBuffer, New: v.flags.observe})
	var connections, dumps *conntrack.Table
	if err == nil {
		var locks conntrack.Locks
		if connections, err = conntrack.Open(&locks); err != nil {
			err = errors.Join(err, events.Close())
		} else if dumps, err = conntrack.Open(&locks); err != nil {
			err = errors.Join(err, connections.Close(), events.Close())
		}
	}
	if err != nil {
		v.NotFollowed(err.Error())
		return err
	}
	if !v.flags.observe {
		stamping, err := nfqueue.StampPackets()
		if err == nil {
			v.open = append(v.open, stamping)
		} else {
			v.process.log.Warn("no packet timestamps: waiting times in the queue are not available", "error", err)
		}
	}
	v.done.Go(func() {
		err := v.Follow(v.ctx, journal.Kernel{
			Events: events, Connections: connections, Dumps: dumps, Accounting: isOn("nf_conntrack_acct"), Timestamps: isOn("nf_conntrack_timestamp"),
		})
		if err = errors.Join(err, connections.Close(), dumps.Close()); err != nil {
			v.process.log.Error("conntrack events failed: flow life cycles are no longer available", "error", err)
		}
	})
	return nil
}

// findProxyInterval is how often the daemon looks which proxy serves the node.
const findProxyInterval = 30 * time.Second

// observeFlows begins to make records of the flows that the node's own proxy decides, by the first table.
func (p *proxy) observeFlows(t *decision.Table) error {
	p.inForce.Store(t)
	p.findOtherProxy()
	p.group.Go(func() error {
		for tick := time.Tick(findProxyInterval); ; {
			select {
			case <-p.ctx.Done():
				return nil
			case <-tick:
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

// isOn reports whether a sysctl of connection tracking is 1.
func isOn(name string) bool {
	value, err := proxyconfig.KernelFiles{}.Read("/proc/sys/net/netfilter/" + name)
	return err == nil && value == 1
}

// close ends what start and followKernel started, after the last flow.
func (v *recording) close() (err error) {
	v.stop()
	v.done.Wait()
	if v.log != nil {
		err = wrap("--flow-log", v.log.Close())
	}
	for _, c := range v.open {
		err = errors.Join(err, c.Close())
	}
	return err
}
