package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
)

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
