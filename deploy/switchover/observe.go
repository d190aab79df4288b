package switchover

import (
	"context"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Observe installs daemons that record the flows of the cluster's own service proxy, whichever that is. No node is
// switched.
func (s *Switch) Observe(ctx context.Context) error {
	if err := s.checkPermissions(ctx, observing); err != nil {
		return err
	}
	s.state = &state{}
	if err := s.readNodes(ctx); err != nil {
		return err
	}
	installed, err := s.daemonSet(ctx, Nfqproxy)
	if err != nil {
		return fmt.Errorf("API server %s: look for what is installed: %w", s.Config.Host, err)
	}
	if installed != nil && !observes(installed) {
		return errors.New("nfqproxy serves nodes of this cluster, so there is nothing to observe: nfqproxy flows --cluster shows its own flows; to observe kube-proxy, run nfqproxy uninstall --cluster first")
	}
	manifests, config, err := s.observing(ctx)
	if err != nil {
		return err
	}
	if err := s.dryRun(ctx, manifests); err != nil {
		return err
	}
	s.announce()
	s.print("%s: observe the service proxy of the nodes, configuration from %s", s.Config.Host, config)
	for _, m := range manifests {
		if err := s.apply(ctx, m); err != nil {
			return err
		}
	}
	return s.observed(ctx)
}

// observing are the objects of an observing nfqproxy. kube-proxy's ConfigMap has the pod prefixes, and an address of the
// API server that does not depend on the proxy; without that the daemons use the account of their pod.
func (s *Switch) observing(ctx context.Context) ([]*unstructured.Unstructured, configuration, error) {
	configMap, err := s.configMap(ctx)
	if err != nil {
		return nil, configuration{}, fmt.Errorf("API server %s: %w", s.Config.Host, err)
	}
	config := configuration{shared: checkShareable(configMap) == nil}
	manifests, err := s.manifests(observeDir, config)
	return manifests, config, err
}

// observed waits for the pods on all nodes that can have one now.
func (s *Switch) observed(ctx context.Context) (err error) {
	var nodes, skipped []*node
	for _, n := range s.state.nodes {
		if n.obstacle == "" {
			nodes = append(nodes, n)
		} else {
			skipped = append(skipped, n)
		}
	}
	s.printSkipped(skipped)
	s.print("DaemonSet nfqproxy: wait for the pods of %d nodes", len(nodes))
	if s.DryRun {
		s.print("dry run: nothing was changed")
		return nil
	}
	if s.state.nfqproxy, err = s.daemonSet(ctx, Nfqproxy); err != nil {
		return err
	}
	if s.state.nfqproxy == nil {
		return errors.New("DaemonSet nfqproxy is gone: something else has deleted it")
	}
	if err := s.awaitRollout(ctx, s.state.nfqproxy, nodes, func(map[string][]corev1.Pod) bool { return true }); err != nil {
		return err
	}
	s.print("nfqproxy observes %d nodes: nfqproxy flows --cluster shows their flows, nfqproxy status --cluster their state", len(nodes))
	return nil
}

// observes reports whether a DaemonSet's daemons only observe.
func observes(d *appsv1.DaemonSet) bool {
	return slices.ContainsFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool {
		return c.Name == Nfqproxy && slices.Contains(c.Args, "--observe")
	})
}

// observerInstalled reports whether the cluster has an observing nfqproxy.
func (s *Switch) observerInstalled(ctx context.Context) (bool, error) {
	d, err := s.daemonSet(ctx, Nfqproxy)
	switch {
	case apierrors.IsForbidden(err):
		return false, nil // which the check of all permissions reports
	case err != nil:
		return false, fmt.Errorf("API server %s: look for what is installed: %w", s.Config.Host, err)
	}
	return d != nil && observes(d), nil
}

// removeObserver removes what Observe has made.
func (s *Switch) removeObserver(ctx context.Context) error {
	if len(s.Nodes) > 0 {
		return errors.New("--node: nfqproxy only observes, on all nodes: run nfqproxy uninstall --cluster without it")
	}
	if err := s.checkPermissions(ctx, removing); err != nil {
		return err
	}
	manifests, err := s.manifests(observeDir, configuration{})
	if err != nil {
		return err
	}
	s.announce()
	if err := s.deleteAll(ctx, manifests); err != nil {
		return err
	}
	if s.DryRun {
		s.print("dry run: nothing was changed")
	}
	return nil
}
