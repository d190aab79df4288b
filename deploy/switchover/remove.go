package switchover

import (
	"context"
	"fmt"
	"slices"
)

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
	manifests, err := s.manifests(configuration{})
	if err != nil {
		return err
	}
	slices.Reverse(manifests)
	for _, m := range manifests {
		if err := s.delete(ctx, m); err != nil {
			return err
		}
	}
	return nil
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
