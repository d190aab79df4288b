package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/view/daemonset"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
)

// daemonsFlags select all nodes of a cluster, which are observed through its API server.
type daemonsFlags struct {
	cluster   bool
	context   string
	daemonset string
	flags     *pflag.FlagSet
}

func (f *daemonsFlags) add(cmd *cobra.Command) {
	f.flags = cmd.Flags()
	f.flags.BoolVar(&f.cluster, "cluster", false, "show all nodes of your kubeconfig's cluster, through its API server")
	f.flags.StringVar(&f.context, "context", "", "context of the kubeconfig (default: the current context)")
	f.flags.StringVar(&f.daemonset, "daemonset", daemonset.DefaultNamespace+"/"+daemonset.DefaultName, "with --cluster: NAMESPACE/NAME of nfqproxy's DaemonSet")
}

// wanted reports whether the flags select a cluster. The flags of others exclude it, but not where it is the
// default: in a kubectl plugin.
func (f *daemonsFlags) wanted(others ...string) (bool, error) {
	if f.flags == nil { // of flags that are not a command's
		return false, nil
	}
	changed := func(name string) bool { return f.flags.Changed(name) }
	switch other := slices.ContainsFunc(others, changed); {
	case f.cluster && other && changed("cluster"):
		return false, fmt.Errorf("--cluster cannot be used with %s: give one of them", inWords(others))
	case f.cluster && !other:
		return true, nil
	case changed("daemonset"):
		return false, errors.New("--daemonset requires --cluster")
	}
	return false, nil
}

// asked reports whether flags ask for the daemons of the cluster, which are the default in a kubectl plugin.
func (f *daemonsFlags) asked() bool {
	return f.flags.Changed("cluster") || f.flags.Changed("daemonset")
}

func inWords(flags []string) string {
	text := "--" + flags[0]
	for i, name := range flags[1:] {
		separator := ", --"
		if i == len(flags)-2 {
			separator = " and --"
		}
		text += separator + name
	}
	return text
}

// open observes all nodes until the context ends. Warnings go to stderr; nil: nowhere.
func (f *daemonsFlags) open(ctx context.Context, kubeconfig, token string, relay remote.RelayOptions, stderr io.Writer) (*remote.Relay, error) {
	namespace, name, ok := strings.Cut(f.daemonset, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return nil, fmt.Errorf("--daemonset %q: want NAMESPACE/NAME", f.daemonset)
	}
	config, err := connectionTo(kubeconfig, f.context).REST()
	if err != nil {
		return nil, err
	}
	c := daemonset.Config{REST: config, Namespace: namespace, Name: name, Token: token, Relay: relay}
	if stderr != nil {
		c.Warn = func(text string) { fmt.Fprintln(stderr, "nfqproxy: warning:", text) }
	}
	return daemonset.Open(ctx, c)
}
