package apiserver

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Connection configures the connection to the API server. The zero value is that of a pod: its
// service account, and the address from its environment. As that is a service address, which needs
// a service proxy, a proxy should have a kubeconfig.
type Connection struct {
	Kubeconfig string // path; empty: in-cluster
	Context    string // of the kubeconfig; empty: its current one
	// Find: without Kubeconfig, look for it where kubectl does: $KUBECONFIG, ~/.kube/config, and then
	// in-cluster.
	Find   bool
	Master string // URL that overrides the kubeconfig's
	// QPS and Burst limit requests; 0: client-go's defaults.
	QPS   float32
	Burst int
	// ContentType of what is sent and AcceptContentTypes; empty: protobuf, JSON where
	// there is none.
	ContentType, AcceptContentTypes string
	UserAgent                       string
}

const protobuf, json = "application/vnd.kubernetes.protobuf", "application/json"

// Uses are what a client opens and starts while it runs.
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
func (c *Connection) Connect(log *slog.Logger) (kubernetes.Interface, Uses, error) {
	config, err := c.load()
	if err != nil {
		return nil, Uses{}, err
	}
	config.UserAgent = c.UserAgent
	config.QPS, config.Burst = c.QPS, c.Burst
	config.ContentType, config.AcceptContentTypes = c.ContentType, c.AcceptContentTypes
	if config.ContentType == "" {
		config.ContentType = protobuf
	}
	if config.AcceptContentTypes == "" {
		config.AcceptContentTypes = protobuf + "," + json
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &reachable{next: next, log: log, server: config.Host}
	})
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, Uses{}, fmt.Errorf("client of API server %s: %w", config.Host, err)
	}
	return client, usesOf(config), nil
}

// REST returns the configuration for clients that are not nfqproxy's daemon. It reads files only.
func (c *Connection) REST() (*rest.Config, error) {
	config, err := c.load()
	if err != nil {
		return nil, err
	}
	config.UserAgent = c.UserAgent
	return config, nil
}

func (c *Connection) load() (*rest.Config, error) {
	if c.Kubeconfig == "" && c.Master == "" && !c.Find {
		config, err := rest.InClusterConfig()
		switch {
		case errors.Is(err, rest.ErrNotInCluster):
			return nil, errors.New("not in a pod of a cluster: give --kubeconfig, or --objects for manifests")
		case err != nil:
			return nil, fmt.Errorf("service account of this pod: %w", err)
		}
		return config, nil
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig}
	where := "kubeconfig " + c.Kubeconfig
	switch {
	case c.Kubeconfig == "" && c.Find:
		rules = clientcmd.NewDefaultClientConfigLoadingRules()
		where = "kubeconfig " + strings.Join(rules.GetLoadingPrecedence(), ", ")
	case c.Kubeconfig == "":
		where = "API server " + c.Master
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: c.Master}, CurrentContext: c.Context}).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err) && c.Find:
		return nil, fmt.Errorf("%s: no API server configured, and not in a pod of a cluster: give --kubeconfig", where)
	case clientcmd.IsEmptyConfig(err):
		return nil, fmt.Errorf("%s: no API server configured: want clusters, users, contexts and current-context", where)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	url, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	if url.Scheme != "https" && url.Scheme != "http" {
		return nil, fmt.Errorf("%s: server %q: want https://HOST:PORT", where, config.Host)
	}
	return config, nil
}
