package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	goruntime "runtime"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
)

// configFlags are the flags that kube-proxy's configuration file has fields for. Flags
// override the file.
type configFlags struct {
	set         *pflag.FlagSet
	file        string
	node        proxyconfig.NodeFlags
	name        string
	kubeconfig  string
	qps         float32
	burst       int
	contentType string
	resync      time.Duration
	sync        time.Duration
	minSync     time.Duration
	healthz     string
	metrics     string
	hardFail    bool
	profiling   bool
	oomScore    int
	conntrack   proxyconfig.Conntrack
	verbosity   int
	logFormat   string
}

func (f *configFlags) add(flags *pflag.FlagSet) {
	d := proxyconfig.Default()
	f.set = flags
	flags.StringVar(&f.file, "config", "", "kube-proxy's configuration file (KubeProxyConfiguration, kubeproxy.config.k8s.io/v1alpha1); flags override it")
	flags.StringVar(&f.name, "hostname-override", "", "name of this node (default: the host name)")
	f.node.Add(flags)
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file for the API server (default: in-cluster configuration)")
	flags.Float32Var(&f.qps, "kube-api-qps", d.QPS, "requests to the API server per second")
	flags.IntVar(&f.burst, "kube-api-burst", d.Burst, "burst of requests to the API server")
	flags.StringVar(&f.contentType, "kube-api-content-type", d.ContentType, "encoding of API objects: application/vnd.kubernetes.protobuf or application/json")
	flags.DurationVar(&f.resync, "config-sync-period", d.ConfigSyncPeriod, "interval between two passes over all cached objects")
	flags.DurationVar(&f.sync, "sync-period", d.SyncPeriod, "interval between checks of UDP flows against the service table; /healthz fails when a change waits for twice as long")
	flags.DurationVar(&f.minSync, "min-sync-period", d.MinSyncPeriod, "minimum time between two service tables; 0 is enough, because the work for a table is proportional to the change")
	flags.StringVar(&f.healthz, "healthz-bind-address", d.HealthzBindAddress, "address and port of /healthz, /livez and /readyz; empty: not served")
	flags.StringVar(&f.metrics, "metrics-bind-address", d.MetricsBindAddress, "address and port of /metrics; empty: not served")
	flags.BoolVar(&f.hardFail, "bind-address-hard-fail", false, "exit if one of these addresses cannot be bound, instead of trying again")
	flags.BoolVar(&f.profiling, "profiling", false, "serve /debug/pprof at the address of the metrics")
	flags.IntVar(&f.oomScore, "oom-score-adj", d.OOMScoreAdj, "oom_score_adj of this process")
	c := &f.conntrack
	flags.IntVar(&c.MaxPerCore, "conntrack-max-per-core", d.Conntrack.MaxPerCore, "maximum number of tracked connections per core; 0: unchanged")
	flags.IntVar(&c.Min, "conntrack-min", d.Conntrack.Min, "minimum of that maximum, for any number of cores")
	flags.DurationVar(&c.TCPEstablishedTimeout, "conntrack-tcp-timeout-established", d.Conntrack.TCPEstablishedTimeout, "timeout of an idle TCP connection")
	flags.DurationVar(&c.TCPCloseWaitTimeout, "conntrack-tcp-timeout-close-wait", d.Conntrack.TCPCloseWaitTimeout, "timeout of a TCP connection in CLOSE_WAIT")
	flags.DurationVar(&c.UDPTimeout, "conntrack-udp-timeout", d.Conntrack.UDPTimeout, "timeout of a UDP flow without replies")
	flags.DurationVar(&c.UDPStreamTimeout, "conntrack-udp-timeout-stream", d.Conntrack.UDPStreamTimeout, "timeout of a UDP flow with replies")
	flags.BoolVar(&c.TCPBeLiberal, "conntrack-tcp-be-liberal", false, "accept packets outside the TCP window as part of their connection")
	flags.IntVarP(&f.verbosity, "v", "v", 0, "verbosity; from 2: log each new service table; from 4: log client-go")
	flags.Lookup("v").NoOptDefVal = "2"
	flags.StringVar(&f.logFormat, "logging-format", d.LogFormat, "text or json")
}

// load reads the file, if there is one, and applies the flags.
func (f *configFlags) load() (cfg proxyconfig.Config, warnings []string, err error) {
	cfg = proxyconfig.Default()
	if f.file != "" {
		if cfg, warnings, err = proxyconfig.Load(f.file); err != nil {
			return cfg, nil, fmt.Errorf("--config: %w", err)
		}
	}
	if err := f.node.Apply(&cfg.Node); err != nil {
		return cfg, nil, err
	}
	f.overlay(&cfg)
	if err := check(&cfg); err != nil {
		return cfg, nil, err
	}
	if cfg.Node.Name == "" {
		if cfg.Node.Name, err = os.Hostname(); err != nil {
			return cfg, nil, fmt.Errorf("cannot read the host name: %w (give --hostname-override)", err)
		}
	}
	// As the kubelet and kube-proxy make a host's name the Node's.
	cfg.Node.Name = strings.ToLower(strings.TrimSpace(cfg.Node.Name))
	return cfg, warnings, nil
}

// overlay sets what flags were given for.
func (f *configFlags) overlay(cfg *proxyconfig.Config) {
	d, c := &cfg.Conntrack, &f.conntrack
	for name, set := range map[string]func(){
		"hostname-override":                 func() { cfg.Node.Name = f.name },
		"kubeconfig":                        func() { cfg.Kubeconfig = f.kubeconfig },
		"kube-api-qps":                      func() { cfg.QPS = f.qps },
		"kube-api-burst":                    func() { cfg.Burst = f.burst },
		"kube-api-content-type":             func() { cfg.ContentType = f.contentType },
		"config-sync-period":                func() { cfg.ConfigSyncPeriod = f.resync },
		"sync-period":                       func() { cfg.SyncPeriod = f.sync },
		"min-sync-period":                   func() { cfg.MinSyncPeriod = f.minSync },
		"healthz-bind-address":              func() { cfg.HealthzBindAddress = f.healthz },
		"metrics-bind-address":              func() { cfg.MetricsBindAddress = f.metrics },
		"bind-address-hard-fail":            func() { cfg.BindAddressHardFail = f.hardFail },
		"profiling":                         func() { cfg.EnableProfiling = f.profiling },
		"oom-score-adj":                     func() { cfg.OOMScoreAdj = f.oomScore },
		"conntrack-max-per-core":            func() { d.MaxPerCore = c.MaxPerCore },
		"conntrack-min":                     func() { d.Min = c.Min },
		"conntrack-tcp-timeout-established": func() { d.TCPEstablishedTimeout = c.TCPEstablishedTimeout },
		"conntrack-tcp-timeout-close-wait":  func() { d.TCPCloseWaitTimeout = c.TCPCloseWaitTimeout },
		"conntrack-udp-timeout":             func() { d.UDPTimeout = c.UDPTimeout },
		"conntrack-udp-timeout-stream":      func() { d.UDPStreamTimeout = c.UDPStreamTimeout },
		"conntrack-tcp-be-liberal":          func() { d.TCPBeLiberal = c.TCPBeLiberal },
		"v":                                 func() { cfg.Verbosity = f.verbosity },
		"logging-format":                    func() { cfg.LogFormat = f.logFormat },
	} {
		if f.set.Changed(name) {
			set()
		}
	}
}

// check validates values that flags may have set.
func check(cfg *proxyconfig.Config) error {
	for _, a := range []struct{ flag, address string }{
		{"--healthz-bind-address", cfg.HealthzBindAddress}, {"--metrics-bind-address", cfg.MetricsBindAddress},
	} {
		if _, err := netip.ParseAddrPort(a.address); a.address != "" && err != nil {
			return fmt.Errorf("%s %q: want IP:port such as 0.0.0.0:10256, or nothing", a.flag, a.address)
		}
	}
	c := &cfg.Conntrack
	for _, n := range []struct {
		flag  string
		value int64
	}{
		{"--kube-api-burst", int64(cfg.Burst)},
		{"--conntrack-max-per-core", int64(c.MaxPerCore)},
		{"--conntrack-min", int64(c.Min)},
		{"--conntrack-tcp-timeout-established", int64(c.TCPEstablishedTimeout)},
		{"--conntrack-tcp-timeout-close-wait", int64(c.TCPCloseWaitTimeout)},
		{"--conntrack-udp-timeout", int64(c.UDPTimeout)},
		{"--conntrack-udp-timeout-stream", int64(c.UDPStreamTimeout)},
		{"-v", int64(cfg.Verbosity)},
	} {
		if n.value < 0 {
			return fmt.Errorf("%s: want 0 or more", n.flag)
		}
	}
	switch {
	case cfg.SyncPeriod <= 0 || cfg.ConfigSyncPeriod <= 0:
		return errors.New("--sync-period and --config-sync-period: want more than 0")
	case cfg.MinSyncPeriod < 0 || cfg.MinSyncPeriod > cfg.SyncPeriod:
		return fmt.Errorf("--min-sync-period %s: want 0 to --sync-period, which is %s", cfg.MinSyncPeriod, cfg.SyncPeriod)
	case cfg.OOMScoreAdj < -1000 || cfg.OOMScoreAdj > 1000:
		return fmt.Errorf("--oom-score-adj %d: want -1000 to 1000", cfg.OOMScoreAdj)
	case cfg.LogFormat != "text" && cfg.LogFormat != "json":
		return fmt.Errorf("--logging-format %q: want text or json", cfg.LogFormat)
	case cfg.ContentType != runtime.ContentTypeProtobuf && cfg.ContentType != runtime.ContentTypeJSON:
		return fmt.Errorf("--kube-api-content-type %q: want %s or %s", cfg.ContentType, runtime.ContentTypeProtobuf, runtime.ContentTypeJSON)
	}
	return nil
}

// defaultQueues is one for each core, within reason.
func defaultQueues() uint16 { return uint16(min(goruntime.NumCPU(), 8)) }
