package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
)

// proxyLabel selects the service proxy of a node, see deploy/kubernetes/README.md.
const proxyLabel = "service-proxy"

// proxies are the service proxies by the names that users give them.
// The label is that of their DaemonSet and of their pods, too.
var proxies = map[string]struct{ label, program, mode string }{
	"nfqproxy":            {"nfqproxy", "nfqproxyd", ""},
	"kube-proxy":          {"kube-proxy", "kube-proxy", "iptables"},
	"kube-proxy-nftables": {"kube-proxy", "kube-proxy", "nftables"},
}

func proxyNames() string { return strings.Join(slices.Sorted(maps.Keys(proxies)), ", ") }

// deployProxy installs the service proxy and waits until it serves: CoreDNS is ready when it has
// reached the API server by the ClusterIP of that.
//
// Both proxies are configured by the ConfigMap kube-proxy, as on a cluster made by kubeadm. With
// nfqproxy, kube-proxy's DaemonSet is there, too, for nodes with its label; there are none.
func (s *settings) deployProxy(ctx context.Context) error {
	p := proxies[s.Proxy]
	logf("installing %s", s.Proxy)
	bind := "0.0.0.0"
	if s.IPv6Only {
		bind = "::"
	}
	selector := "{kubernetes.io/os: linux}"
	if p.label != "kube-proxy" {
		selector = "{kubernetes.io/os: linux, " + proxyLabel + ": kube-proxy}"
	}
	if err := s.apply(ctx, "kube-proxy.yaml", map[string]any{"Mode": p.mode, "BindAddress": bind, "NodeSelector": selector}); err != nil {
		return err
	}
	if p.label == "nfqproxy" {
		if err := s.deployOwn(ctx); err != nil {
			return err
		}
	}
	for _, what := range []string{"daemonset/" + p.label, "deployment/coredns"} {
		if err := s.rolledOut(ctx, "kube-system", what); err != nil {
			return err
		}
	}
	return nil
}

func (s *settings) deployOwn(ctx context.Context) error {
	if s.Deploy == "kustomize" {
		root, err := repository()
		if err != nil {
			return err
		}
		return s.kubectl(ctx, nil, "apply", "--kustomize="+filepath.Join(root, "deploy", "kubernetes", "overlays", "kubeadm"))
	}
	return s.helm(ctx, "install", "nfqproxy", "--set=kubeadm=true,image.tag=dev")
}

// helm runs a command; install is of the chart here.
func (s *settings) helm(ctx context.Context, args ...string) error {
	root, err := repository()
	if err != nil {
		return err
	}
	program, err := cluster.Binary(cluster.Helm)
	if err != nil {
		return err
	}
	if args[0] == "install" {
		args = append(args, filepath.Join(root, "deploy", "helm", "nfqproxy"))
	}
	cmd := exec.Command(program, append([]string{"--kubeconfig=" + s.kubeconfig(), "--namespace=kube-system"}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+s.Dir)
	_, err = output(ctx, cmd)
	return err
}

// repository is the root of this repository.
func repository() (string, error) {
	program, err := cluster.Binary("x")
	return filepath.Join(program, "..", "..", "..", ".."), err
}

// Programs that "make e2e-programs" builds beside those of bench/cluster; see bench/peers/e2e.
const (
	e2eTest    = "e2e.test"
	ginkgo     = "ginkgo"
	agnhost    = "agnhost"
	regression = "regression-issue-74839"
	coreDNS    = "coredns"
	pause      = "pause"
	peer       = "peer"
)

// requireMachine returns an error with all that this machine lacks, and what to do about it.
func requireMachine() error {
	if os.Geteuid() != 0 {
		return errors.New("nodes with containers require root: run make e2e as root")
	}
	var errs []error
	for _, name := range []string{
		cluster.Etcd, cluster.APIServer, cluster.ControllerManager, cluster.KubeProxy, cluster.Kubectl,
		cluster.KubeScheduler, cluster.Kubelet, e2eTest, ginkgo, agnhost, regression, coreDNS, pause, peer, cluster.Hubble, cluster.HubbleRelay,
	} {
		path, err := cluster.Binary(name)
		if err != nil {
			return err
		}
		if _, err := os.Stat(path); err != nil {
			errs = append(errs, fmt.Errorf("%s is not built: run make e2e-programs", path))
		}
	}
	for _, name := range []string{"containerd", "ctr", "runc", "ethtool", "ipset", "nsenter", "openssl", "/usr/lib/cni/ptp", "/usr/lib/cni/portmap"} {
		if _, err := exec.LookPath(name); err != nil {
			errs = append(errs, fmt.Errorf("%s is not installed: run datapath/netns/programs/install.sh", name))
		}
	}
	return errors.Join(errs...)
}

// programs returns the paths of programs.
func programs(names ...string) (paths []string, err error) {
	for _, name := range names {
		path, err := cluster.Binary(name)
		if err != nil {
			return nil, err
		}
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}
