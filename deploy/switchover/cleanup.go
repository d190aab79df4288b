package switchover

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// cleanupName is the name of cleanup pods up to a random part. Pods of runs before are known by it.
const cleanupName = "nfqproxy-cleanup-"

// clean runs the cleanup pod on a node, and deletes it when it has succeeded.
func (s *Switch) clean(ctx context.Context, n *node) error {
	if err := s.deleteCleanups(ctx, n); err != nil {
		return err
	}
	pod, err := s.cleanupPod(n)
	if err != nil {
		return err
	}
	var made *corev1.Pod
	if err := s.send(ctx, func() (err error) {
		made, err = s.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: s.dry, FieldManager: Manager})
		return err
	}); err != nil {
		return fmt.Errorf("create the cleanup pod: %w", err)
	}
	s.print("node %s: cleanup pod %s: remove nfqproxy's rules", n.name, made.Name)
	if s.DryRun {
		return nil
	}
	err = s.await(ctx, "cleanup", func(ctx context.Context) error {
		p, err := s.client.CoreV1().Pods(namespace).Get(ctx, made.Name, metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case p.Status.Phase == corev1.PodSucceeded:
			return nil
		case p.Status.Phase == corev1.PodFailed:
			return permanentError{failure(p)}
		}
		return cmp.Or(readiness(p), fmt.Errorf("pod %s has not ended", p.Name)) // a running pod is ready
	})
	if err != nil {
		return fmt.Errorf("%w; nfqproxy's rules may still be in the node's kernel, and still serve (kubectl -n %s logs %s)", err, namespace, made.Name)
	}
	return s.deleteCleanups(ctx, n)
}

// failure is why a pod has failed.
func failure(p *corev1.Pod) error {
	for _, c := range p.Status.ContainerStatuses {
		if t := c.State.Terminated; t != nil {
			return fmt.Errorf("cleanup pod %s failed with exit code %d: %s", p.Name, t.ExitCode, join(t.Reason, t.Message))
		}
	}
	return fmt.Errorf("cleanup pod %s failed: %s", p.Name, join(p.Status.Reason, p.Status.Message))
}

// cleanupPod is the pod of the manifest for a node, with the image of the installed DaemonSet or the one of the
// options.
func (s *Switch) cleanupPod(n *node) (*corev1.Pod, error) {
	pod := new(corev1.Pod)
	if err := decode("cleanup/pod.yaml", pod); err != nil {
		return nil, err
	}
	pod.Spec.NodeName = n.name
	container := &pod.Spec.Containers[0]
	if d := s.state.nfqproxy; d != nil {
		template := d.Spec.Template.Spec
		if i := slices.IndexFunc(template.Containers, func(c corev1.Container) bool { return c.Name == Nfqproxy }); i >= 0 {
			container.Image, container.ImagePullPolicy = template.Containers[i].Image, template.Containers[i].ImagePullPolicy
		}
		pod.Spec.ImagePullSecrets = template.ImagePullSecrets
	}
	if s.Image != "" {
		container.Image = s.Image
	}
	return pod, nil
}

// deleteCleanups deletes the cleanup pods of a node, and waits until they are gone: two would wait for each other.
func (s *Switch) deleteCleanups(ctx context.Context, n *node) error {
	return s.await(ctx, "the end of earlier cleanup pods", func(ctx context.Context) error {
		pods, err := s.podsOn(ctx, n.name)
		if err != nil {
			return err
		}
		var left error
		for _, p := range pods {
			if p.GenerateName != cleanupName {
				continue
			}
			left = fmt.Errorf("pod %s is still there", p.Name)
			if p.DeletionTimestamp != nil {
				continue
			}
			if err := s.client.CoreV1().Pods(namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
		return left
	})
}

// logLines and logTimeout bound what is printed of the log of a daemon that did not get ready.
const (
	logLines   = 5
	logTimeout = 5 * time.Second
)

// printLog prints the end of the log of a node's daemon, if it can be had.
func (s *Switch) printLog(ctx context.Context, n *node) {
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	pods, err := s.podsOn(ctx, n.name)
	if err != nil || s.state.nfqproxy == nil {
		return
	}
	for i := range pods {
		if !metav1.IsControlledBy(&pods[i], s.state.nfqproxy) {
			continue
		}
		lines := int64(logLines)
		text, err := s.client.CoreV1().Pods(namespace).GetLogs(pods[i].Name, &corev1.PodLogOptions{TailLines: &lines}).DoRaw(ctx)
		if err != nil {
			continue
		}
		for line := range bytes.Lines(text) {
			s.print("    %s: %s", pods[i].Name, bytes.TrimRight(line, "\n"))
		}
	}
}
