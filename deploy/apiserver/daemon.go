package apiserver

import (
	"bytes"
	"os"
)

// DaemonFlags are those of a nfqproxyd with the objects of a [Server]. Such a daemon serves for as long as it runs: it keeps
// nothing for a later one. All Pods and Nodes are watched, since there are few of them, and a Node that is missing never comes.
func DaemonFlags(kubeconfig string) []string {
	return []string{"--kubeconfig=" + kubeconfig, "--pod-names", "--all-nodes", "--wait-for-node=false", "--keep-rules-on-exit=false", "--own-tables=false", "--state-dir="}
}

// MachineFlags leave the machine's settings unchanged: the limits of connection tracking, and the priority of the process when
// memory runs out.
func MachineFlags() []string {
	flags := []string{"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"}
	if own, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil {
		flags = append(flags, "--oom-score-adj="+string(bytes.TrimSpace(own)))
	}
	return flags
}
