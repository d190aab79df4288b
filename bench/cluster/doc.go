// Package cluster runs a Kubernetes control plane for tests and benchmarks: etcd, kube-apiserver and, on request, chosen controllers of
// kube-controller-manager, as processes that may be killed, frozen and started
// again one by one.
//
// The programs are those that "make peers" builds. Pods, Nodes and their statuses
// are objects that the caller writes: nothing runs them, but the controllers act on
// them, so that EndpointSlices are the real controller's. Real nodes may join
// (see Config.Kubelets); package bench/e2e has some.
//
// All data is in one directory; requests to the API server are authenticated by
// tokens and authorized by RBAC. The service account admission plugin is off, so
// that Pods need no service account.
package cluster
