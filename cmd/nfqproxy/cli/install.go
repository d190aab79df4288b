package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/daemonset"
	"github.com/nfqproxy/nfqproxy/control/view/kubeconfig"
	"github.com/nfqproxy/nfqproxy/deploy/switchover"
)

// switchFlags are the flags of nfqproxy install and uninstall.
type switchFlags struct {
	cluster    bool
	kubeconfig string
	context    string
	options    switchover.Options
	observe    bool
}

// defaultNodeTimeout is the default of --timeout: it includes the download of an image.
const defaultNodeTimeout = 3 * time.Minute

func (f *switchFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&f.cluster, "cluster", false, "switch the nodes of a cluster (required)")
	flags.StringSliceVar(&f.options.Nodes, "node", nil, "switch only this node; may be repeated")
	flags.BoolVar(&f.options.DryRun, "dry-run", false, "print every step and its changes, but change nothing: the API server gets the changes as a dry run")
	flags.DurationVar(&f.options.Timeout, "timeout", defaultNodeTimeout, "time limit for switching one node")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster (default: $KUBECONFIG, or ~/.kube/config)")
	flags.StringVar(&f.context, "context", "", "context of the kubeconfig (default: the current context)")
}

func newInstallCommand() *cobra.Command {
	var f switchFlags
	cmd := &cobra.Command{
		Use:   "install --cluster [--node NODE...]",
		Short: "Switch a cluster from kube-proxy to nfqproxy, node by node",
		Long: `Switch a cluster from kube-proxy to nfqproxy. The nodes get the label
service-proxy=kube-proxy, kube-proxy's DaemonSet gets a node selector for it, and
nfqproxy's objects are applied. Then each node gets the label service-proxy=nfqproxy, one
after the other, workers first: its kube-proxy stops, and nfqproxy takes over its rules.
Connections continue. The next node follows when nfqproxy is ready on this one, reports no
problem, and new flows to services get answers. If that takes longer than --timeout, the
node goes back to kube-proxy, and the command fails with an error.

The state is kept in labels and objects of the cluster: after an error or an interruption,
the same command continues. On a cluster with nfqproxy, it installs another --image.

Nodes that are not ready, are unschedulable or run another operating system are skipped.
Mode ipvs, and a kube-proxy that is not a DaemonSet, cannot be switched.

With --observe, no node is switched: nfqproxy runs on every node beside the cluster's own
service proxy, records the flows that it decides, and changes nothing. This works with any
proxy that translates addresses by connection tracking.`,
		Example: `  nfqproxy install --cluster --observe
  nfqproxy install --cluster --dry-run
  nfqproxy install --cluster --node worker-1
  nfqproxy install --cluster --image registry.example/nfqproxy:v1`,
		Args:        noArgs,
		Annotations: ending(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.options.Image == "" && f.cluster {
				if version == "unknown" {
					return errors.New("this program has no version: give --image")
				}
				f.options.Image = "nfqproxy:" + version
			}
			if f.observe {
				if err := excludedByObserve(cmd.Flags()); err != nil {
					return err
				}
				return f.run(cmd, (*switchover.Switch).Observe)
			}
			return f.run(cmd, (*switchover.Switch).Install)
		},
	}
	f.add(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&f.observe, "observe", false, "only observe, on all nodes: the cluster's own service proxy stays in force")
	flags.StringVar(&f.options.Image, "image", "", "image of nfqproxy (default: nfqproxy:VERSION)")
	flags.StringVar(&f.options.ClusterCIDR, "cluster-cidr", "", "pod CIDRs of the cluster, one per family, separated by a comma; for clusters without kubeadm's ConfigMap kube-proxy")
	flags.StringVar(&f.options.APIServer, "api-server", "", "URL of the API server, at an address that does not depend on a service proxy; for clusters without kubeadm's ConfigMap kube-proxy")
	flags.BoolVar(&f.options.Force, "force-conflicts", false, "overwrite fields of nfqproxy's objects that others have set")
	return cmd
}

// excludedByObserve is an error for flags that have no meaning with --observe.
func excludedByObserve(flags *pflag.FlagSet) error {
	for _, excluded := range []struct{ name, why string }{
		{"node", "all nodes are observed"}, {"cluster-cidr", "the chart has more settings"}, {"api-server", "the chart has more settings"},
	} {
		if flags.Changed(excluded.name) {
			return fmt.Errorf("--%s has no meaning with --observe: %s", excluded.name, excluded.why)
		}
	}
	return nil
}

func newUninstallCommand() *cobra.Command {
	var f switchFlags
	cmd := &cobra.Command{
		Use:   "uninstall --cluster [--node NODE...]",
		Short: "Switch a cluster back to kube-proxy, node by node",
		Long: `Switch a cluster back to kube-proxy. Each node gets the label service-proxy=kube-proxy,
one after the other; when its kube-proxy has written its rules, a pod removes nfqproxy's.
Connections continue. At the end, the node selector of kube-proxy's DaemonSet, the labels
and nfqproxy's objects are removed. With --node they stay. If nfqproxy only observes, only
its objects are removed.

After an error or an interruption, the same command continues.`,
		Example: `  nfqproxy uninstall --cluster --dry-run
  nfqproxy uninstall --cluster --node worker-1`,
		Args:        noArgs,
		Annotations: ending(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd, (*switchover.Switch).Uninstall)
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.options.Image, "image", "", "image of the pod that removes nfqproxy's rules (default: that of the installed nfqproxy)")
	return cmd
}

func (f *switchFlags) run(cmd *cobra.Command, way func(*switchover.Switch, context.Context) error) error {
	ctx, stdout := cmd.Context(), cmd.OutOrStdout()
	if !f.cluster { // which is the default of a kubectl plugin
		return fmt.Errorf("%s needs --cluster (see %[1]s --help)", cmd.CommandPath())
	}
	if f.options.Timeout <= 0 {
		return fmt.Errorf("--timeout %s: want more than 0", f.options.Timeout)
	}
	connection := kubeconfig.Source{Path: f.kubeconfig, Context: f.context, UserAgent: "nfqproxy/" + version}
	config, err := connection.REST()
	if err != nil {
		return err
	}
	config.Timeout, config.QPS, config.Burst = requestTimeout, requestsPerSecond, requestsPerSecond
	f.options.Config, f.options.Output = config, stdout
	// Streams of the flow API have no time limit.
	unlimited := rest.CopyConfig(config)
	unlimited.Timeout = 0
	f.options.Checkers = []switchover.Checker{&switchover.Flows{
		Open:   func() (observe.Observer, error) { return daemonset.Open(ctx, daemonset.Config{REST: unlimited}) },
		Report: func(text string) { fmt.Fprintln(stdout, text) },
	}}
	s, err := switchover.New(f.options)
	if err != nil {
		return err
	}
	return way(s, ctx)
}

// Limits of the requests to the API server: the timeout of one, and the rate per second.
const (
	requestTimeout    = 30 * time.Second
	requestsPerSecond = 50
)
