package apiserver

import (
	"context"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	controlplane "github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/live/takeover"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestOnANode is nfqproxy on nodes of a cluster with a real control plane.
func TestOnANode(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run("takeover from mode "+mode, func(t *testing.T) { testTakeover(t, s.newNode(t), mode) })
	}
	t.Run("kubeadm", func(t *testing.T) { testKubeadm(t, s.newNode(t)) })
	t.Run("events", func(t *testing.T) { testEvents(t, s.newNode(t)) })
}

// kubeProxy starts the real one and waits until its rules are there.
func (n *siteNode) kubeProxy(mode string) *e2etest.Daemon {
	n.Helper()
	cmd, err := controlplane.KubeProxyCommand(n.kubeconfig("kube-proxy"), n.name, mode, "--cluster-cidr=10.244.0.0/16")
	if err != nil {
		n.Fatal(err)
	}
	d := e2etest.StartDaemon(n, n.ns, cmd)
	n.await("kube-proxy", func() bool { status, _ := n.get("127.0.0.1:10256", "/healthz"); return status == http.StatusOK })
	// It is healthy before it has written rules. A connection that is too early would be lost for good: its
	// entry has no translation.
	for _, from := range []*netns.Namespace{n.ns, n.client} {
		n.await("the rules of kube-proxy, from the "+from.Name(), func() bool {
			c, err := n.connect(from, time.Second)
			if err == nil {
				_ = c.Close()
			}
			return err == nil
		})
	}
	return d
}

// get asks a server of the node.
func (n *siteNode) get(at, path string) (status int, err error) {
	response, err := e2etest.HTTPClient(n.ns).Get("http://" + at + path)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

// leftByKubeProxy says what is in the node's kernel of kube-proxy's, by other means than
// package takeover where there are any.
func (n *siteNode) leftByKubeProxy(mode string) bool {
	n.Helper()
	if mode == "nftables" {
		return slices.Contains(n.tables(), "kube-proxy")
	}
	saved := n.saved()
	return strings.Contains(saved, "KUBE-SERVICES") || strings.Contains(saved, "KUBE-SVC-")
}

// saved is the node's rules of iptables.
func (n *siteNode) saved() string {
	n.Helper()
	var out []byte
	if err := n.ns.Do(func() (err error) {
		out, err = exec.CommandContext(n.Context(), "iptables-save").Output()
		return err
	}); err != nil {
		n.Fatal(err)
	}
	return string(out)
}

// testTakeover switches a node from kube-proxy to nfqproxy and back, as README.md of
// deploy/kubernetes has it, with connections before, during and after.
func testTakeover(t *testing.T, n *siteNode, mode string) {
	netnstest.RequireTool(t, map[string]string{"nftables": "nft", "iptables": "iptables-save"}[mode])
	old := n.kubeProxy(mode)
	n.serves()
	if !n.leftByKubeProxy(mode) {
		t.Fatal("kube-proxy has no rules")
	}
	kept, err := n.connect(n.client, e2etest.Timeout)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	old.Stop(syscall.SIGKILL)

	// During.
	churned := make(chan int)
	ctx, enough := context.WithCancel(t.Context())
	defer enough()
	go func() {
		count := 0
		for ; ctx.Err() == nil; count++ {
			c, err := n.connect(n.client, e2etest.Timeout)
			if err != nil {
				t.Errorf("while nfqproxy takes over: %v", err)
				break
			}
			_ = c.Close()
		}
		churned <- count
	}()
	args := append(e2etest.MachineUnchanged(t), "--kubeconfig", n.kubeconfig("nfqproxy"), "--hostname-override", strings.ToUpper(n.name), "--cluster-cidr", "10.244.0.0/16", "--keep-rules-on-exit",
		"--takeover")
	d := e2etest.StartNfqproxy(n, n.ns, args...)
	for _, want := range []string{"takeover: will remove ", "takeover: removed kube-proxy's rules", "msg=serving node=" + n.name + " "} {
		n.await("the log to say "+want, func() bool { return strings.Contains(d.Log(), want) })
	}
	if n.leftByKubeProxy(mode) {
		t.Error("kube-proxy's rules are still there")
	}
	n.findsNothing()
	n.serves()
	enough()
	if <-churned == 0 {
		t.Error("there was no connection during the takeover")
	}
	if err := answers(kept); err != nil {
		t.Errorf("the connection of before: %v", err)
	}

	// What must not work while it serves.
	code, out, stderr := e2etest.Run(t, n.ns, "cleanup")
	if code != 2 || out != "" || !strings.HasPrefix(stderr, "nfqproxy: another nfqproxy") || !strings.HasSuffix(stderr, "stop it first\n") {
		t.Errorf("cleanup beside the daemon: exit code %d, %q, %q", code, out, stderr)
	}
	changing := e2etest.WriteFile(t, "config.conf", []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nconntrack: {tcpCloseWaitTimeout: 77s}\n"))
	code, _, stderr = e2etest.Run(t, n.ns, slices.Concat([]string{"run"}, args, []string{"--healthz-bind-address=", "--metrics-bind-address=", "--config", changing})...)
	if code != 2 || !strings.Contains(stderr, "another nfqproxy") {
		t.Errorf("a second daemon: exit code %d, %q", code, stderr)
	}
	if value, err := n.ns.Sysctl("net.netfilter.nf_conntrack_tcp_timeout_close_wait"); err != nil || value == "77" {
		t.Errorf("a second daemon's setting is in force: %s, error %v", value, err)
	}
	n.serves()
	if c := d.Complaints(); len(c) > 0 {
		t.Errorf("unexpected: %q", c)
	}

	// Back.
	d.Stop(syscall.SIGTERM)
	if got := n.tables(); !slices.Contains(got, "nfqproxy") {
		t.Errorf("with --keep-rules-on-exit only %v are left", got)
	}
	if code, out, stderr := e2etest.Run(t, n.ns, "cleanup", "--wait-for-kube-proxy=1s"); code != 2 || out != "" || !strings.Contains(stderr, "kube-proxy has not written its service rules within 1s: nothing was removed") {
		t.Errorf("cleanup without kube-proxy: exit code %d, %q, %q", code, out, stderr)
	}
	n.serves()
	again := n.kubeProxy(mode)
	// It is healthy before it has written rules. Without any, a flow would have an entry without a
	// translation, for good.
	n.await("kube-proxy's rules", func() bool {
		return n.leftByKubeProxy(mode) && (mode == "nftables" || strings.Contains(n.saved(), "KUBE-SEP-"))
	})
	if err := answers(kept); err != nil {
		t.Errorf("the connection of before, without a daemon: %v", err)
	}
	if c, err := n.connect(n.client, e2etest.Timeout); err != nil {
		t.Errorf("a new connection, without a daemon: %v", err)
	} else {
		_ = c.Close()
	}
	waiting := make(chan error)
	go func() {
		c, err := n.connect(n.client, e2etest.Timeout)
		if err == nil {
			err = c.Close()
		}
		waiting <- err
	}()
	cleanup := manifestFile[corev1.Pod](t, "../../../../deploy/kubernetes/cleanup/pod.yaml").Spec.Containers[0].Args
	for _, want := range []string{"removed nftables table ip nfqproxy\nremoved nftables table ip6 nfqproxy\n", "no rules of nfqproxy found\n"} {
		if code, out, stderr := e2etest.Run(t, n.ns, cleanup...); code != 0 || !strings.HasPrefix(out, want) || stderr != "" {
			t.Errorf("cleanup: exit code %d, %q, %q; want %q first", code, out, stderr, want)
		}
	}
	if slices.Contains(n.tables(), "nfqproxy") {
		t.Error("our rules are still there")
	}
	if err := <-waiting; err != nil {
		t.Errorf("a connection that waited for the cleanup: %v", err)
	}
	n.serves()
	if err := answers(kept); err != nil {
		t.Errorf("the connection of before, after all: %v", err)
	}
	again.Stop(syscall.SIGKILL)
}

// findsNothing sees that package takeover would remove nothing more.
func (n *siteNode) findsNothing() {
	n.Helper()
	if err := n.ns.Do(func() error {
		found, err := takeover.Find()
		if err == nil && (!found.Empty() || len(found.Notes()) > 0) {
			n.Errorf("left: %q, %q", found.Lines(), found.Notes())
		}
		return err
	}); err != nil {
		n.Fatal(err)
	}
}
