// Package kubeconfig finds the API server of a command as kubectl does.
package kubeconfig

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nfqproxy/nfqproxy/control/live/apiserver"
)

// Source is where the configuration of clients comes from.
type Source struct {
	// Path is that of the kubeconfig; empty: those of kubectl, which are $KUBECONFIG, ~/.kube/config, and then in-cluster.
	Path      string
	Context   string // of the kubeconfig; empty: its current one
	UserAgent string
}

// REST returns the configuration for clients. It reads files only.
func (s *Source) REST() (*rest.Config, error) {
	rules := s.rules()
	config, err := apiserver.LoadKubeconfig(rules, &clientcmd.ConfigOverrides{CurrentContext: s.Context})
	if errors.Is(err, apiserver.ErrNoServer) {
		err = errors.New("no API server configured, and not in a pod of a cluster: give --kubeconfig")
		if !slices.ContainsFunc(rules.GetLoadingPrecedence(), exists) {
			err = fmt.Errorf("no such file: %w", err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", strings.Join(rules.GetLoadingPrecedence(), ", "), err)
	}
	config.UserAgent = s.UserAgent
	return config, nil
}

// Namespace is the one that the context names, as kubectl reads it; "" if it names none.
func (s *Source) Namespace() string {
	raw, err := s.rules().Load()
	if err != nil {
		return ""
	}
	if at := raw.Contexts[cmp.Or(s.Context, raw.CurrentContext)]; at != nil {
		return at.Namespace
	}
	return ""
}

func (s *Source) rules() *clientcmd.ClientConfigLoadingRules {
	if s.Path == "" {
		return clientcmd.NewDefaultClientConfigLoadingRules()
	}
	return &clientcmd.ClientConfigLoadingRules{ExplicitPath: s.Path}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
