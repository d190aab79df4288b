package lab

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestKubeProxyPath: where the program comes from, and what is missing.
func TestKubeProxyPath(t *testing.T) {
	dir := t.TempDir()
	write := func(parts ...string) string {
		t.Helper()
		path := filepath.Join(append([]string{dir}, parts...)...)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	expect := func(given, want string) {
		t.Helper()
		if got, err := kubeProxyPath(given); got != want || err != nil {
			t.Errorf("given %q: %q, %v, want %q", given, got, err, want)
		}
	}
	t.Chdir(dir)
	t.Setenv("PATH", filepath.Join(dir, "path"))
	t.Setenv(KubeProxyVariable, "")
	if _, err := kubeProxyPath(""); err == nil || err.Error() != `kube-proxy not found: give its path with --kube-proxy or NFQPROXY_KUBE_PROXY, or build it with "make peers"` {
		t.Error(err)
	}
	expect("", write("path", "kube-proxy"))
	expect("", write("bench", "peers", "bin", "kube-proxy"))
	own := write("own")
	t.Setenv(KubeProxyVariable, own)
	expect("", own)
	expect("path/kube-proxy", filepath.Join(dir, "path", "kube-proxy"))
	if _, err := kubeProxyPath(filepath.Join(dir, "none")); err == nil || !strings.HasPrefix(err.Error(), "kube-proxy not found: ") {
		t.Error(err)
	}
}

func TestKubeProxyArguments(t *testing.T) {
	s := &Spec{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00::/56")}, Proxy: Proxy{MasqueradeAll: true, NodePortAddresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}
	got := strings.Join(kubeProxyArguments(s, "node-a", "nftables", "/a"), " ")
	for _, want := range []string{"--kubeconfig=/a ", "--hostname-override=node-a ", "--proxy-mode=nftables ", "--cluster-cidr=10.244.0.0/16,fd00::/56 ", "--nodeport-addresses=192.0.2.0/24 ", "--masquerade-all"} {
		if !strings.Contains(got+" ", want) {
			t.Errorf("%s has no %s", got, want)
		}
	}
}

// TestNoKubeProxy: a lab whose node has a program that is not there does not start.
func TestNoKubeProxy(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	_, err := upWith(t, "kind", "", func(s *Spec, o *Options) {
		s.Nodes[1].Proxy, s.Nodes[1].KubeProxyMode, o.KubeProxy = "kube-proxy", "nftables", "/no/such/program"
	})
	if err == nil || !strings.Contains(err.Error(), "node kind-worker has proxy: kube-proxy: kube-proxy not found: ") {
		t.Error(err)
	}
}
