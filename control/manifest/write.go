package manifest

import (
	"io"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// Write writes the objects as a manifest in YAML, as people write them: without what an API server adds to each one,
// and without empty fields that Kubernetes' types always write. The Context is left out.
func Write(w io.Writer, o *Objects) error {
	m := writer{to: w}
	writeAll(&m, corev1.SchemeGroupVersion.WithKind("Service"), o.Services)
	writeAll(&m, discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), o.EndpointSlices)
	writeAll(&m, corev1.SchemeGroupVersion.WithKind("Node"), o.Nodes)
	writeAll(&m, corev1.SchemeGroupVersion.WithKind("Pod"), o.Pods)
	writeAll(&m, appsv1.SchemeGroupVersion.WithKind("Deployment"), o.Deployments)
	return m.err
}

// YAML is the text of [Write].
func (o *Objects) YAML() (string, error) {
	var b strings.Builder
	err := Write(&b, o)
	return b.String(), err
}

// writer writes documents up to the first error.
type writer struct {
	to      io.Writer
	written bool
	err     error
}

func writeAll[T any](w *writer, kind schema.GroupVersionKind, objects []*T) {
	for _, o := range objects {
		if w.err == nil {
			w.err = w.document(kind, o)
		}
	}
}

func (w *writer) document(kind schema.GroupVersionKind, object any) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	fields["apiVersion"], fields["kind"] = kind.GroupVersion().String(), kind.Kind
	if meta, ok := fields["metadata"].(map[string]any); ok {
		for _, field := range []string{"managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink"} {
			delete(meta, field)
		}
	}
	if status, ok := fields["status"].(map[string]any); ok {
		for _, field := range []string{"loadBalancer", "daemonEndpoints", "nodeInfo"} {
			if of, ok := status[field].(map[string]any); ok && empty(of) {
				delete(status, field)
			}
		}
		if len(status) == 0 {
			delete(fields, "status")
		}
	}
	if spec, ok := fields["spec"].(map[string]any); ok {
		ports, _ := spec["ports"].([]any)
		for _, p := range ports {
			if port, ok := p.(map[string]any); ok && port["targetPort"] == int64(0) { // not known
				delete(port, "targetPort")
			}
		}
	}
	text, err := yaml.Marshal(fields)
	if err != nil {
		return err
	}
	if w.written {
		text = append([]byte("---\n"), text...)
	}
	w.written = true
	_, err = w.to.Write(text)
	return err
}

// empty reports whether a structure has no value but empty ones.
func empty(fields map[string]any) bool {
	for _, v := range fields {
		switch v := v.(type) {
		case map[string]any:
			if !empty(v) {
				return false
			}
		case string:
			if v != "" {
				return false
			}
		case int64:
			if v != 0 {
				return false
			}
		default:
			return false
		}
	}
	return true
}
