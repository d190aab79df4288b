package apiserver

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nfqproxy/nfqproxy/control/nearest"
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
	config.QPS, config.Burst = c.QPS, c.Burst
	config.ContentType, config.AcceptContentTypes = c.ContentType, c.AcceptContentTypes
	if config.ContentType == "" {
		config.ContentType = runtime.ContentTypeProtobuf
	}
	if config.AcceptContentTypes == "" {
		config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &reachable{next: next, log: log, server: config.Host}
	})
	client, err := NewClient(config)
	return client, usesOf(config), err
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

// Namespace is the one that the context names, as kubectl reads it; "" if it names none.
func (c *Connection) Namespace() string {
	rules, _ := c.rules()
	raw, err := rules.Load()
	if err != nil {
		return ""
	}
	current := c.Context
	if current == "" {
		current = raw.CurrentContext
	}
	if at := raw.Contexts[current]; at != nil {
		return at.Namespace
	}
	return ""
}

// rules are those by which the kubeconfig is found, and the name of the place for messages.
func (c *Connection) rules() (rules *clientcmd.ClientConfigLoadingRules, where string) {
	switch {
	case c.Kubeconfig == "" && c.Find:
		rules = clientcmd.NewDefaultClientConfigLoadingRules()
		return rules, "kubeconfig " + strings.Join(rules.GetLoadingPrecedence(), ", ")
	case c.Kubeconfig == "":
		return &clientcmd.ClientConfigLoadingRules{}, "API server " + c.Master
	}
	return &clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig}, "kubeconfig " + c.Kubeconfig
}

// wrongContext is what is wrong with the context of a kubeconfig that cannot be used; nil: it is something else.
func (c *Connection) wrongContext(rules *clientcmd.ClientConfigLoadingRules) error {
	raw, err := rules.Load()
	if err != nil || len(raw.Contexts) == 0 && (c.Context == "" && raw.CurrentContext == "") {
		return nil
	}
	what, current := "context", c.Context
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

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func (c *Connection) load() (*rest.Config, error) {
	if c.Kubeconfig == "" && c.Master == "" && !c.Find {
		config, err := rest.InClusterConfig()
		switch {
		case errors.Is(err, rest.ErrNotInCluster):
			return nil, errors.New("not in a pod of a cluster: give --kubeconfig (nfqproxy run --objects serves files)")
		case err != nil:
			return nil, fmt.Errorf("service account of this pod: %w", err)
		}
		return config, nil
	}
	rules, where := c.rules()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: c.Master}, CurrentContext: c.Context}).ClientConfig()
	if err != nil {
		if wrong := c.wrongContext(rules); wrong != nil {
			return nil, fmt.Errorf("%s: %w", where, wrong)
		}
	}
	switch {
	case clientcmd.IsEmptyConfig(err) && c.Find && !slices.ContainsFunc(rules.GetLoadingPrecedence(), exists):
		return nil, fmt.Errorf("%s: no such file: no API server configured, and not in a pod of a cluster: give --kubeconfig", where)
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
