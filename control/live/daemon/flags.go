package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/nfqproxy/nfqproxy/control/algorithms"
	"github.com/nfqproxy/nfqproxy/control/live/apiserver"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/live/metrics"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/usage"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
)

// Flags are the flags of the daemon.
type Flags struct {
	set *pflag.FlagSet

	config        configFlags
	engine        engine.Config // what flags set of it
	master        string
	observe       bool
	accounting    bool
	scope         string
	decide        string
	algorithms    algorithms.Flags
	hostMasq      string
	seed          uint64
	flowLog       string
	flowLogSteps  bool
	flowAPI       flowAPIFlags
	podNames      bool
	allNodes      bool
	waitForNode   bool
	ownTables     bool
	takeover      bool
	stateDir      string
	writeConfigTo string
	readyFD       int
	confine       bool
}

// maxQueue is the highest queue number; the one above locks the network namespace.
const maxQueue = 65534

// Values of --scope.
const scopeAll, scopeServices = "all", "services"

// Values of --decide.
const decideQueue, decideKernel = "queue", "kernel"

// Values of --host-masquerade.
const hostMasqueradeAuto, hostMasqueradeOff = "auto", "off"

// Help is the command's description.
const Help = `Run the service proxy of this node until SIGTERM or SIGINT. The Services and
EndpointSlices come from the API server. Changes apply at once. While the API server is
unreachable, the last state stays in force. nfqproxy requires CAP_NET_ADMIN.`

// Add adds the flags to a set, which is to be parsed before [Flags.Run].
func (f *Flags) Add(flags *pflag.FlagSet) {
	f.set = flags
	flags.SortFlags = false
	f.config.addSource(flags)
	flags.StringVar(&f.master, "master", "", "URL of the API server; overrides the kubeconfig")
	flags.StringVar(&f.stateDir, "state-dir", "", "directory for a copy of the API server's objects, for starts while the API server is unreachable (default: systemd's StateDirectory, if there is one)")
	flags.BoolVar(&f.podNames, "pod-names", false, "watch all Pods of the cluster, to name the source pods in records")
	flags.BoolVar(&f.allNodes, "all-nodes", false, "watch all Nodes of the cluster: the flow API lists them, for hubble-relay")
	flags.StringVar(&f.writeConfigTo, "write-config-to", "", "write the configuration from file and flags to this file, in kube-proxy's format, and exit")
	usage.Group(flags, "Objects and configuration")
	flags.BoolVar(&f.observe, "observe", false, "only observe: the node's own service proxy decides; this daemon records its flows from connection tracking, and changes nothing on the node")
	flags.BoolVar(&f.accounting, "accounting", true, "have the kernel count the bytes of connections and note their times (the sysctls nf_conntrack_acct and nf_conntrack_timestamp); with --observe only if it is given")
	usage.Group(flags, "Observing")
	f.config.addNode(flags)
	flags.StringVar(&f.hostMasq, "host-masquerade", hostMasqueradeAuto, `apply the node's own masquerade rules (nat POSTROUTING: of the CNI plugin, ip-masq-agent, Docker) to translated flows, which do not traverse them: "auto" or "off"`)
	usage.Group(flags, "This node")
	flags.StringVar(&f.scope, "scope", scopeAll, `new flows to queue: "all", or "services": flows to no service bypass the queue, without records`)
	flags.StringVar(&f.decide, "decide", decideQueue, `where new flows are decided: "queue", by this daemon, or "kernel": the kernel's copy of the service table decides all flows it can, for the least latency; their records have no random draw. The annotation nfqproxy.io/decide of a Service ("queue", "kernel", or "queue/N": one flow in N is queued) has precedence`)
	f.algorithms.Add(flags, "The annotation nfqproxy.io/balance of a Service has precedence (default: random)")
	f.algorithms.AddShadow(flags)
	flags.BoolVar(&f.engine.SecondChance, "second-chance", false, "send a new TCP connection that its endpoint refuses, or does not answer before the client sends its SYN again, to another endpoint; kube-proxy does not do this")
	flags.Uint64Var(&f.seed, "seed", 0, "seed of the random selection: the same flows in the same order get the same endpoints (default: random)")
	usage.Group(flags, "Decisions")
	flags.BoolVar(&f.takeover, "takeover", false, "remove kube-proxy's rules (chains KUBE-*, tables kube-proxy) after nfqproxy's own are in place")
	flags.StringVar((*string)(&f.engine.WhenServed), "when-served", string(engine.FailWhenServed), `if another nfqproxy serves this node: "fail", "wait" until it ends, or "replace" it: take over without a gap; then it exits`)
	flags.BoolVar(&f.engine.KeepRules, "keep-rules-on-exit", true, "keep the kernel rules at exit: established flows stay translated, and the kernel's copy of the service table decides new flows")
	flags.BoolVar(&f.ownTables, "own-tables", true, "own the kernel tables while this daemon runs: other programs cannot change or flush them (since Linux 6.9)")
	flags.BoolVar(&f.waitForNode, "wait-for-node", true, "wait at the start for the addresses of this node in its Node object, at most 30s, and for its pod CIDRs where --detect-local-mode needs them, at most 5m")
	flags.BoolVar(&f.confine, "confine", true, "drop the capabilities, system calls and write access that are not needed after the start")
	flags.IntVar(&f.readyFD, "ready-fd", -1, `write "ready" to this file descriptor when the proxy serves`)
	usage.Group(flags, "Start and stop")
	flags.StringVar(&f.flowLog, "flow-log", "", "write one JSON line per decided flow to this file; - for standard output")
	flags.BoolVar(&f.flowLogSteps, "flow-log-steps", false, "include the walk through kube-proxy's chains in each line")
	f.flowAPI.add(flags)
	usage.Group(flags, "Flow API and flow log")
	f.config.addServing(flags)
	f.flowAPI.addMetrics(flags)
	usage.Group(flags, "Health, metrics and messages")
	flags.Uint16Var(&f.engine.Queues, "queues", uint16(min(runtime.NumCPU(), 8)), "number of netfilter queues for packets to services, and the same number for other packets; packets are spread over them by CPU")
	flags.Uint16Var(&f.engine.FirstQueue, "queue-num", 100, "number of the first netfilter queue (default: 100, or the next free numbers)")
	flags.DurationVar(&f.engine.QueueTimeout, "queue-timeout", engine.DefaultQueueTimeout, "how long new flows wait for a worker that makes no progress; then the kernel's copy of the service table decides them")
	flags.DurationVar(&f.engine.BusyPoll, "busy-poll", 0, "how long each queue's worker polls for the next packet before it sleeps, at high packet rates: less latency for new flows, more CPU time; try 100us first (default: no polling)")
	flags.DurationVar(&f.engine.BatchDelay, "debug-batch-delay", 0, "how long the first queue's worker sleeps before each batch of up to 32 packets: to measure an overload")
	usage.Group(flags, "Netfilter queues")
	for _, name := range []string{"debug-batch-delay", "ready-fd", "masquerade-hairpin"} { // the last is useful in labs only
		_ = flags.MarkHidden(name)
	}
}

// complete gives flags that were not given the values that depend on others, and the engine what more than one flag sets.
func (f *Flags) complete() {
	if f.observe && !f.set.Changed("accounting") {
		f.accounting = false
	}
	if !f.set.Changed("state-dir") {
		// systemd makes this directory for a unit with StateDirectory (systemd.exec(5)).
		f.stateDir, _, _ = strings.Cut(os.Getenv("STATE_DIRECTORY"), ":")
	}
	// Flows to no service are not queued.
	f.engine.OnlyServices = f.scope == scopeServices || f.decide == decideKernel
	f.engine.OtherQueues = !f.set.Changed("queue-num")
	if f.set.Changed("seed") {
		f.engine.Seed = &f.seed
	}
}

// Run checks the flags and serves until the context ends or a part fails.
func (f *Flags) Run(ctx context.Context, version string, stdout, stderr io.Writer) error {
	f.complete()
	cfg, warnings, err := f.config.load()
	if err == nil {
		err = f.check()
	}
	if err != nil {
		return err
	}
	log := newLogger(stderr, cfg.LogFormat, cfg.Verbosity)
	warn := func() {
		for _, w := range warnings {
			log.Warn("--config " + f.config.file + ": " + w)
		}
	}
	if f.writeConfigTo != "" {
		text, err := cfg.Marshal()
		if err == nil {
			err = os.WriteFile(f.writeConfigTo, text, 0o644)
		}
		if err != nil {
			return fmt.Errorf("--write-config-to: %w", err)
		}
		warn()
		return nil
	}
	if !cfg.EnableProfiling {
		runtime.MemProfileRate = 0 // samples that nobody can fetch take 1.5 MiB
	}
	cfg.Node.KernelDecides = f.decide == decideKernel
	a, err := f.algorithms.Load(nil)
	if err != nil {
		return err
	}
	cfg.Node.Algorithms, cfg.Node.Balance = a.Registry, a.Chosen
	process := &process{cfg: cfg, flags: f, version: version, log: log, stdout: stdout}
	connection := apiserver.Connection{ClientConnection: cfg.ClientConnection, Master: f.master, UserAgent: "nfqproxy/" + version}
	if process.client, process.clientUses, err = connection.Connect(log); err != nil {
		return err
	}
	p := &proxy{process: process, balance: newBalancer(process, a), config: f.engine}
	p.config.Log = log
	warn()
	if cfg.Node.NoHairpinMasquerade {
		log.Warn("--masquerade-hairpin=false is for teaching: an endpoint that connects to itself through its service gets no reply")
	}
	leaveProcessors(int(f.engine.Queues))
	return p.serve(ctx)
}

// leaveProcessors raises GOMAXPROCS, whatever the number of CPUs, because Go's scheduler
// counts the queues' workers as busy while they wait for packets: other goroutines need
// processors, too. GOMAXPROCS in the environment has precedence.
func leaveProcessors(queues int) {
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) < queues+2 {
		runtime.GOMAXPROCS(queues + 2)
	}
}

// minQueueTimeout is long enough for a busy machine to run a process.
const minQueueTimeout = 100 * time.Millisecond

// check validates flags that no configuration file has, after complete.
func (f *Flags) check() error {
	if f.observe {
		if err := f.checkObserve(); err != nil {
			return err
		}
	}
	e := &f.engine
	all := int(e.Queues)
	if !e.OnlyServices {
		all *= 2
	}
	if e.Queues == 0 || int(e.FirstQueue)+all > maxQueue+1 {
		return fmt.Errorf("--queues %d from --queue-num %d: these are %d queues, for packets to services and for others; want at least one, and none above %d", e.Queues, e.FirstQueue, all, maxQueue)
	}
	for _, w := range []struct{ flag, value, one, other string }{
		{"scope", f.scope, scopeAll, scopeServices},
		{"decide", f.decide, decideQueue, decideKernel},
		{"host-masquerade", f.hostMasq, hostMasqueradeAuto, hostMasqueradeOff},
	} {
		if w.value != w.one && w.value != w.other {
			return fmt.Errorf("--%s %q: want %q or %q", w.flag, w.value, w.one, w.other)
		}
	}
	if e.BusyPoll < 0 || e.BusyPoll > time.Millisecond {
		return fmt.Errorf("--busy-poll %s: want 0 to 1ms", e.BusyPoll)
	}
	if e.QueueTimeout < minQueueTimeout {
		return fmt.Errorf("--queue-timeout %s: want at least %s", e.QueueTimeout, minQueueTimeout)
	}
	switch e.WhenServed {
	case engine.FailWhenServed, engine.WaitWhenServed, engine.ReplaceWhenServed:
	default:
		return fmt.Errorf("--when-served %q: want %q, %q or %q", e.WhenServed, engine.FailWhenServed, engine.WaitWhenServed, engine.ReplaceWhenServed)
	}
	if f.flowLogSteps && f.flowLog == "" {
		return errors.New("--flow-log-steps requires --flow-log")
	}
	if f.stateDir != "" {
		if info, err := os.Stat(f.stateDir); err != nil || !info.IsDir() {
			return fmt.Errorf("--state-dir %s: no such directory; create it first", f.stateDir)
		}
	}
	return f.flowAPI.check()
}

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

// newLogger makes our log and sets klog's, which client-go writes to.
func newLogger(w io.Writer, format string, verbosity int) *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.LevelInfo}
	if verbosity >= 2 {
		options.Level = slog.LevelDebug
	}
	var handler slog.Handler = slog.NewTextHandler(w, options)
	if format == "json" {
		handler = slog.NewJSONHandler(w, options)
	}
	log := slog.New(handler)
	if verbosity >= 4 {
		klog.SetSlogLogger(log)
	} else {
		klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // we log errors that matter ourselves
	}
	return log
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// ready notifies the parent process.
func (f *Flags) ready() error {
	if f.readyFD < 0 {
		return nil
	}
	file := os.NewFile(uintptr(f.readyFD), "ready-fd")
	if file == nil {
		return fmt.Errorf("--ready-fd %d is no file descriptor", f.readyFD)
	}
	_, err := io.WriteString(file, "ready\n")
	return errors.Join(err, file.Close())
}

// flowAPIFlags are the flags of the flow API.
type flowAPIFlags struct {
	// addresses is a list; empty: the API is not served.
	addresses string
	tokenFile string
	// account is the ServiceAccount whose tokens are valid, too; empty: none.
	account string
	tlsCert string
	tlsKey  string
	holds   bool
	buffer  int
	// serviceMetrics are which services have metrics of their own, in at most metricsLimit
	// time series.
	serviceMetrics string
	metricsLimit   int
}

func (f *flowAPIFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.addresses, "flow-api", "unix:"+flowapi.DefaultSocket, `addresses of the flow API, separated by commas: unix:PATH, for its owner and group, or ADDRESS:PORT, which requires a token and, if it is not loopback, TLS; "": not served`)
	flags.StringVar(&f.tokenFile, "flow-api-token-file", "", "file with the flow API's token, which is required for every change and, at an ADDRESS:PORT, for every request")
	flags.StringVar(&f.account, "flow-api-service-account", "", "NAMESPACE/NAME of a ServiceAccount: the flow API also accepts its tokens with audience nfqproxy; the API server checks them")
	flags.BoolVar(&f.holds, "flow-api-holds", false, "allow clients with a token to hold new flows at the queue and step them through the chains: for labs")
	flags.StringVar(&f.tlsCert, "flow-api-tls-cert", "", "file with the flow API's certificate, for every ADDRESS:PORT")
	flags.StringVar(&f.tlsKey, "flow-api-tls-key", "", "file with the certificate's private key")
	flags.IntVar(&f.buffer, "flow-buffer", 16384, "number of flows that the flow API keeps; each takes about 1 KiB")
}

func (f *flowAPIFlags) addMetrics(flags *pflag.FlagSet) {
	flags.StringVar(&f.serviceMetrics, "service-metrics", "", `export metrics of these services and their endpoints: NAMESPACE/NAME, where * matches any text, separated by commas: "shop/*,default/web" (default: none)`)
	flags.IntVar(&f.metricsLimit, "service-metrics-limit", metrics.DefaultServiceLimit, "maximum number of time series for --service-metrics")
}

func (f *flowAPIFlags) check() error {
	if f.buffer < 1024 || f.buffer > 1<<20 {
		return fmt.Errorf("--flow-buffer %d: want 1024 to 1048576 flows", f.buffer)
	}
	if f.metricsLimit < 1 {
		return fmt.Errorf("--service-metrics-limit %d: want 1 or more", f.metricsLimit)
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
