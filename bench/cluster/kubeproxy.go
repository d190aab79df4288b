package cluster

import "os/exec"

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
