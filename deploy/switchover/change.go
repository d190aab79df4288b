package switchover

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/diff"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// requestTimeout is how long a change is tried while the API server cannot be reached or is overloaded.
const requestTimeout = 30 * time.Second

// send makes a request until the API server has decided about it.
func (s *Switch) send(ctx context.Context, request func() error) error {
	for end := time.Now().Add(requestTimeout); ; {
		err := request()
		if err == nil || !passing(err) || time.Now().After(end) {
			return err
		}
		if e := s.pause(ctx); e != nil {
			return err
		}
	}
}

// passing reports whether the same request may succeed a moment later.
func passing(err error) bool {
	var decided apierrors.APIStatus
	if !errors.As(err, &decided) {
		return true // the network's
	}
	return apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err)
}

func (s *Switch) pause(ctx context.Context) error {
	timer := time.NewTimer(s.period)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// setProxy labels a node. A node with nfqproxy's label is marked as one that may have its rules.
func (s *Switch) setProxy(ctx context.Context, n *node, proxy string) error {
	if n.proxy == proxy && (proxy != Nfqproxy || n.rules) {
		return nil
	}
	metadata := map[string]any{"labels": map[string]any{Label: nil}}
	if proxy != "" {
		metadata["labels"] = map[string]any{Label: proxy}
	}
	rules := n.rules
	if proxy == Nfqproxy {
		rules, metadata["annotations"] = true, map[string]any{Annotation: "true"}
	}
	if err := s.patchNode(ctx, n, metadata); err != nil {
		return err
	}
	s.print("node %s: label %s: %s -> %s", n.name, Label, cmp.Or(n.proxy, "(none)"), cmp.Or(proxy, "(none)"))
	n.proxy, n.rules = proxy, rules
	return nil
}

// cleaned notes that a node's kernel has no rules of nfqproxy.
func (s *Switch) cleaned(ctx context.Context, n *node) error {
	if !n.rules {
		return nil
	}
	err := s.patchNode(ctx, n, map[string]any{"annotations": map[string]any{Annotation: nil}})
	if err == nil {
		n.rules = false
	}
	return err
}

func (s *Switch) patchNode(ctx context.Context, n *node, metadata map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	err = s.send(ctx, func() error {
		_, err := s.client.CoreV1().Nodes().Patch(ctx, n.name, types.MergePatchType, patch, s.patching())
		return err
	})
	if err != nil {
		return fmt.Errorf("patch node %s: %w", n.name, err)
	}
	return nil
}

func (s *Switch) patching() metav1.PatchOptions {
	return metav1.PatchOptions{FieldManager: Manager, DryRun: s.dry}
}

// setSelector has kube-proxy's DaemonSet select nodes by [Label], or all nodes again. Its other node selectors stay.
func (s *Switch) setSelector(ctx context.Context, selects bool) error {
	before := s.state.kubeProxy
	if _, is := before.Spec.Template.Spec.NodeSelector[Label]; is == selects {
		return nil
	}
	value := any(KubeProxy)
	if !selects {
		value = nil
	}
	// Server-side apply cannot do this: it owns a node selector as a whole.
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"nodeSelector": map[string]any{Label: value}}}}})
	if err != nil {
		return err
	}
	var after *appsv1.DaemonSet
	err = s.send(ctx, func() (err error) {
		after, err = s.client.AppsV1().DaemonSets(namespace).Patch(ctx, KubeProxy, types.MergePatchType, patch, s.patching())
		return err
	})
	if err != nil {
		return fmt.Errorf("patch DaemonSet kube-proxy: %w", err)
	}
	s.state.kubeProxy = after
	if selects {
		s.print("DaemonSet kube-proxy: node selector %s=%s added", Label, KubeProxy)
	} else {
		s.print("DaemonSet kube-proxy: node selector %s removed", Label)
	}
	return s.printDiff("DaemonSet kube-proxy", before, after)
}

// of is the client for an object of the manifests.
func (s *Switch) of(o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	r, ok := resources[o.GetKind()]
	if !ok {
		return nil, fmt.Errorf("manifest of unknown kind %q", o.GetKind())
	}
	if o.GetNamespace() == "" {
		return s.objects.Resource(r), nil
	}
	return s.objects.Resource(r).Namespace(o.GetNamespace()), nil
}

// dryRun applies the manifests as a dry run: conflicts and missing rights stop the run before the first change.
func (s *Switch) dryRun(ctx context.Context, manifests []*unstructured.Unstructured) error {
	if s.DryRun { // its steps do the same
		return nil
	}
	var errs []error
	for _, m := range manifests {
		_, err := s.applied(ctx, m, []string{metav1.DryRunAll})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// apply applies an object of the manifests by server-side apply.
func (s *Switch) apply(ctx context.Context, o *unstructured.Unstructured) error {
	client, err := s.of(o)
	if err != nil {
		return err
	}
	before, err := client.Get(ctx, o.GetName(), metav1.GetOptions{})
	created := apierrors.IsNotFound(err)
	if err != nil && !created {
		return fmt.Errorf("get %s: %w", title(o), err)
	}
	after, err := s.applied(ctx, o, s.dry)
	switch {
	case err != nil:
		return err
	case created:
		s.print("%s: created", title(o))
		return s.printDiff(title(o), nil, after)
	case before.GetResourceVersion() == after.GetResourceVersion() && !s.DryRun:
		s.print("%s: unchanged", title(o))
		return nil
	}
	s.print("%s: applied", title(o))
	return s.printDiff(title(o), before, after)
}

func (s *Switch) applied(ctx context.Context, o *unstructured.Unstructured, dry []string) (after *unstructured.Unstructured, err error) {
	client, err := s.of(o)
	if err != nil {
		return nil, err
	}
	err = s.send(ctx, func() (err error) {
		after, err = client.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: Manager, Force: s.Force, DryRun: dry})
		return err
	})
	switch {
	case apierrors.IsConflict(err):
		return nil, fmt.Errorf("%s: other field managers have set fields to other values: %s (give --force-conflicts to overwrite them)", title(o), conflicts(err))
	case err != nil:
		return nil, fmt.Errorf("apply %s: %w", title(o), err)
	}
	return after, nil
}

// conflicts lists the fields of a conflict, each with its manager.
func conflicts(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return err.Error()
	}
	var list []string
	for _, c := range status.Status().Details.Causes {
		list = append(list, c.Field+" ("+c.Message+")")
	}
	return strings.Join(list, ", ")
}

// deleteAll deletes the objects of the manifests, the last one first.
func (s *Switch) deleteAll(ctx context.Context, manifests []*unstructured.Unstructured) error {
	for _, m := range slices.Backward(manifests) {
		if err := s.delete(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// delete deletes an object of the manifests, if it is there.
func (s *Switch) delete(ctx context.Context, o *unstructured.Unstructured) error {
	client, err := s.of(o)
	if err != nil {
		return err
	}
	err = s.send(ctx, func() error { return client.Delete(ctx, o.GetName(), metav1.DeleteOptions{DryRun: s.dry}) })
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("delete %s: %w", title(o), err)
	}
	s.print("%s: deleted", title(o))
	return nil
}

func title(o *unstructured.Unstructured) string { return o.GetKind() + " " + o.GetName() }

// printDiff prints in a dry run what a change would do. before is nil for a new object.
func (s *Switch) printDiff(name string, before, after any) error {
	if !s.DryRun {
		return nil
	}
	var old []byte
	var err error
	if before != nil {
		if old, err = strippedYAML(before); err != nil {
			return err
		}
	}
	text, err := strippedYAML(after)
	if err != nil {
		return err
	}
	changes := diff.Diff(name, old, name+" (after)", text)
	// Without the line that names a command.
	if i := bytes.IndexByte(changes, '\n'); i > 0 {
		changes = changes[i+1:]
	}
	for line := range bytes.Lines(changes) {
		s.print("    %s", bytes.TrimRight(line, "\n"))
	}
	return nil
}

// strippedYAML is an object as YAML, without what the API server adds to each.
func strippedYAML(object any) ([]byte, error) {
	text, err := yaml.Marshal(object)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := yaml.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	delete(fields, "status")
	if metadata, ok := fields["metadata"].(map[string]any); ok {
		for _, name := range []string{"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"} {
			delete(metadata, name)
		}
		if annotations, ok := metadata["annotations"].(map[string]any); ok {
			delete(annotations, appsv1.DeprecatedTemplateGeneration)
		}
	}
	return yaml.Marshal(fields)
}
