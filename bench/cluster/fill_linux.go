package cluster

import (
	"context"
	"net/netip"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AddNode makes a Node object with an address.
func (c *Cluster) AddNode(ctx context.Context, name string, address netip.Addr) error {
	_, err := c.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address.String()}}},
	}, metav1.CreateOptions{})
	return err
}

// writers is how many objects are made or changed at once.
const writers = 16

// Each calls f with the numbers from first up to, but without, end: several at once, until one
// fails.
func Each(ctx context.Context, first, end int, f func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := first; i < end && ctx.Err() == nil; i++ {
		group.Go(func() error { return f(ctx, i) })
	}
	return group.Wait()
}
