package daemon

import (
	"errors"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/view/otlp"
)

// otlpFlags are the flags of the export to an OpenTelemetry collector.
type otlpFlags struct {
	endpoint string // empty: nothing is exported
	signals  string
	sample   float64

	set *pflag.FlagSet
}

func (f *otlpFlags) add(flags *pflag.FlagSet) {
	f.set = flags
	flags.StringVar(&f.endpoint, "otlp-endpoint", "", "export flows and metrics to this OpenTelemetry collector, by OTLP over gRPC: http://HOST:PORT or, with TLS, https://HOST:PORT; headers and certificates are set by the environment, OTEL_EXPORTER_OTLP_HEADERS for example (default: no export)")
	flags.StringVar(&f.signals, "otlp-signals", strings.Join(otlp.Signals(), ","), "signals to export, separated by commas: logs (a record for each event of a flow), metrics, traces (a span for each decision)")
	flags.Float64Var(&f.sample, "otlp-sample", 1, "share of connections whose log records and spans are exported: more than 0, up to 1; all nodes select the same connections")
}

// config is the configuration of the export.
func (f *otlpFlags) config() otlp.Config {
	return otlp.Config{Endpoint: f.endpoint, Signals: strings.FieldsFunc(f.signals, func(c rune) bool { return c == ',' }), Sample: f.sample}
}

// check validates the flags.
func (f *otlpFlags) check() error {
	if f.endpoint == "" {
		if f.set.Changed("otlp-signals") || f.set.Changed("otlp-sample") {
			return errors.New("--otlp-signals and --otlp-sample require --otlp-endpoint")
		}
		return nil
	}
	c := f.config()
	return wrap("OTLP export", c.Check())
}

// openExport makes the export, if there is to be one: it reads what it needs of the environment.
func (p *process) openExport() (*otlp.Exporter, error) {
	if p.flags.otlp.endpoint == "" {
		return nil, nil
	}
	c := p.flags.otlp.config()
	c.Node, c.Version, c.Log = p.cfg.Node.Name, p.version, p.log
	export, err := otlp.Open(c)
	if err == nil {
		p.metrics.ReadExports(export.Exports)
	}
	return export, err
}
