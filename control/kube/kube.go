// Package kube has Kubernetes objects that belong together: those of a cluster, of files or of a service table.
//
// It is a ground package.
package kube

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
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
