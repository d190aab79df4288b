package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/control/view/daemonset"
	"github.com/nfqproxy/nfqproxy/control/view/findings"
	"github.com/nfqproxy/nfqproxy/control/view/noderules"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// clusterFlags select the cluster that a question is about: a running lab, that of an API server, or files.
type clusterFlags struct {
	objectSource
	server    string
	tokenFile string
	daemons   daemonsFlags
	history   string // of why
}

func (f *clusterFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.objectSource.addTo(cmd)
	f.context = &f.daemons.context
	flags.StringVar(&f.server, "server", "", "flow API of nodes whose flows count too: unix:PATH, URL or HOST:PORT; with a unix: socket, and as root, this machine's firewall rules, too")
	flags.StringVar(&f.tokenFile, "token-file", "", "file with the flow API's token, for --server or --cluster")
	f.daemons.add(cmd)
}

// doctor returns the doctor of the cluster: it examines the objects and, in a lab, what is observed.
func (f *clusterFlags) doctor(ctx context.Context, connect connector, stdin io.Reader, stderr io.Writer) (*findings.Doctor, error) {
	cluster := false
	if f.history == "" {
		var err error
		if cluster, err = f.daemons.wanted("server", "lab", "objects"); err != nil {
			return nil, err
		}
	}
	d := &findings.Doctor{Objects: func(ctx context.Context) (*manifest.Objects, servicetable.NodeConfig, error) {
		objects, err := f.read(ctx, stdin, stderr)
		if err != nil {
			return nil, servicetable.NodeConfig{}, err
		}
		note(stderr, objects.Notes...)
		note(stderr, objects.Made.Note(func(*manifest.MadeItem) bool { return true }))
		config, err := f.table.configure(objects)
		return objects, config, err
	}}
	if f.history != "" {
		if err := excludeHistory(f.cmd.Flags(), "server", "cluster", "daemonset", "token-file"); err != nil {
			return nil, err
		}
		h, err := openHistory(f.history, stderr)
		d.Observer, d.At = h, time.Now() // unless --at
		return d, err
	}
	if cluster {
		return d, f.observeDaemons(ctx, d, stderr)
	}
	if f.server != "" {
		return d, f.observeServer(ctx, d, connect)
	}
	if f.tokenFile != "" {
		return nil, errors.New("--token-file requires --server")
	}
	if from, err := f.origin(); err != nil || from != ofLab {
		return d, err
	}
	server, token, err := defaultServer(f.lab)
	if err != nil || server == "" {
		return d, nil // a lab without a flow API
	}
	d.Firewall = func(_ context.Context, node string, to []netip.Addr) (*noderules.Rules, error) {
		return lab.FirewallOf(f.lab, node, to)
	}
	d.Observer, err = connect(server, token)
	return d, err
}

// observeDaemons makes a doctor observe all nodes of the cluster. A cluster without nfqproxy's DaemonSet has none to
// observe: that is an error only if flags ask for them.
func (f *clusterFlags) observeDaemons(ctx context.Context, d *findings.Doctor, stderr io.Writer) error {
	token, err := (&serverFlags{tokenFile: f.tokenFile}).token()
	if err != nil {
		return err
	}
	relay, err := f.daemons.open(ctx, f.kubeconfig, token, remote.RelayOptions{}, stderr)
	switch {
	case err == nil:
		d.Observer = relay
	case !daemonset.Unavailable(err) || f.daemons.asked() || f.tokenFile != "":
		return err
	case !daemonset.Missing(err):
		fmt.Fprintf(stderr, "nfqproxy: note: from objects only, without flows: %v\n", err)
	}
	return nil
}

// observeServer makes a doctor observe the flow API at --server. Without flags for objects, these are not known.
func (f *clusterFlags) observeServer(ctx context.Context, d *findings.Doctor, connect connector) (err error) {
	if f.lab != "" {
		return errors.New("--server and --lab cannot be used together: give one of them")
	}
	if !f.namesObjects() {
		d.Objects = nil
	}
	flags := serverFlags{server: f.server, tokenFile: f.tokenFile}
	if d.Observer, err = flags.observer(ctx, connect, nil); err != nil {
		return err
	}
	if strings.HasPrefix(f.server, "unix:") {
		d.Firewall = firewallHere(d.Observer)
	}
	return nil
}

// firewallHere reads the rules of this machine, which is the observer's node. Those of other nodes are not
// known.
func firewallHere(o observe.Observer) findings.Firewall {
	return func(ctx context.Context, node string, to []netip.Addr) (*noderules.Rules, error) {
		status, err := o.Status(ctx)
		if err != nil {
			return nil, err
		}
		if len(status) != 1 || status[0].Node != node {
			return nil, nil
		}
		return noderules.Read(ctx, to)
	}
}

// namesObjects reports whether flags name the source of the objects.
func (f *clusterFlags) namesObjects() bool {
	return len(f.table.objects) > 0 || f.kubeconfig != "" || f.daemons.context != ""
}

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
