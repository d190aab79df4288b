package cluster_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// create makes a service, or returns why it could not within a second.
func (f *fixture) create(t *testing.T, name string) error {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := f.Client().CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	return err
}

// awaitExists waits until the service can be read, out of etcd and not of a cache.
func (f *fixture) awaitExists(t *testing.T, name string) {
	t.Helper()
	await(t, "service "+name, func(ctx context.Context) (bool, error) {
		_, err := f.Client().CoreV1().Services("default").Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil, err
	})
}

func (f *fixture) testStop(t *testing.T) {
	if err := f.create(t, "before-stop"); err != nil {
		t.Fatal(err)
	}
	if err := f.APIServer.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := f.create(t, "while-stopped"); err == nil {
		t.Error("the stopped API server answered")
	}
	if err := f.APIServer.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.awaitExists(t, "before-stop")
}

func (f *fixture) testEtcdKilled(t *testing.T) {
	if err := f.create(t, "before-kill"); err != nil {
		t.Fatal(err)
	}
	if err := f.Etcd.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := f.create(t, "while-killed"); err == nil {
		t.Error("created a service without etcd")
	}
	if err := f.Etcd.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.awaitExists(t, "before-kill")
}

func (f *fixture) testEtcdFrozen(t *testing.T) {
	if err := f.Etcd.Freeze(); err != nil {
		t.Fatal(err)
	}
	if err := f.create(t, "while-frozen"); err == nil {
		t.Error("created a service with etcd frozen")
	}
	if err := f.Etcd.Thaw(); err != nil {
		t.Fatal(err)
	}
	await(t, "etcd to answer again", func(context.Context) (bool, error) {
		err := f.create(t, "after-thaw")
		return err == nil || apierrors.IsAlreadyExists(err), err
	})
}

func (f *fixture) testCompact(t *testing.T) {
	services := f.Client().CoreV1().Services("default")
	before, err := services.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{f.APIServer.Kill(), f.Compact(t.Context()), f.APIServer.Start(t.Context())} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := watchError(t, f, before.ResourceVersion); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("watching from a version before: %v, want 410", err)
	}
	_, err = services.List(t.Context(), metav1.ListOptions{ResourceVersion: before.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("listing at a version before: %v, want 410", err)
	}
	after, err := services.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(after.Items) != len(before.Items) {
		t.Errorf("%d services (%v), want %d as before", len(after.Items), err, len(before.Items))
	}
}

// watchError is the error that a watch begins with; nil if it begins with something
// else or goes on without.
func watchError(t *testing.T, f *fixture, version string) error {
	t.Helper()
	seconds := int64(5)
	w, err := f.Client().CoreV1().Services("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version, TimeoutSeconds: &seconds})
	if err != nil {
		return err
	}
	defer w.Stop()
	event, ok := <-w.ResultChan()
	if !ok || event.Type != watch.Error {
		return nil
	}
	return apierrors.FromObject(event.Object)
}

// testUnasked is the last: it closes the cluster.
func (f *fixture) testUnasked(t *testing.T) {
	if err := f.ControllerManager.Crash(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err == nil || !strings.Contains(err.Error(), "kube-controller-manager exited unexpectedly (signal: killed)") {
		t.Errorf("closing: %v, want to hear of the death", err)
	}
	if f.APIServer.Alive() || f.Etcd.Alive() {
		t.Error("a component outlived Close")
	}
}
