// Package clusterobjects lists the objects of a cluster once, from its API server.
package clusterobjects

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/nfqproxy/nfqproxy/control/kube"
)

// listTimeout bounds one request of List.
const listTimeout = 30 * time.Second

// List returns the Services, EndpointSlices, Nodes and Pods of the cluster, and their context, as they are.
// Context that the user may not list, or that the API server does not know, is left out. Unlike the daemon's
// client it does not wait for an API server that cannot be reached.
func List(ctx context.Context, config *rest.Config) (*kube.Objects, error) {
	config = rest.CopyConfig(config)
	config.Timeout = listTimeout
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of API server %s: %w", config.Host, err)
	}
	o := &kube.Objects{}
	var forbidden []string
	for _, r := range []struct {
		resource string
		context  bool
		page     pager.ListPageFunc
	}{
		{"services", false, func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return client.CoreV1().Services("").List(ctx, opts)
		}},
		{"endpointslices", false, func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return client.DiscoveryV1().EndpointSlices("").List(ctx, opts)
		}},
		{"nodes", false, func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return client.CoreV1().Nodes().List(ctx, opts)
		}},
		{"pods", false, func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return client.CoreV1().Pods("").List(ctx, opts)
		}},
		{"networkpolicies", true, func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return client.NetworkingV1().NetworkPolicies("").List(ctx, opts)
		}},
		{"namespaces", true, func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return client.CoreV1().Namespaces().List(ctx, opts)
		}},
		{"servicecidrs", true, func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return client.NetworkingV1().ServiceCIDRs().List(ctx, opts)
		}},
		{"configmaps", true, func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			opts.FieldSelector = fields.OneTermEqualSelector("metadata.name", kube.KubeProxyConfigMap).String()
			return client.CoreV1().ConfigMaps(metav1.NamespaceSystem).List(ctx, opts)
		}},
	} {
		err := pager.New(r.page).EachListItem(ctx, metav1.ListOptions{}, func(item runtime.Object) error {
			switch item := item.(type) {
			case *corev1.Service:
				o.Services = append(o.Services, item)
			case *discoveryv1.EndpointSlice:
				o.EndpointSlices = append(o.EndpointSlices, item)
			case *corev1.Node:
				o.Nodes = append(o.Nodes, item)
			case *corev1.Pod:
				o.Pods = append(o.Pods, item)
			case *networkingv1.NetworkPolicy:
				o.Context.NetworkPolicies = append(o.Context.NetworkPolicies, item)
			case *corev1.Namespace:
				o.Context.Namespaces = append(o.Context.Namespaces, item)
			case *networkingv1.ServiceCIDR:
				o.Context.ServiceCIDRs = append(o.Context.ServiceCIDRs, item)
			case *corev1.ConfigMap:
				o.Context.KubeProxy = item
			}
			return nil
		})
		switch {
		case r.context && (apierrors.IsForbidden(err) || apierrors.IsNotFound(err)):
		case apierrors.IsForbidden(err):
			forbidden = append(forbidden, r.resource)
		case err != nil:
			return nil, fmt.Errorf("API server %s: list %s: %w", config.Host, r.resource, err)
		}
	}
	if len(forbidden) > 0 {
		return nil, fmt.Errorf("API server %s: no permission to list %s in all namespaces (ClusterRole nfqproxy-doctor of deploy/kubernetes has it)", config.Host, strings.Join(forbidden, ", "))
	}
	return o, nil
}
