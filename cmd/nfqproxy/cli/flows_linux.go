package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/conntrack"
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
	"github.com/nfqproxy/nfqproxy/control/view/findings"
	"github.com/nfqproxy/nfqproxy/control/view/hubbleapi"
	"github.com/nfqproxy/nfqproxy/control/view/otlp"
	"github.com/nfqproxy/nfqproxy/control/view/web"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
	"github.com/nfqproxy/nfqproxy/datapath/live/nfqueue"
	"github.com/nfqproxy/nfqproxy/datapath/paper/hostnat"
)

// flowAPIFlags are the flags of the flow API.
type flowAPIFlags struct {
	// addresses is a list; empty: the API is not served.
	addresses string
	tokenFile string
	// account is the ServiceAccount whose tokens are valid, too; empty: none.
	account   string
	tlsCert   string
	tlsKey    string
	holds     bool
	hubble    string
	hubbleTLS hubbleapi.TLS
	buffer    int
	// serviceMetrics are which services have metrics of their own, in at most metricsLimit
	// time series.
	serviceMetrics string
	metricsLimit   int
}

func (f *flowAPIFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.addresses, "flow-api", "unix:"+flowapi.DefaultSocket, `addresses of the flow API and the web page, separated by commas: unix:PATH, for its owner and group, or ADDRESS:PORT, which requires a token and, if it is not loopback, TLS; "": not served`)
	flags.StringVar(&f.tokenFile, "flow-api-token-file", "", "file with the flow API's token, which is required for every change and, at an ADDRESS:PORT, for every request")
	flags.StringVar(&f.account, "flow-api-service-account", "", "NAMESPACE/NAME of a ServiceAccount: the flow API takes its tokens with audience nfqproxy, too, and has the API server check them")
	flags.BoolVar(&f.holds, "flow-api-holds", false, "allow clients with a token to hold new flows at the queue and step them through the chains: for labs")
	flags.StringVar(&f.tlsCert, "flow-api-tls-cert", "", "file with the flow API's certificate, for every ADDRESS:PORT")
	flags.StringVar(&f.tlsKey, "flow-api-tls-key", "", "file with the certificate's key")
	flags.StringVar(&f.hubble, "hubble-bind-address", "", "address of the Hubble API, for hubble observe --server and hubble-relay: ADDRESS:PORT on loopback or, with --hubble-tls-cert, --hubble-tls-key and --hubble-tls-client-ca, any (default: not served)")
	flags.StringVar(&f.hubbleTLS.CertFile, "hubble-tls-cert", "", "file with the Hubble API's certificate: for hubble-relay it has the name *.default.hubble-grpc.cilium.io")
	flags.StringVar(&f.hubbleTLS.KeyFile, "hubble-tls-key", "", "file with the certificate's key")
	flags.StringVar(&f.hubbleTLS.ClientCAFile, "hubble-tls-client-ca", "", "file with the authority whose certificates clients of the Hubble API need")
	flags.StringVar(&f.serviceMetrics, "service-metrics", "", `export metrics of these services and their endpoints: NAMESPACE/NAME, where * matches any text, separated by commas: "shop/*,default/web" (default: none)`)
	flags.IntVar(&f.metricsLimit, "service-metrics-limit", metrics.DefaultServiceLimit, "maximum number of time series for --service-metrics")
	flags.IntVar(&f.buffer, "flow-buffer", 16384, "number of flows that the flow API keeps; each takes about 1 KiB")
}

// check validates the flags.
func (f *flowAPIFlags) check() error {
	if f.buffer < 1024 || f.buffer > 1<<20 {
		return fmt.Errorf("--flow-buffer %d: want 1024 to 1048576 flows", f.buffer)
	}
	if f.metricsLimit < 1 {
		return fmt.Errorf("--service-metrics-limit %d: want 1 or more", f.metricsLimit)
	}
	if f.hubble == "" && f.hubbleTLS.Enabled() {
		return errors.New("--hubble-tls-cert, --hubble-tls-key and --hubble-tls-client-ca require --hubble-bind-address")
	}
	if f.hubble != "" {
		if err := f.hubbleTLS.Check(f.hubble); err != nil {
			return err
		}
	}
	if f.hubble != "" && f.addresses == "" {
		return errors.New("--hubble-bind-address serves the records of the flow API: it requires --flow-api")
	}
	if f.holds && (f.addresses == "" || !f.hasToken()) {
		return errors.New("--flow-api-holds requires --flow-api, and --flow-api-token-file or --flow-api-service-account")
	}
	if f.account != "" {
		if f.addresses == "" {
			return errors.New("--flow-api-service-account requires --flow-api")
		}
		if _, err := apiserver.ParseAccount(f.account); err != nil {
			return wrap("--flow-api-service-account", err)
		}
	}
	ports := 0
	for _, a := range f.list() {
		if err := a.Check(); err != nil {
			return err
		}
		if _, socket := observe.SocketPath(a.Address); !socket {
			ports++
		}
	}
	if f.tlsCert+f.tlsKey != "" && ports == 0 {
		return errors.New("--flow-api-tls-cert and --flow-api-tls-key require an ADDRESS:PORT in --flow-api: a Unix socket has no TLS")
	}
	if f.serviceMetrics != "" && f.addresses == "" {
		return errors.New("--service-metrics counts the records of the flow API: it requires --flow-api")
	}
	_, err := metrics.ParseServicePatterns(f.serviceMetrics)
	return wrap("--service-metrics", err)
}

// list returns the addresses.
func (f *flowAPIFlags) list() (all []flowapi.Address) {
	if f.addresses == "" {
		return nil
	}
	for address := range strings.SplitSeq(f.addresses, ",") {
		all = append(all, flowapi.Address{Address: address, CertFile: f.tlsCert, KeyFile: f.tlsKey, HasToken: f.hasToken()})
	}
	return all
}

func (f *flowAPIFlags) hasToken() bool { return f.tokenFile != "" || f.account != "" }

// token reads the token; empty: there is none.
func (f *flowAPIFlags) token() (string, error) {
	if f.tokenFile == "" {
		return "", nil
	}
	return flowapi.ReadToken("--flow-api-token-file", f.tokenFile)
}

// wantsFlows reports whether flows are recorded at all.
func (f *runFlags) wantsFlows() bool { return f.flowLog != "" || f.wantsLives() }

// wantsLives reports whether the life cycles of flows are recorded, too.
func (f *runFlags) wantsLives() bool { return f.flowAPI.addresses != "" || f.otlp.endpoint != "" }

// flowView is the journal of this node's flows and its outputs: the flow log and the flow API.
type flowView struct {
	*journal.Journal
	node *localnode.Node
	log  *journal.Log // nil: there is none
	// stamping has the kernel note when packets arrive; nil: it does not.
	stamping io.Closer
	ctx      context.Context
	stop     context.CancelFunc
	done     sync.WaitGroup
}

// Lost counts the flows that overflowed the journal's buffers, and those that the log dropped.
func (v *flowView) Lost() uint64 {
	n := v.Journal.Lost()
	if v.log != nil {
		n += v.log.Lost()
	}
	return n
}

// logError is why the flow log gets no more records.
func (v *flowView) logError() error {
	if v.log == nil {
		return nil
	}
	return v.log.Err()
}

// watchFlows starts to record flows and to serve them. closeFlows has to follow.
func (p *proxy) watchFlows(controller *servicetable.Controller) error {
	owners := controller.Owners()
	v := &flowView{Journal: journal.New(journal.Config{Flows: p.flags.flowAPI.buffer})}
	v.ctx, v.stop = context.WithCancel(context.Background())
	c := localnode.Config{
		Name: p.cfg.Node.Name, Version: version, Journal: v.Journal, Owners: owners,
		Table: p.inForce.Load, Stats: p.stats, HostRules: p.hostRulesInForce, Daemon: inspected{p}, Exports: p.exports, Algorithms: p.cfg.Node.Algorithms, FlowLog: v.logError,
	}
	if p.flags.flowAPI.holds {
		holder := hold.New(hold.Config{Node: p.cfg.Node.Name, Names: owners.Owner, Log: p.log})
		c.Holder, p.engineConfig.Gate = holder, holder
	}
	v.node = localnode.New(c)
	p.flows, p.engineConfig.Sink = v, v
	services, err := metrics.ParseServicePatterns(p.flags.flowAPI.serviceMetrics)
	if err != nil {
		return err
	}
	if p.flags.wantsLives() {
		p.metrics.ReadFlows(v.node, metrics.ServiceMetrics{Services: services, Limit: p.flags.flowAPI.metricsLimit})
	}
	v.done.Go(func() { v.Run(v.ctx) })
	p.startFlowLog(owners)
	if p.export != nil {
		p.export.Start(otlp.Source{Journal: v.Journal, Names: owners.Owner, Metrics: p.metrics})
	}
	if p.flags.flowAPI.hubble != "" {
		p.group.Go(func() error { return p.serveHubble(owners) })
	}
	return p.serveFlows(controller)
}

// serveHubble serves the Hubble API, as soon as its address is free.
func (p *proxy) serveHubble(owners *servicetable.Owners) error {
	c := hubbleapi.Config{
		Observer: p.flows.node, Peers: &hubbleapi.Peers{Each: owners.Nodes, Listen: netip.MustParseAddrPort(p.flags.flowAPI.hubble)},
		TLS: p.flags.flowAPI.hubbleTLS, Limits: &p.limits, Log: p.log,
	}
	for {
		var listen net.ListenConfig
		l, err := listen.Listen(p.ctx, "tcp", p.flags.flowAPI.hubble)
		switch {
		case err == nil:
			return hubbleapi.Serve(p.ctx, l, c)
		case p.ctx.Err() != nil:
			return nil
		case p.cfg.BindAddressHardFail:
			return wrap("--hubble-bind-address", err)
		}
		p.log.Error("cannot serve the Hubble API; trying again", "in", health.RebindInterval, "error", err)
		select {
		case <-p.ctx.Done():
			return nil
		case <-time.After(health.RebindInterval):
		}
	}
}

// stats are the datapath's; nil before it runs.
func (p *proxy) stats() *engine.Stats {
	e := p.running.Load()
	if e == nil {
		return nil
	}
	s := e.Stats()
	s.FilterRepaired = p.filter.Repaired()
	return &s
}

// hostRulesInForce are the node's own masquerade rules; nil: they do not count.
func (p *proxy) hostRulesInForce() *hostnat.Rules {
	if p.running.Load() == nil {
		return nil
	}
	return p.hostRules.Rules()
}

// openFlowLog opens the file of the flow log.
func (p *proxy) openFlowLog() (err error) {
	if name := p.flags.flowLog; name != "" && name != "-" {
		p.flowLog, err = os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	}
	return wrap("--flow-log", err)
}

func (p *proxy) startFlowLog(owners *servicetable.Owners) {
	f, v := p.flags, p.flows
	if f.flowLog == "" {
		return
	}
	w := p.stdout
	if p.flowLog != nil {
		w = p.flowLog
	}
	v.log = v.NewLog(w, journal.LogConfig{Names: owners.Owner, Steps: f.flowLogSteps, Failed: func(err error) {
		p.log.Warn("cannot write the flow log; it gets no more records", "error", err)
	}})
}

// serveFlows serves the flow API at its addresses, if it has any.
func (p *proxy) serveFlows(controller *servicetable.Controller) error {
	f := &p.flags.flowAPI
	addresses := f.list()
	if len(addresses) == 0 {
		return nil
	}
	token, err := f.token()
	if err != nil {
		return err
	}
	c := flowapi.Config{Observer: p.flows.node, Doctor: &findings.Doctor{Observer: p.flows.node}, Page: web.Handler(), Token: token, Limits: &p.limits, Log: p.log}
	c.Balancing = &localnode.Balancing{Registry: p.cfg.Node.Algorithms, Table: p.inForce.Load, Switch: controller.Balance, Beside: p.shadows}
	if f.account != "" {
		account, err := apiserver.ParseAccount(f.account)
		if err != nil {
			return wrap("--flow-api-service-account", err)
		}
		c.Reviewer = &apiserver.Tokens{Client: p.client, Account: account}
	}
	server := flowapi.NewServer(c)
	for _, a := range addresses {
		if err := p.serveFlowsAt(server, a); err != nil {
			return err
		}
	}
	return nil
}

// serveFlowsAt serves the flow API at one address. An address that is in use does not stop the
// proxy: it is tried again, as those of health and metrics are.
func (p *proxy) serveFlowsAt(server *flowapi.Server, address flowapi.Address) error {
	l, err := flowapi.Listen(address)
	if _, refused := errors.AsType[syscall.Errno](err); err != nil && (!refused || p.cfg.BindAddressHardFail) {
		return err
	}
	p.group.Go(func() error {
		for ; err != nil; l, err = flowapi.Listen(address) {
			p.log.Error("cannot serve the flow API; trying again", "in", health.RebindInterval, "error", err)
			select {
			case <-p.ctx.Done():
				return nil
			case <-time.After(health.RebindInterval):
			}
		}
		return server.Serve(p.ctx, l)
	})
	return nil
}

// eventBuffer is how many bytes of events may wait.
const eventBuffer = 8 << 20

// followKernel feeds the journal with the kernel's conntrack events. Without them records have
// no life cycle.
func (p *proxy) followKernel() {
	changes, err := proxyconfig.FlowAccounting(proxyconfig.KernelFiles{Host: hostSysctls})
	for _, c := range changes {
		p.log.Info("set " + c)
	}
	if err != nil {
		p.log.Warn("cannot enable connection accounting: records lack details", "error", err)
	}
	events, err := conntrack.Watch(conntrack.WatchConfig{Buffer: eventBuffer})
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
		p.log.Warn("no conntrack events: flow life cycles are not available", "error", err)
		p.flows.NotFollowed(err.Error())
		return
	}
	v := p.flows
	if v.stamping, err = nfqueue.StampPackets(); err != nil {
		p.log.Warn("no packet timestamps: waiting times in the queue are not available", "error", err)
	}
	v.done.Go(func() {
		err := v.Follow(v.ctx, journal.Kernel{
			Events: events, Connections: connections, Dumps: dumps, Accounting: isOn("nf_conntrack_acct"), Timestamps: isOn("nf_conntrack_timestamp"),
		})
		if err = errors.Join(err, connections.Close(), dumps.Close()); err != nil {
			p.log.Error("conntrack events failed: flow life cycles are no longer available", "error", err)
		}
	})
}

// isOn reports whether a sysctl of connection tracking is 1.
func isOn(name string) bool {
	text, err := os.ReadFile("/proc/sys/net/netfilter/" + name)
	return err == nil && strings.TrimSpace(string(text)) == "1"
}

// closeFlows ends what watchFlows and followKernel started, after the last flow.
func (p *proxy) closeFlows() (err error) {
	v := p.flows
	v.stop()
	v.done.Wait()
	if p.export != nil {
		p.export.Close()
	}
	if v.log != nil {
		err = wrap("--flow-log", v.log.Close())
	}
	if p.flowLog != nil {
		err = errors.Join(err, p.flowLog.Close())
	}
	if v.stamping != nil {
		err = errors.Join(err, v.stamping.Close())
	}
	return err
}
