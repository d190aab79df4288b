package apiserver

import (
	"bytes"
	"fmt"
	"os"
)

// DaemonFlags are those of a nfqproxyd with the objects of a [Server]. Such a daemon serves for as long as it runs: it keeps
// nothing for a later one, and it leaves the machine's settings unchanged. All Pods and Nodes are watched, since there are few
// of them, and a Node that is missing never comes.
func DaemonFlags(kubeconfig string) []string {
	return []string{"--kubeconfig=" + kubeconfig, "--config=" + configOf(kubeconfig), "--pod-names", "--all-nodes", "--wait-for-node=false", "--keep-rules-on-exit=false", "--own-tables=false", "--state-dir="}
}

// configOf is the configuration file beside a kubeconfig.
func configOf(kubeconfig string) string { return kubeconfig + ".config" }

// WriteConfig writes a configuration of nfqproxyd that leaves the machine's settings unchanged: the limits of connection
// tracking, and the priority of the process when memory runs out.
func WriteConfig(path string) error {
	score, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return err
	}
	text := fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
oomScoreAdj: %s
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, bytes.TrimSpace(score))
	return os.WriteFile(path, []byte(text), 0o600)
}
