// Package kube has Kubernetes objects that belong together: those of a cluster, of files or of a service table.
//
// It is a ground package.
package kube

import (
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// Objects are the Kubernetes objects that a service table is made from. Once published, they and everything they point to are
// read only and may be shared.
type Objects struct {
	Services       []*corev1.Service
	EndpointSlices []*discoveryv1.EndpointSlice // with those that the control plane makes of Endpoints
	Endpoints      []*corev1.Endpoints
	Nodes          []*corev1.Node
	Pods           []*corev1.Pod

	// Context has the objects that the service table does not depend on, as far as they were read.
	Context Context

	// Warnings, one line each, are about how the objects were read.
	Warnings []string
}

// Context has objects that affect connections besides the service table, or that its objects refer to. Its
// objects are decoded, but not validated.
type Context struct {
	NetworkPolicies []*networkingv1.NetworkPolicy
	Namespaces      []*corev1.Namespace
	ServiceCIDRs    []*networkingv1.ServiceCIDR
	// KubeProxy is the ConfigMap kube-system/kube-proxy, as kubeadm makes it; nil: there is none.
	KubeProxy *corev1.ConfigMap
}

// KubeProxyConfigMap is the name of the ConfigMap in kube-system with kube-proxy's configuration, under the key
// config.conf.
const KubeProxyConfigMap = "kube-proxy"

// Separator stands between documents of YAML.
const Separator = "---\n"

// YAML is the text of the objects as a manifest, as people write them: without what an API server adds to each one, and
// without empty fields that Kubernetes' types always write. The Context is left out.
func (o *Objects) YAML() (string, error) {
	core := corev1.SchemeGroupVersion
	services, err1 := YAML(core.WithKind("Service"), o.Services)
	endpoints, err2 := YAML(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), o.EndpointSlices)
	nodes, err3 := YAML(core.WithKind("Node"), o.Nodes)
	pods, err4 := YAML(core.WithKind("Pod"), o.Pods)
	all := slices.DeleteFunc([]string{services, endpoints, nodes, pods}, func(text string) bool { return text == "" })
	return strings.Join(all, Separator), errors.Join(err1, err2, err3, err4)
}

// YAML is the text of objects of one kind, likewise.
func YAML[T any](kind schema.GroupVersionKind, objects []*T) (string, error) {
	var b strings.Builder
	for i, o := range objects {
		fields, err := Fields(kind, o)
		if err != nil {
			return "", err
		}
		text, err := yaml.Marshal(fields)
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

// Fields are those of one object, likewise.
func Fields(kind schema.GroupVersionKind, object any) (map[string]any, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	fields["apiVersion"], fields["kind"] = kind.GroupVersion().String(), kind.Kind
	for _, field := range []string{"managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink"} {
		unstructured.RemoveNestedField(fields, "metadata", field)
	}
	if status, ok := fields["status"].(map[string]any); ok {
		for _, field := range []string{"loadBalancer", "daemonEndpoints", "nodeInfo"} {
			if of, ok := status[field].(map[string]any); ok && empty(of) {
				delete(status, field)
			}
		}
	}
	for _, field := range []string{"spec", "status"} {
		if of, ok := fields[field].(map[string]any); ok && len(of) == 0 {
			delete(fields, field)
		}
	}
	list, _, _ := unstructured.NestedFieldNoCopy(fields, "spec", "ports")
	ports, _ := list.([]any)
	for _, p := range ports {
		if port, ok := p.(map[string]any); ok && port["targetPort"] == int64(0) { // not known
			delete(port, "targetPort")
		}
	}
	return fields, nil
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
