package kube

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// Separator stands between documents of YAML.
const Separator = "---\n"

// YAML is the text of the objects as a manifest, as people write them: without what an API server adds to each one, and
// without empty fields that Kubernetes' types always write. The Context is left out.
func (o *Objects) YAML() (string, error) {
	var all []string
	add := func(text string, err error) error {
		if text != "" {
			all = append(all, text)
		}
		return err
	}
	core := corev1.SchemeGroupVersion
	err := add(YAML(core.WithKind("Service"), o.Services))
	if err == nil {
		err = add(YAML(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), o.EndpointSlices))
	}
	if err == nil {
		err = add(YAML(core.WithKind("Node"), o.Nodes))
	}
	if err == nil {
		err = add(YAML(core.WithKind("Pod"), o.Pods))
	}
	return strings.Join(all, Separator), err
}

// YAML is the text of objects of one kind, likewise.
func YAML[T any](kind schema.GroupVersionKind, objects []*T) (string, error) {
	var b strings.Builder
	for i, o := range objects {
		text, err := document(kind, o)
		if err != nil {
			return "", err
		}
		if i > 0 {
			b.WriteString(Separator)
		}
		b.Write(text)
	}
	return b.String(), nil
}

func document(kind schema.GroupVersionKind, object any) ([]byte, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
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
	return yaml.Marshal(fields)
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
