package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
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

// KubeProxyCommand is kube-proxy as the named node, in one of its modes (iptables,
// nftables, ipvs), ready to be started in the node's namespace. Its account needs
// the rights of the cluster role system:node-proxier, and the Node object an
// InternalIP. kube-proxy itself runs nft or iptables-restore, and ipvs mode ipset.
//
// The kernel's limits of connection tracking stay as they are: they belong to the
// machine, and an ordinary user's namespace may not write them. Further flags
// override these.
func KubeProxyCommand(kubeconfig, node, mode string, flags ...string) (*exec.Cmd, error) {
	path, err := Binary(KubeProxy)
	if err != nil {
		return nil, err
	}
	return exec.Command(path, append([]string{
		"--kubeconfig=" + kubeconfig,
		"--hostname-override=" + node,
		"--proxy-mode=" + mode,
		"--conntrack-max-per-core=0",
		"--conntrack-min=0",
		"--conntrack-tcp-timeout-established=0",
		"--conntrack-tcp-timeout-close-wait=0",
	}, flags...)...), nil
}
