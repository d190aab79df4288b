package switchover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// selectNodes has both DaemonSets go by [Label]. Nodes get the label of their proxy first, so that none loses its pod.
func (s *Switch) selectNodes(ctx context.Context) error {
	if err := s.labelAll(ctx, s.state.nodes); err != nil {
		return err
	}
	if err := s.setSelector(ctx, true); err != nil {
		return err
	}
	if !s.DryRun {
		// Those that have joined in between.
		before := s.state.nodes
		if err := s.readNodes(ctx); err != nil {
			return err
		}
		err := s.labelAll(ctx, s.state.nodes)
		s.state.nodes = before
		if err != nil {
			return err
		}
	}
	return s.kubeProxyReady(ctx)
}

// labelAll labels the nodes that have no label: they have kube-proxy.
func (s *Switch) labelAll(ctx context.Context, nodes []*node) error {
	for _, n := range nodes {
		if n.proxy == "" {
			if err := s.setProxy(ctx, n, KubeProxy); err != nil {
				return err
			}
		}
	}
	return nil
}

// kubeProxyReady waits for kube-proxy's pods on all nodes that it serves, and that are ready. A pod on a node that is not
// ready can hold up the update of all others (maxUnavailable), which a switch does not need: then pods of before will do.
func (s *Switch) kubeProxyReady(ctx context.Context) error {
	var nodes, others []*node
	for _, n := range s.state.nodes {
		switch {
		case n.proxy == Nfqproxy:
		case n.obstacle == "":
			nodes = append(nodes, n)
		default:
			others = append(others, n)
		}
	}
	s.print("DaemonSet kube-proxy: wait for the pods of %d nodes", len(nodes))
	if s.DryRun {
		return nil
	}
	return s.awaitRollout(ctx, s.state.kubeProxy, nodes, func(pods map[string][]corev1.Pod) bool {
		return !slices.ContainsFunc(others, func(n *node) bool { return len(pods[n.name]) > 0 })
	})
}

// nfqproxyUpdated waits until the pods of nodes that nfqproxy serves already are those of the DaemonSet as it was applied.
// Until then the pods of before serve.
func (s *Switch) nfqproxyUpdated(ctx context.Context) error {
	if s.DryRun {
		return nil
	}
	pods, err := s.podsOf(ctx, s.state.nfqproxy)
	if err != nil {
		return err
	}
	var outdated []*node
	for _, n := range s.state.nodes {
		of := pods[n.name]
		if n.proxy == Nfqproxy && n.obstacle == "" && served(of, s.state.nfqproxy, nil, false) == nil && served(of, s.state.nfqproxy, nil, true) != nil {
			outdated = append(outdated, n)
		}
	}
	if len(outdated) == 0 {
		return nil
	}
	s.print("DaemonSet nfqproxy: wait for the update of %d nodes", len(outdated))
	return s.awaitRollout(ctx, s.state.nfqproxy, outdated, func(map[string][]corev1.Pod) bool { return true })
}

// awaitRollout waits until each node has a ready pod of a DaemonSet, and an updated one if that is required. The time of a
// node begins when the one before it is done.
func (s *Switch) awaitRollout(ctx context.Context, set *appsv1.DaemonSet, waiting []*node, updated func(map[string][]corev1.Pod) bool) error {
	for len(waiting) > 0 {
		if err := s.await(ctx, set.Name+" on node "+waiting[0].name, func(ctx context.Context) error {
			pods, err := s.podsOf(ctx, set)
			if err != nil {
				return err
			}
			before := len(waiting)
			waiting = slices.DeleteFunc(waiting, func(n *node) bool {
				why := served(pods[n.name], set, nil, updated(pods))
				err = cmp.Or(err, why)
				return why == nil
			})
			if len(waiting) < before {
				return nil
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// podsOf returns the pods that the selector of a DaemonSet matches, by node.
func (s *Switch) podsOf(ctx context.Context, d *appsv1.DaemonSet) (map[string][]corev1.Pod, error) {
	list, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(d.Spec.Selector)})
	if err != nil {
		return nil, err
	}
	pods := make(map[string][]corev1.Pod)
	for _, p := range list.Items {
		pods[p.Spec.NodeName] = append(pods[p.Spec.NodeName], p)
	}
	return pods, nil
}

// toNfqproxy switches a node to nfqproxy, and back if a check fails.
func (s *Switch) toNfqproxy(ctx context.Context, n *node, which string) error {
	if n.proxy == Nfqproxy {
		s.print("node %s (%s): check nfqproxy", n.name, which)
	} else {
		s.print("node %s (%s): to nfqproxy", n.name, which)
	}
	begun := time.Now()
	if err := s.setProxy(ctx, n, Nfqproxy); err != nil {
		return err
	}
	err := s.await(ctx, "nfqproxy", func(ctx context.Context) error {
		if err := s.servedBy(ctx, n, s.state.nfqproxy, s.state.kubeProxy); err != nil {
			return err
		}
		for _, c := range s.Checkers {
			if err := c.Check(ctx, n.name); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		s.done(n, "served by nfqproxy", begun)
		return nil
	}
	if ctx.Err() != nil {
		return err
	}
	s.print("node %s: %v: back to kube-proxy", n.name, err)
	s.printLog(ctx, n)
	if e := s.toKubeProxy(ctx, n); e != nil {
		return fmt.Errorf("node %s: %w; and switching back to kube-proxy failed: %w", n.name, err, e)
	}
	return fmt.Errorf("node %s: %w; the node is back with kube-proxy, and the switch stops here", n.name, err)
}

// toKubeProxy switches a node to kube-proxy and removes nfqproxy's rules.
func (s *Switch) toKubeProxy(ctx context.Context, n *node) error {
	begun := time.Now()
	if err := s.setProxy(ctx, n, KubeProxy); err != nil {
		return err
	}
	if err := s.await(ctx, "kube-proxy", func(ctx context.Context) error {
		return s.servedBy(ctx, n, s.state.kubeProxy, s.state.nfqproxy)
	}); err != nil {
		return fmt.Errorf("%w (nfqproxy's rules are still in its kernel, and still serve)", err)
	}
	if err := s.clean(ctx, n); err != nil {
		return err
	}
	if err := s.cleaned(ctx, n); err != nil {
		return err
	}
	s.done(n, "served by kube-proxy, nfqproxy's rules are removed", begun)
	return nil
}

func (s *Switch) done(n *node, what string, begun time.Time) {
	if !s.DryRun {
		s.print("node %s: %s, after %s", n.name, what, time.Since(begun).Round(100*time.Millisecond))
	}
}

// await tries until there is no error, for the time of one node. A dry run does not wait.
func (s *Switch) await(ctx context.Context, what string, try func(context.Context) error) error {
	if s.DryRun {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	var last error
	for {
		err := try(limited)
		if err == nil {
			return nil
		}
		if final, is := errors.AsType[permanentError](err); is {
			return final.error
		}
		// An error of the end of the time has no news.
		if limited.Err() == nil || last == nil {
			last = err
		}
		if s.pause(limited) == nil {
			continue
		}
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted while waiting for %s: %w", what, last)
		}
		return fmt.Errorf("%s: not within %s: %w", what, s.Timeout, last)
	}
}

// permanentError is one that more time does not change.
type permanentError struct{ error }

// servedBy returns why a node is not served by a DaemonSet yet; see served.
func (s *Switch) servedBy(ctx context.Context, n *node, by, other *appsv1.DaemonSet) error {
	pods, err := s.podsOn(ctx, n.name)
	if err != nil {
		return err
	}
	return served(pods, by, other, true)
}

// served returns why a node with these pods is not served by a DaemonSet yet: its pod is not ready or, if that matters,
// not updated, or one of the other proxy is still there. Another one that is nil has no pods.
func served(pods []corev1.Pod, by, other *appsv1.DaemonSet, updated bool) error {
	var unready, outdated error
	ready := false
	for i := range pods {
		p := &pods[i]
		switch why := readiness(p); {
		case other != nil && metav1.IsControlledBy(p, other):
			return fmt.Errorf("pod %s is still there", p.Name)
		case !metav1.IsControlledBy(p, by):
		case p.DeletionTimestamp != nil || updated && !current(p, by):
			outdated = fmt.Errorf("pod %s has not been replaced yet", p.Name)
		case why != nil:
			unready = why
		default:
			ready = true
		}
	}
	if ready {
		return nil
	}
	return cmp.Or(unready, outdated, errors.New("no pod of DaemonSet "+by.Name+" on the node"))
}

func (s *Switch) podsOn(ctx context.Context, node string) ([]corev1.Pod, error) {
	list, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// current reports whether a pod is of the latest template of its DaemonSet.
func current(p *corev1.Pod, of *appsv1.DaemonSet) bool {
	want := of.Annotations[appsv1.DeprecatedTemplateGeneration]
	return want == "" || of.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType || p.Labels["pod-template-generation"] == want
}

// readiness returns why a pod is not ready: the state of a container, or else that of the pod. Nil: it is ready.
func readiness(p *corev1.Pod) error {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		switch w, t := c.State.Waiting, c.LastTerminationState.Terminated; {
		case w != nil:
			return fmt.Errorf("pod %s: container %s is waiting: %s", p.Name, c.Name, join(w.Reason, w.Message))
		case t != nil:
			return fmt.Errorf("pod %s: container %s is not ready, and exited before with code %d: %s", p.Name, c.Name, t.ExitCode, join(t.Reason, t.Message))
		case c.State.Running != nil && !c.Ready:
			return fmt.Errorf("pod %s: container %s is running, but not ready", p.Name, c.Name)
		}
	}
	return fmt.Errorf("pod %s is not ready: %s", p.Name, join(string(p.Status.Phase), p.Status.Message))
}

func join(reason, message string) string {
	if reason != "" && message != "" {
		return reason + ": " + message
	}
	return reason + message
}
