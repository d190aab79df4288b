package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// testKubeProxy has kube-proxy write the node's rules for the service "kubernetes".
func (f *fixture) testKubeProxy(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	ctx := t.Context()
	f.makeAccount(t, "kube-proxy", "system:node-proxier")
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "proxied"},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress.Addr().String()}}},
	}
	if _, err := f.Client().CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := f.KubeconfigFor(ctx, "kube-system", "kube-proxy", controlAddress.Addr())
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := cluster.KubeProxyCommand(kubeconfig, node.Name, "nftables")
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := f.node.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("kube-proxy's log:\n%s", &log)
		}
	})
	await(t, "kube-proxy's rules", func(ctx context.Context) (bool, error) {
		var out []byte
		err := f.node.Do(func() (err error) {
			out, err = exec.CommandContext(ctx, "nft", "list", "table", "ip", "kube-proxy").CombinedOutput()
			return err
		})
		want := []byte("10.96.0.1 . tcp . 443")
		return bytes.Contains(out, want), errors.Join(err, fmt.Errorf("nft printed: %s", out))
	})
}
