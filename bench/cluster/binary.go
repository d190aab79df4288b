package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Names of the programs, see [Binary].
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	KubeProxy         = "kube-proxy"
	Kubectl           = "kubectl"
	Hubble            = "hubble"
	HubbleRelay       = "hubble-relay"
	PortForward       = "portforward"
	PromQL            = "promql"
	KubeScheduler     = "kube-scheduler"
	Kubelet           = "kubelet"
	Helm              = "helm"
	OTelCollector     = "otelcol"
)

// Binary gives the path where "make peers" puts a program, and "make e2e-programs" those of
// nodes and of Kubernetes' own tests. It looks for the
// repository from the working directory upwards, which is inside it for tests. The
// program need not be there.
func Binary(name string) (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		peers := filepath.Join(dir, "bench", "peers")
		if _, err := os.Stat(filepath.Join(peers, "go.mod")); err == nil {
			return filepath.Join(peers, "bin", name), nil
		} else if !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no bench/peers in %s or above: run this inside the repository", start)
		}
	}
}
