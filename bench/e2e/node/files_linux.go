package node

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Files of the node.
const (
	containerdConfig = "/etc/containerd/e2e.toml"
	containerdSocket = "/run/containerd/containerd.sock"
	kubeletConfig    = "/etc/kubernetes/kubelet.json"
	kubeletFlags     = "/etc/kubernetes/kubelet.flags"
	authority        = "/etc/kubernetes/ca.crt"
	kubeconfig       = "/etc/kubernetes/kubelet.kubeconfig"
	resolverConfig   = "/etc/kubernetes/no-resolver.conf"
	networkConfig    = "/etc/cni/net.d/10-ptp.conflist"
)

// copyFiles copies the machine's files to the node's root.
func (c *Config) copyFiles(root string) error {
	for at, source := range map[string]string{authority: c.Authority, kubeconfig: c.Kubeconfig} {
		text, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		if err := write(filepath.Join(root, at), string(text)); err != nil {
			return err
		}
	}
	return nil
}

// writeFiles writes the configuration of the node's programs.
func (c *Config) writeFiles() error {
	network, err := c.network()
	if err != nil {
		return err
	}
	kubelet, err := c.kubelet()
	if err != nil {
		return err
	}
	// The machine's own network plugins are none of the node's.
	if err := os.RemoveAll(filepath.Dir(networkConfig)); err != nil {
		return err
	}
	for at, text := range map[string]string{
		containerdConfig: c.containerd(),
		kubeletConfig:    kubelet,
		kubeletFlags:     strings.Join(c.kubeletFlags(), "\n"),
		networkConfig:    network,
		// Pods never send a query to the machine's name servers.
		resolverConfig: "nameserver 192.0.2.53\n",
	} {
		if err := write(at, text); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/run/lock", "/run/netns", "/var/lib/kubelet", "/var/lib/cni"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func write(at, text string) error {
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	return os.WriteFile(at, []byte(text), 0o600)
}

// containerd is its configuration. Version 2 of the format is that of containerd 1.x; 2.x reads it too.
func (c *Config) containerd() string {
	snapshotter := "overlayfs"
	var at unix.Statfs_t
	if err := unix.Statfs("/var/lib/containerd", &at); err == nil && at.Type == unix.OVERLAYFS_SUPER_MAGIC {
		snapshotter = "native" // it copies, but works everywhere
	}
	return fmt.Sprintf(`version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  # Without CAP_SYS_RESOURCE the score may not be lowered.
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = %q
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = %q
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
`, containerdSocket, c.Pause, filepath.Dir(networkConfig), snapshotter)
}

type object = map[string]any

// network is the configuration of the network plugins: a pair of devices and routes for each
// pod, and host ports.
func (c *Config) network() (string, error) {
	var routes, ranges []any
	for _, cidr := range c.PodCIDRs {
		routes = append(routes, object{"dst": netip.PrefixFrom(cidr.Addr(), 0).Masked()})
		ranges = append(ranges, []any{object{"subnet": cidr}})
	}
	text, err := json.Marshal(object{
		"cniVersion": "0.4.0",
		"name":       "ptp",
		"plugins": []any{
			object{"type": "ptp", "ipMasq": false, "mtu": 1500, "ipam": object{"type": "host-local", "dataDir": "/run/cni-ipam", "routes": routes, "ranges": ranges}},
			object{"type": "portmap", "capabilities": object{"portMappings": true}},
		},
	})
	return string(text), err
}

// kubelet is its configuration. It evicts no pod and removes no image for want of space: the
// machine's disk is not only the node's, and images could not be fetched again.
func (c *Config) kubelet() (string, error) {
	text, err := json.Marshal(object{
		"apiVersion":               "kubelet.config.k8s.io/v1beta1",
		"kind":                     "KubeletConfiguration",
		"failCgroupV1":             false,
		"cgroupDriver":             "cgroupfs",
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"enforceNodeAllocatable":   []string{},
		"failSwapOn":               false,
		// It tolerates the want of CAP_SYS_RESOURCE.
		"featureGates":  object{"KubeletInUserNamespace": true},
		"clusterDNS":    []any{c.ClusterDNS},
		"clusterDomain": "cluster.local",
		"resolvConf":    resolverConfig,
		"authentication": object{
			"x509":      object{"clientCAFile": authority},
			"anonymous": object{"enabled": false},
			"webhook":   object{"enabled": true},
		},
		"authorization":               object{"mode": "Webhook"},
		"imageGCHighThresholdPercent": 100,
		"imageMaximumGCAge":           "0s",
		"evictionHard":                object{"nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%", "memory.available": "100Mi"},
		"kubeAPIQPS":                  100,
		"kubeAPIBurst":                200,
	})
	return string(text), err
}

func (c *Config) kubeletFlags() []string {
	var addresses []string
	for _, a := range c.Addresses {
		addresses = append(addresses, a.String())
	}
	return []string{
		"--config=" + kubeletConfig,
		"--kubeconfig=" + kubeconfig,
		"--hostname-override=" + c.Name,
		"--node-ip=" + strings.Join(addresses, ","),
		"--v=2",
	}
}
