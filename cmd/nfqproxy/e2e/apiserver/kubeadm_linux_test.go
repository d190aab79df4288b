package apiserver

import (
	"errors"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
)

// testKubeadm starts the daemon as the DaemonSet of deploy/kubernetes does, with kube-proxy's
// configuration as kubeadm writes it. Nothing of it is changed: its directory is a mount
// of the test's own, and the kubeconfig in there leads to the test's API server.
func testKubeadm(t *testing.T, n *siteNode) {
	// The mounts are those of the test binary, see netns.Main.
	if err := unix.Mount("tmpfs", "/var/lib", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount("/var/lib", unix.MNT_DETACH) }()
	const dir = "/var/lib/kube-proxy/"
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Mkdir("/var/lib/nfqproxy", 0o755)); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]string{
		"config.conf": "../../../../control/live/proxyconfig/testdata/kubeadm.conf", "kubeconfig.conf": n.kubeconfig("nfqproxy"),
	} {
		if err := os.WriteFile(dir+name, []byte(e2etest.ReadFile(t, from)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	container := manifestFile[appsv1.DaemonSet](t, "../../../../deploy/kubernetes/base/daemonset.yaml").Spec.Template.Spec.Containers[0]
	args := container.Args
	if !slices.Equal(container.Command, []string{"/nfqproxyd"}) {
		t.Fatalf("the command is %q", container.Command)
	}
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "$(NODE_NAME)", n.name)
	}
	d := e2etest.StartNfqproxy(n, n.ns, args...)
	n.serves()
	for at, paths := range map[string][]string{
		"127.0.0.1:10249": {"/metrics", "/healthz"}, "198.51.100." + hostPart(n) + ":10256": {"/healthz", "/livez", "/readyz"},
	} {
		for _, path := range paths {
			n.await(at+path, func() bool { status, _ := n.get(at, path); return status == http.StatusOK })
		}
	}
	d.Stop(syscall.SIGTERM)

	// Whether there are these warnings is up to the machine: the first setting needs
	// CAP_SYS_RESOURCE, the second cannot be had in a network namespace, the third in no user
	// namespace.
	expected := map[string]bool{"cannot set oom_score_adj": true}
	if limit, err := strconv.Atoi(strings.TrimSpace(e2etest.ReadFile(t, "/proc/sys/net/netfilter/nf_conntrack_max"))); err != nil || limit < 128*1024 {
		expected["nf_conntrack_max"] = true
	}
	if _, err := os.ReadFile("/sys/module/nf_conntrack/parameters/hashsize"); err != nil {
		expected["hashsize"] = true
	}
	for _, line := range d.Complaints() {
		known := false
		for part := range expected {
			known = known || strings.Contains(line, part)
		}
		if !known {
			t.Errorf("unexpected: %s", line)
		}
	}
	if value, err := n.ns.Sysctl("net.ipv4.conf.all.route_localnet"); err != nil || value != "1" {
		t.Errorf("route_localnet is %q, error %v", value, err)
	}
	if value, err := n.ns.Sysctl("net.netfilter.nf_conntrack_tcp_timeout_established"); err != nil || value != "86400" {
		t.Errorf("nf_conntrack_tcp_timeout_established is %q, error %v", value, err)
	}
}
