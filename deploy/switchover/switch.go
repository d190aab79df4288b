// Package switchover switches the nodes of a cluster from kube-proxy to nfqproxy and back, node by node, with the
// manifests of deploy/kubernetes.
//
// The state of a switch is in the objects of the cluster and nowhere else: the label [Label] of a node names its
// proxy, and the annotation [Annotation] says that nfqproxy's rules may be in its kernel. So a run continues what an
// earlier one has begun, whether that failed, was interrupted or was done by hand.
//
// At no time has a node no rules for its services: kube-proxy leaves its rules when it ends, the daemon removes them
// after its own are in place, and the way back removes nfqproxy's rules after kube-proxy has written its own.
package switchover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Label is the label of a node that selects its proxy: [KubeProxy] or [Nfqproxy].
const Label = "service-proxy"

// Values of [Label], which are the names of the DaemonSets, too.
const (
	KubeProxy = "kube-proxy"
	Nfqproxy  = "nfqproxy"
)

// Annotation is on nodes whose kernel may have rules of nfqproxy: from the switch to nfqproxy until the cleanup on the
// way back has ended.
const Annotation = "nfqproxy.io/rules-in-kernel"

// Manager is the field manager of all changes.
const Manager = "nfqproxy-install"

// Options of a switch.
type Options struct {
	Config *rest.Config // of the API server
	Nodes  []string     // to switch; none: all nodes
	// Image of nfqproxy. Empty at the way back: that of the installed DaemonSet.
	Image string
	// ClusterCIDR and APIServer are for clusters whose ConfigMap kube-proxy is not as kubeadm writes it: the pod
	// prefixes, one for each family, with a comma between them, and the URL of the API server, which
	// may not depend on a service proxy.
	ClusterCIDR, APIServer string
	Timeout                time.Duration // of one node
	DryRun                 bool          // send changes as the API server's dry run, and print them
	Force                  bool          // take over fields that another field manager has set
	// Checkers judge a node after its switch to nfqproxy, when its pod is ready.
	Checkers []Checker
	Output   io.Writer
}

// Checker judges a node that nfqproxy serves.
type Checker interface {
	// Check returns why the node does not serve as it should, or nil. It is called again and again, until it returns nil
	// or the node's time is over.
	Check(ctx context.Context, node string) error
}

// Switch is one run. It is for one call of Install or Uninstall.
type Switch struct {
	Options
	client  kubernetes.Interface
	objects dynamic.Interface
	period  time.Duration // between two looks at the cluster
	dry     []string      // of the options of each changing request

	state *state
}

// pollPeriod is the time between two looks at the cluster while a switch waits.
const pollPeriod = 500 * time.Millisecond

// New connects to the API server, without a request.
func New(options Options) (*Switch, error) {
	client, err := kubernetes.NewForConfig(options.Config)
	if err != nil {
		return nil, fmt.Errorf("client of API server %s: %w", options.Config.Host, err)
	}
	objects, err := dynamic.NewForConfig(options.Config)
	if err != nil {
		return nil, fmt.Errorf("client of API server %s: %w", options.Config.Host, err)
	}
	s := &Switch{Options: options, client: client, objects: objects, period: pollPeriod}
	if options.DryRun {
		s.dry = []string{metav1.DryRunAll}
	}
	return s, nil
}

// Install switches nodes to nfqproxy. If a check of a node fails, that node is switched back, and the run ends with
// an error. A context that ends leaves the cluster as it is: the next run continues.
func (s *Switch) Install(ctx context.Context) error {
	if err := s.checkPermissions(ctx, installing); err != nil {
		return err
	}
	if err := s.read(ctx); err != nil {
		return err
	}
	targets, skipped, err := s.state.targets(s.Nodes, func(*node) bool { return true })
	if err != nil {
		return err
	}
	config, err := s.configuration()
	if err != nil {
		return err
	}
	manifests, err := s.manifests(baseDir, config)
	if err != nil {
		return err
	}
	if err := s.dryRun(ctx, manifests); err != nil {
		return err
	}
	s.announce()
	s.print("%s: kube-proxy in mode %s, configuration from %s", s.Config.Host, s.state.mode, config)
	s.printSkipped(skipped)
	return s.report(ctx, s.install(ctx, manifests, targets))
}

func (s *Switch) install(ctx context.Context, manifests []*unstructured.Unstructured, targets []*node) error {
	if err := s.selectNodes(ctx); err != nil {
		return err
	}
	for _, m := range manifests {
		if err := s.apply(ctx, m); err != nil {
			return err
		}
	}
	var err error
	if s.state.nfqproxy, err = s.daemonSet(ctx, Nfqproxy); err != nil {
		return err
	}
	if err := s.nfqproxyUpdated(ctx); err != nil {
		return err
	}
	for i, n := range targets {
		if err := s.toNfqproxy(ctx, n, fmt.Sprintf("%d of %d", i+1, len(targets))); err != nil {
			return err
		}
	}
	return nil
}

// Uninstall switches nodes back to kube-proxy. Without Options.Nodes it then removes everything that Install has
// made. An nfqproxy that only observes is removed as a whole.
func (s *Switch) Uninstall(ctx context.Context) error {
	switch observer, err := s.observerInstalled(ctx); {
	case err != nil:
		return err
	case observer:
		return s.removeObserver(ctx)
	}
	if err := s.checkPermissions(ctx, uninstalling); err != nil {
		return err
	}
	if err := s.read(ctx); err != nil {
		return err
	}
	if !s.state.installed() {
		s.print("nfqproxy is not installed on this cluster: nothing to do")
		return nil
	}
	targets, skipped, err := s.state.targets(s.Nodes, func(n *node) bool { return n.proxy == Nfqproxy || n.rules })
	if err != nil {
		return err
	}
	s.announce()
	s.printSkipped(skipped)
	return s.report(ctx, s.uninstall(ctx, targets, skipped))
}

func (s *Switch) uninstall(ctx context.Context, targets, skipped []*node) error {
	for i, n := range targets {
		s.print("node %s (%d of %d): to kube-proxy", n.name, i+1, len(targets))
		if err := s.toKubeProxy(ctx, n); err != nil {
			return fmt.Errorf("node %s: %w", n.name, err)
		}
	}
	switch {
	case len(s.Nodes) > 0:
		return nil
	case len(skipped) > 0:
		return fmt.Errorf("nfqproxy's objects and node labels stay, because these nodes still have nfqproxy: %s (run the command again when they are ready)", names(skipped))
	}
	return s.remove(ctx)
}

// report prints which node has which proxy now, and adds to an error how to go on.
func (s *Switch) report(ctx context.Context, err error) error {
	if s.DryRun {
		if err == nil {
			s.print("dry run: nothing was changed")
		}
		return err
	}
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	if e := s.readNodes(after); e != nil {
		s.print("the state of the nodes is not known: %v", e)
	} else {
		s.print("%s", s.state)
	}
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return errors.New("interrupted: the cluster stays as listed; run the command again to continue, or nfqproxy uninstall --cluster to go back")
	}
	return err
}

// print writes one line about the run.
func (s *Switch) print(format string, args ...any) {
	// An output that is closed does not stop a switch halfway.
	_, _ = fmt.Fprintf(s.Output, format+"\n", args...)
}

func (s *Switch) announce() {
	if s.DryRun {
		s.print("dry run: the API server checks the changes below, but does not make them")
	}
}

func (s *Switch) printSkipped(skipped []*node) {
	for _, n := range skipped {
		s.print("node %s: skipped: %s", n.name, n.obstacle)
	}
}

func names(nodes []*node) string {
	var list []string
	for _, n := range nodes {
		list = append(list, n.name)
	}
	return strings.Join(list, ", ")
}

// remove removes what Install has made, when all nodes have kube-proxy. kube-proxy's DaemonSet goes by no label before
// the labels are removed, so that no node loses its pod.
func (s *Switch) remove(ctx context.Context) error {
	if err := s.allBack(ctx); err != nil {
		return err
	}
	if err := s.setSelector(ctx, false); err != nil {
		return err
	}
	if err := s.kubeProxyReady(ctx); err != nil {
		return err
	}
	for _, n := range s.state.nodes {
		if err := s.setProxy(ctx, n, ""); err != nil {
			return err
		}
	}
	manifests, err := s.manifests(baseDir, configuration{})
	if err != nil {
		return err
	}
	return s.deleteAll(ctx, manifests)
}

// allBack is an error if a node has nfqproxy, such as one that has joined meanwhile.
func (s *Switch) allBack(ctx context.Context) error {
	if s.DryRun {
		return nil
	}
	if err := s.readNodes(ctx); err != nil {
		return err
	}
	for _, n := range s.state.nodes {
		if n.proxy == Nfqproxy || n.rules {
			return fmt.Errorf("node %s has nfqproxy: run the command again to switch it to kube-proxy", n.name)
		}
	}
	return nil
}
