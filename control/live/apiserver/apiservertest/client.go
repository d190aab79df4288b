// Package apiservertest makes a client of package apiserver of a Clientset, for tests with client-go's fake one.
package apiservertest

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Client is the apiserver.Client of a Clientset.
type Client struct{ kubernetes.Interface }

// ListWatch implements apiserver.Client.
func (c Client) ListWatch(resource, labels, fields string) cache.ListerWatcher {
	switch resource {
	case "services":
		return listWatch(c, c.CoreV1().Services(""), labels, fields)
	case "endpointslices":
		return listWatch(c, c.DiscoveryV1().EndpointSlices(""), labels, fields)
	case "nodes":
		return listWatch(c, c.CoreV1().Nodes(), labels, fields)
	case "pods":
		return listWatch(c, c.CoreV1().Pods(""), labels, fields)
	}
	panic("no such resource: " + resource)
}

type resource[L runtime.Object] interface {
	List(ctx context.Context, opts metav1.ListOptions) (L, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

func listWatch[L runtime.Object](c Client, r resource[L], labels, fields string) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector, o.FieldSelector = labels, fields
			return r.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector, o.FieldSelector = labels, fields
			return r.Watch(ctx, o)
		},
	}, c.Interface)
}

// CreateEvent implements apiserver.Client.
func (c Client) CreateEvent(ctx context.Context, event *eventsv1.Event) error {
	_, err := c.EventsV1().Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{})
	return err
}

// PatchEvent implements apiserver.Client.
func (c Client) PatchEvent(ctx context.Context, namespace, name string, patch []byte) error {
	_, err := c.EventsV1().Events(namespace).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return err
}

// ReviewToken implements apiserver.Client.
func (c Client) ReviewToken(ctx context.Context, review *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
	return c.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
}
