package apiserver

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
	"github.com/nfqproxy/nfqproxy/control/nearest"
)

// Connection configures the connection to the API server. The zero value is that of a pod: its
// service account, and the address from its environment. As that is a service address, which needs
// a service proxy, a proxy should have a kubeconfig.
type Connection struct {
	// ClientConnection has client-go's defaults where QPS or Burst are 0. Without content types it is protobuf, JSON where
	// there is none.
	proxyconfig.ClientConnection
	Master    string // URL that overrides the kubeconfig's
	UserAgent string
}

// Uses lists the files and processes that a client opens and starts while it runs.
type Uses struct {
	Files   []string // certificates and tokens, which rotate
	Program string   // the kubeconfig's credential plugin; empty: none
}

func usesOf(config *rest.Config) (u Uses) {
	for _, file := range []string{config.BearerTokenFile, config.CAFile, config.CertFile, config.KeyFile} {
		if file != "" {
			u.Files = append(u.Files, file)
		}
	}
	if config.ExecProvider != nil {
		u.Program = config.ExecProvider.Command
	}
	return u
}

// Connect makes a client. It does not wait for the API server: whether that can be
// reached is logged, each time it changes. While it cannot, requests that read wait,
// and are sent again every few seconds until their context ends.
func (c *Connection) Connect(log *slog.Logger) (Client, Uses, error) {
	config, err := c.load()
	if err != nil {
		return nil, Uses{}, err
	}
	config.UserAgent = c.UserAgent
	config.QPS, config.Burst = c.QPS, int(c.Burst)
	config.ContentType = cmp.Or(c.ContentType, runtime.ContentTypeProtobuf)
	config.AcceptContentTypes = cmp.Or(c.AcceptContentTypes, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &reachable{next: next, log: log, server: config.Host}
	})
	client, err := NewClient(config)
	return client, usesOf(config), err
}

func (c *Connection) load() (*rest.Config, error) {
	if c.Kubeconfig == "" && c.Master == "" {
		config, err := rest.InClusterConfig()
		switch {
		case errors.Is(err, rest.ErrNotInCluster):
			return nil, errors.New("not in a pod of a cluster: give --kubeconfig (nfqproxy run --objects serves files)")
		case err != nil:
			return nil, fmt.Errorf("service account of this pod: %w", err)
		}
		return config, nil
	}
	where := "kubeconfig " + c.Kubeconfig
	if c.Kubeconfig == "" {
		where = "API server " + c.Master
	}
	config, err := LoadKubeconfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig},
		&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: c.Master}})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	return config, nil
}

// ErrNoServer is the error of [LoadKubeconfig] for kubeconfigs that name no API server.
var ErrNoServer = errors.New("no API server configured: want clusters, users, contexts and current-context")

// LoadKubeconfig reads the kubeconfigs of the rules. It reads files only. Errors do not name the kubeconfig.
func LoadKubeconfig(rules *clientcmd.ClientConfigLoadingRules, overrides *clientcmd.ConfigOverrides) (*rest.Config, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		if wrong := wrongContext(rules, overrides.CurrentContext); wrong != nil {
			return nil, wrong
		}
		if clientcmd.IsEmptyConfig(err) {
			return nil, ErrNoServer
		}
		return nil, err
	}
	url, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	if url.Scheme != "https" && url.Scheme != "http" {
		return nil, fmt.Errorf("server %q: want https://HOST:PORT", config.Host)
	}
	return config, nil
}

// wrongContext is what is wrong with the context of a kubeconfig that cannot be used; nil: it is something else.
func wrongContext(rules *clientcmd.ClientConfigLoadingRules, given string) error {
	raw, err := rules.Load()
	if err != nil || len(raw.Contexts) == 0 && given == "" && raw.CurrentContext == "" {
		return nil
	}
	what, current := "context", given
	if current == "" {
		what, current = "current context", raw.CurrentContext
	}
	known := "there are none"
	if names := slices.Sorted(maps.Keys(raw.Contexts)); len(names) > 0 {
		known = "there are " + nearest.Few(names)
	}
	at := raw.Contexts[current]
	switch {
	case current == "":
		return fmt.Errorf("it has no current context: give --context; %s", known)
	case at == nil:
		return fmt.Errorf("%s %q does not exist; %s", what, current, known)
	case at.Cluster == "":
		return fmt.Errorf("%s %q names no cluster", what, current)
	case raw.Clusters[at.Cluster] == nil:
		return fmt.Errorf("%s %q names the cluster %q, which does not exist", what, current, at.Cluster)
	}
	return nil
}

// Pauses between attempts to reach the API server double from one to the other, and are
// up to a half shorter at random, so that not all nodes come at once.
const firstPause, longestPause = 250 * time.Millisecond, 5 * time.Second

// reachable tracks whether the API server responds, and retries if it does not.
//
// Informers would try again themselves, but wait up to a minute before they do, and
// that each for itself (client-go's reflectors): so long would changes be missed though
// the API server is back.
type reachable struct {
	next   http.RoundTripper
	log    *slog.Logger
	server string
	away   atomic.Bool
}

// RoundTrip implements [http.RoundTripper].
func (r *reachable) RoundTrip(request *http.Request) (*http.Response, error) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		response, err := r.next.RoundTrip(request)
		r.note(request, response, err)
		again := err != nil || response.StatusCode == http.StatusServiceUnavailable
		// Write requests are not retried: the caller decides.
		if !again || request.Method != http.MethodGet {
			return response, err
		}
		select {
		case <-request.Context().Done():
			return response, err
		case <-time.After(pause - rand.N(pause/2)):
		}
		if err == nil {
			_ = response.Body.Close()
		}
	}
}

// note logs a change of the API server's reachability.
func (r *reachable) note(request *http.Request, response *http.Response, err error) {
	switch {
	case err == nil && response.StatusCode < http.StatusInternalServerError:
		if r.away.CompareAndSwap(true, false) {
			r.log.Info("the API server is reachable again", "server", r.server)
		}
		switch what := request.Method + " " + request.URL.Path; response.StatusCode {
		case http.StatusForbidden:
			// An API server that has just started may do so for a moment.
			r.log.Error("permission denied by the API server: check the ClusterRole", "request", what, "status", response.Status)
		case http.StatusUnauthorized:
			r.log.Error("authentication at the API server failed: check the token or certificate", "request", what, "status", response.Status)
		}
	case request.Context().Err() == nil && r.away.CompareAndSwap(false, true):
		message := "cannot reach the API server; the last table stays in force"
		if err == nil {
			message, err = "the API server is not ready; the last table stays in force", errors.New(response.Status)
		}
		r.log.Warn(message, "server", r.server, "error", err)
	}
}
