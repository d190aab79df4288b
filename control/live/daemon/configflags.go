package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
)

// configFlags are the flags for settings that kube-proxy's configuration file has, too. Flags override the file. Its other
// fields have no flags.
type configFlags struct {
	set  *pflag.FlagSet
	file string
	node proxyconfig.NodeFlags
	// cfg is the configuration whose fields the flags in direct set.
	cfg proxyconfig.Config
}

// direct are flags that are a field of the configuration each.
var direct = []string{"hostname-override", "kubeconfig", "healthz-bind-address", "metrics-bind-address", "profiling", "v", "logging-format"}

func (f *configFlags) addSource(flags *pflag.FlagSet) {
	f.set, f.cfg = flags, proxyconfig.Default()
	flags.StringVar(&f.file, "config", "", "kube-proxy's configuration file (KubeProxyConfiguration, kubeproxy.config.k8s.io/v1alpha1), also for connection tracking limits, sync periods and the API client; flags override it")
	flags.StringVar(&f.cfg.Kubeconfig, "kubeconfig", f.cfg.Kubeconfig, "kubeconfig file for the API server (default: in-cluster configuration)")
}

func (f *configFlags) addNode(flags *pflag.FlagSet) {
	flags.StringVar(&f.cfg.Node.Name, "hostname-override", f.cfg.Node.Name, "name of this node (default: the host name)")
	f.node.Add(flags)
}

func (f *configFlags) addServing(flags *pflag.FlagSet) {
	c := &f.cfg
	flags.StringVar(&c.HealthzBindAddress, "healthz-bind-address", c.HealthzBindAddress, "address and port of /healthz, /livez and /readyz; empty: not served")
	flags.StringVar(&c.MetricsBindAddress, "metrics-bind-address", c.MetricsBindAddress, "address and port of /metrics; empty: not served")
	flags.BoolVar(&c.EnableProfiling, "profiling", c.EnableProfiling, "serve /debug/pprof at the address of the metrics")
	flags.IntVarP(&c.Verbosity, "v", "v", c.Verbosity, "verbosity; from 2: log each new service table; from 4: log client-go")
	flags.Lookup("v").NoOptDefVal = "2"
	flags.StringVar(&c.LogFormat, "logging-format", c.LogFormat, "text or json")
}

// load reads the file, if there is one, and applies the flags.
func (f *configFlags) load() (cfg proxyconfig.Config, warnings []string, err error) {
	if f.file != "" {
		given := make(map[string]string)
		for _, name := range direct {
			if f.set.Changed(name) {
				given[name] = f.set.Lookup(name).Value.String()
			}
		}
		if f.cfg, warnings, err = proxyconfig.Load(f.file); err != nil {
			return cfg, nil, fmt.Errorf("--config: %w", err)
		}
		for name, value := range given {
			if err := f.set.Set(name, value); err != nil {
				return cfg, nil, err
			}
		}
	}
	cfg = f.cfg
	if err := f.node.Apply(&cfg.Node); err != nil {
		return cfg, nil, err
	}
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

// check validates values that flags may have set.
func check(cfg *proxyconfig.Config) error {
	for _, a := range []struct{ flag, address string }{
		{"--healthz-bind-address", cfg.HealthzBindAddress}, {"--metrics-bind-address", cfg.MetricsBindAddress},
	} {
		if _, err := netip.ParseAddrPort(a.address); a.address != "" && err != nil {
			return fmt.Errorf("%s %q: want IP:port such as 0.0.0.0:10256, or nothing", a.flag, a.address)
		}
	}
	switch {
	case cfg.Verbosity < 0:
		return errors.New("-v: want 0 or more")
	case cfg.LogFormat != "text" && cfg.LogFormat != "json":
		return fmt.Errorf("--logging-format %q: want text or json", cfg.LogFormat)
	}
	return nil
}
