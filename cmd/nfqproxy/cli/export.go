package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/findings"
	"github.com/nfqproxy/nfqproxy/control/view/hubbleapi"
	"github.com/nfqproxy/nfqproxy/control/view/otlp"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/control/view/viewapi"
	"github.com/nfqproxy/nfqproxy/control/view/web"
)

// exportFlags are the flags of nfqproxy export.
type exportFlags struct {
	server    string
	tokenFile string

	page        string
	pageCert    string
	pageKey     string
	hubble      string
	hubbleTLS   hubbleapi.TLS
	otlp        string
	otlpSignals string
	otlpSample  float64
	otlpBuffer  int
	metricsURL  string
	metrics     string
}

// daemonMetrics is where a daemon serves its metrics by default.
const daemonMetrics = "http://127.0.0.1:10249/metrics"

func newExportCommand(connect connector) *cobra.Command {
	var f exportFlags
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Export a daemon's records: web page, Hubble API, OpenTelemetry",
		Long: `Follow the flow API of a node's daemon and export its records, until interrupted: as a web
page, through Hubble's API, or to an OpenTelemetry collector. This needs no privileges
except access to the daemon's socket. If the daemon is unreachable, it waits for it. On a
cluster, it runs as the second container of nfqproxy's pods.

Clients of the page need a token that the daemon's flow API accepts. Certificates and
headers for the collector come from the environment, for example
OTEL_EXPORTER_OTLP_HEADERS.`,
		Example: `  nfqproxy export --page 127.0.0.1:10254
  nfqproxy export --hubble-bind-address 127.0.0.1:4245
  nfqproxy export --otlp-endpoint http://collector.monitoring:4317 --otlp-signals traces,metrics`,
		Args:        noArgs,
		Annotations: ending(),
		RunE:        func(cmd *cobra.Command, _ []string) error { return f.run(cmd, connect) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.server, "server", "unix:"+flowapi.DefaultSocket, "flow API of the daemon: unix:PATH, URL or HOST:PORT")
	flags.StringVar(&f.tokenFile, "token-file", "", "file with the flow API's token, required unless the server is a socket")
	flags.StringVar(&f.page, "page", "", "address and port of the web page: on loopback or, with --page-tls-cert and --page-tls-key, any (default: not served)")
	flags.StringVar(&f.pageCert, "page-tls-cert", "", "file with the page's certificate")
	flags.StringVar(&f.pageKey, "page-tls-key", "", "file with the certificate's private key")
	flags.StringVar(&f.hubble, "hubble-bind-address", "", "address of the Hubble API, for hubble observe --server and hubble-relay: ADDRESS:PORT on loopback or, with --hubble-tls-cert, --hubble-tls-key and --hubble-tls-client-ca, any (default: not served)")
	flags.StringVar(&f.hubbleTLS.CertFile, "hubble-tls-cert", "", "file with the Hubble API's certificate: for hubble-relay its name must be *.default.hubble-grpc.cilium.io")
	flags.StringVar(&f.hubbleTLS.KeyFile, "hubble-tls-key", "", "file with the certificate's private key")
	flags.StringVar(&f.hubbleTLS.ClientCAFile, "hubble-tls-client-ca", "", "file with the CA that signs the certificates of the Hubble API's clients")
	flags.StringVar(&f.otlp, "otlp-endpoint", "", "export flows and metrics to this OpenTelemetry collector, by OTLP over gRPC: http://HOST:PORT or, with TLS, https://HOST:PORT (default: no export)")
	flags.StringVar(&f.otlpSignals, "otlp-signals", strings.Join(otlp.Signals(), ","), "signals to export, separated by commas: logs (a record for each event of a flow), metrics, traces (a span for each decision)")
	flags.Float64Var(&f.otlpSample, "otlp-sample", 1, "share of connections to export as log records and spans, above 0, up to 1; all nodes select the same connections")
	flags.IntVar(&f.otlpBuffer, "otlp-buffer", otlp.DefaultBuffer, "number of records of each signal to buffer for the collector; each takes about 1 KiB")
	flags.StringVar(&f.metricsURL, "metrics-url", daemonMetrics, "URL of the daemon's metrics, for the signal metrics")
	flags.StringVar(&f.metrics, "metrics-bind-address", "", "address and port of this command's own /metrics: records delivered and lost (default: not served)")
	return cmd
}

// check validates the flags.
func (f *exportFlags) check(cmd *cobra.Command) error {
	if f.page == "" && f.hubble == "" && f.otlp == "" {
		return errors.New("nothing to export: give --page, --hubble-bind-address or --otlp-endpoint")
	}
	if _, socket := observe.SocketPath(f.server); f.page != "" && !socket {
		return errors.New("--page requires a daemon's socket: --server unix:PATH; nfqproxy web serves the page of other servers")
	}
	if f.page == "" && f.pageCert+f.pageKey != "" {
		return errors.New("--page-tls-cert and --page-tls-key require --page")
	}
	if f.page != "" {
		if _, socket := observe.SocketPath(f.page); socket {
			return fmt.Errorf("--page %s: want ADDRESS:PORT", f.page)
		}
		if err := f.pageAddress().Check(); err != nil {
			return err
		}
	}
	if f.hubble == "" && f.hubbleTLS.Enabled() {
		return errors.New("--hubble-tls-cert, --hubble-tls-key and --hubble-tls-client-ca require --hubble-bind-address")
	}
	if f.hubble != "" {
		if err := f.hubbleTLS.Check(f.hubble); err != nil {
			return err
		}
	}
	if f.metrics != "" {
		if _, err := netip.ParseAddrPort(f.metrics); err != nil {
			return fmt.Errorf("--metrics-bind-address %q: want IP:port such as 127.0.0.1:10255", f.metrics)
		}
	}
	if f.otlp == "" {
		for _, name := range []string{"otlp-signals", "otlp-sample", "otlp-buffer", "metrics-url"} {
			if cmd.Flags().Changed(name) {
				return fmt.Errorf("--%s requires --otlp-endpoint", name)
			}
		}
		return nil
	}
	if f.otlpBuffer < 1024 || f.otlpBuffer > 1<<20 {
		return fmt.Errorf("--otlp-buffer %d: want 1024 to 1048576 records", f.otlpBuffer)
	}
	c := f.otlpConfig()
	if err := c.Check(); err != nil {
		return fmt.Errorf("OTLP export: %w", err)
	}
	return nil
}

func (f *exportFlags) pageAddress() flowapi.Address {
	return flowapi.Address{Address: f.page, CertFile: f.pageCert, KeyFile: f.pageKey, HasToken: true, Flag: "page"}
}

func (f *exportFlags) otlpConfig() otlp.Config {
	return otlp.Config{
		Endpoint: f.otlp, Signals: strings.FieldsFunc(f.otlpSignals, func(c rune) bool { return c == ',' }), Sample: f.otlpSample, Buffer: f.otlpBuffer, Version: version,
	}
}

func (f *exportFlags) run(cmd *cobra.Command, connect connector) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	token := ""
	if f.tokenFile != "" {
		var err error
		if token, err = flowapi.ReadToken("--token-file", f.tokenFile); err != nil {
			return err
		}
	}
	observer, err := connect(f.server, token)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(cmd.Context())
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	// All addresses are bound before anything begins.
	var start []func() error
	serve := func(address string, run func(net.Listener) error) error {
		var listen net.ListenConfig
		l, err := listen.Listen(ctx, "tcp", address)
		if err == nil {
			start = append(start, func() error { return run(l) })
		}
		return err
	}
	if f.page != "" {
		l, err := flowapi.Listen(f.pageAddress())
		if err != nil {
			return err
		}
		start = append(start, func() error { return flowapi.New(f.pageConfig(observer, log)).Serve(ctx, l) })
	}
	if f.hubble != "" {
		c := hubbleapi.Config{
			Observer: observer, Peers: &hubbleapi.Peers{Each: eachNode(ctx, observer), Listen: netip.MustParseAddrPort(f.hubble)}, TLS: f.hubbleTLS, Log: log,
		}
		if err := serve(f.hubble, func(l net.Listener) error { return hubbleapi.Serve(ctx, l, c) }); err != nil {
			return fmt.Errorf("--hubble-bind-address: %w", err)
		}
	}
	if f.metrics != "" {
		if err := serve(f.metrics, func(l net.Listener) error { return serveMetrics(ctx, l, registry) }); err != nil {
			return fmt.Errorf("--metrics-bind-address: %w", err)
		}
	}
	if f.otlp != "" {
		client, ok := observer.(*remote.Client)
		if !ok {
			return errors.New("--server is not a daemon's flow API")
		}
		c := f.otlpConfig()
		c.Log = log
		start = append(start, func() (err error) {
			if c.Node, err = nodeOf(ctx, observer); err != nil || ctx.Err() != nil {
				return err
			}
			exporter, err := otlp.Open(c)
			if err != nil {
				return err
			}
			registry.MustRegister(exporter)
			exporter.Start(otlp.Source{Follow: client.Follow, Metrics: prometheus.Gatherers{otlp.Scrape(f.metricsURL), exporterMetrics(exporter)}})
			<-ctx.Done()
			exporter.Close()
			return nil
		})
	}
	for _, s := range start {
		group.Go(s)
	}
	group.Go(func() error {
		// A page without a daemon behind it would look like a node without flows.
		if _, err := awaitNodes(ctx, observer, log); err != nil && ctx.Err() == nil {
			return err
		}
		return nil
	})
	return group.Wait()
}

// exporterMetrics are an exporter's own metrics, which it exports beside the daemon's.
func exporterMetrics(e *otlp.Exporter) prometheus.Gatherer {
	r := prometheus.NewRegistry()
	r.MustRegister(e)
	return r
}

// pageConfig serves the page, and passes what the daemon answers through. Its clients' tokens are those that the daemon takes.
func (f *exportFlags) pageConfig(o observe.Observer, log *slog.Logger) flowapi.Config {
	path, _ := observe.SocketPath(f.server) // checked
	daemon := viewapi.NewUpstream(path, log)
	return flowapi.Config{
		Observer: o, Page: web.Handler(), Reviewer: daemon, Log: log,
		Routes: append(daemon.Routes(), viewapi.Routes(viewapi.Config{Doctor: &findings.Doctor{Observer: o}})...),
	}
}

// nodeWait is the interval of the attempts to get the node's name.
const nodeWait = time.Second

// nodeOf returns the name of the daemon's node. It waits for a daemon that cannot be reached, until the context ends.
func nodeOf(ctx context.Context, o observe.Observer) (string, error) {
	nodes, err := awaitNodes(ctx, o, slog.New(slog.DiscardHandler)) // the caller says that it waits
	switch {
	case ctx.Err() != nil:
		return "", nil
	case err != nil:
		return "", err
	case len(nodes) != 1:
		return "", fmt.Errorf("--server has the flows of %d nodes: --otlp-endpoint requires a single daemon", len(nodes))
	}
	return nodes[0], nil
}

// eachNode calls its argument for each node that the daemon knows or, while it cannot be reached, knew last.
func eachNode(ctx context.Context, o observe.Observer) func(func(string, []netip.Addr)) {
	var mu sync.Mutex // several relays may ask at once
	var last []observe.TopologyNode
	return func(each func(string, []netip.Addr)) {
		t, err := o.Topology(ctx)
		mu.Lock()
		if err == nil {
			last = t.Nodes
		}
		known := last
		mu.Unlock()
		for _, n := range known {
			each(n.Name, n.Addresses)
		}
	}
}

func serveMetrics(ctx context.Context, l net.Listener, registry *prometheus.Registry) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
