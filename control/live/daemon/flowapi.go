package daemon

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/live/apiserver"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/live/metrics"
	"github.com/nfqproxy/nfqproxy/control/observe"
)

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
