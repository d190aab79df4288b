package kubechains_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

var update = flag.Bool("kubeproxy.update", false, "write testdata/kube-proxy-1.36.3 anew, as the real kube-proxy has it")

// controlAddress is where nodes reach the API server.
var controlAddress = netip.MustParseAddr("172.20.0.200")

// TestRealKubeProxy has the real kube-proxy write its rules into the kernel, configured in
// each of the ways there are, and compares them with those rendered. The kubelet's
// KUBE-FIREWALL is there before it, as on a node.
func TestRealKubeProxy(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	clustertest.Require(t)
	for _, tool := range []string{"iptables", "ip6tables", "iptables-save", "ip6tables-save"} {
		netnstest.RequireTool(t, tool)
	}
	r := newReal(t)
	for i, c := range configurations {
		// TestRecordedKubeProxy compares all of them with what kube-proxy wrote once.
		if !netnstest.All() && !*update && i%4 != 0 {
			continue
		}
		t.Run(c.name, func(t *testing.T) { r.compare(t, &c) })
	}
	t.Run("mode nftables", func(t *testing.T) {
		netnstest.RequireTool(t, "nft")
		r.compareNFTables(t)
	})
}

// real is a control plane that has the objects, and the network where nodes reach it.
type real struct {
	control    *netns.Namespace
	client     kubernetes.Interface
	kubeconfig string
	nodes      int // so far
}

func newReal(t *testing.T) *real {
	ctx := t.Context()
	r := &real{}
	var err error
	if r.control, err = netns.New("control"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.control.Close() })
	if err := errors.Join(r.control.AddBridge("br0"), r.control.AddAddress("br0", netip.PrefixFrom(controlAddress, 16))); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(ctx, cluster.Config{Dir: t.TempDir(), Namespace: r.control, Addresses: []netip.Addr{controlAddress}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	client := c.Client()
	r.client = client
	r.create(t, &recorded(t).Objects)
	// kube-proxy leaves the service "kubernetes" to another proxy: its endpoint's port is
	// another one each time.
	foreign := []byte(`{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":"none"}}}`)
	if _, err := client.CoreV1().Services("default").Patch(ctx, "kubernetes", types.MergePatchType, foreign, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err1 := client.CoreV1().ServiceAccounts("kube-system").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"}}, metav1.CreateOptions{})
	_, err2 := client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "kube-system", Name: "kube-proxy"}},
	}, metav1.CreateOptions{})
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if r.kubeconfig, err = c.KubeconfigFor(ctx, "kube-system", "kube-proxy", controlAddress); err != nil {
		t.Fatal(err)
	}
	return r
}

// create creates the objects.
func (r *real) create(t *testing.T, objects *kube.Objects) {
	t.Helper()
	ctx := t.Context()
	for _, o := range objects.Services {
		made, err := r.client.CoreV1().Services(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		made.Status = o.Status
		if _, err := r.client.CoreV1().Services(o.Namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range objects.EndpointSlices {
		if _, err := r.client.DiscoveryV1().EndpointSlices(o.Namespace).Create(ctx, o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range objects.Nodes {
		if _, err := r.client.CoreV1().Nodes().Create(ctx, o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// node is a network namespace on its way to the API server, with what a kubelet has done.
func (r *real) node(t *testing.T) *netns.Namespace {
	t.Helper()
	n, err := netns.New("node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	r.nodes++
	link := fmt.Sprint("node", r.nodes)
	for _, err := range []error{
		r.control.AddVeth(link, n, "eth0"), r.control.SetBridge(link, "br0"),
		n.AddAddress("eth0", netip.MustParsePrefix("172.20.0.2/16")), n.AddAddress("eth0", netip.MustParsePrefix("fd00:172:20::2/64")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range []string{"-N KUBE-FIREWALL", "-I OUTPUT -j KUBE-FIREWALL", "-I INPUT -j KUBE-FIREWALL"} {
		if _, err := n.Run("", "iptables", strings.Fields(args)...); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// kubeProxy runs kube-proxy on a node until the test ends.
func (r *real) kubeProxy(t *testing.T, mode string, flags ...string) *netns.Namespace {
	t.Helper()
	n := r.node(t)
	cmd, err := cluster.KubeProxyCommand(r.kubeconfig, "node-a", mode, flags...)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("kube-proxy's log:\n%s", &log)
		}
	})
	return n
}

// compare runs kube-proxy and waits until its rules are those rendered.
func (r *real) compare(t *testing.T, c *configuration) {
	n := r.kubeProxy(t, "iptables", c.flags...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		text := ""
		for _, save := range []string{"iptables-save", "ip6tables-save"} {
			saved, err := n.Run("", save)
			if err != nil {
				t.Fatal(err)
			}
			text += asRecorded(saved)
		}
		// Not every kernel has nfacct; the one that rules are recorded on has.
		of := *c
		of.kernel.NFAcct = *update || strings.Contains(text, "--nfacct-name")
		problems := differences(text, of.rendered(t))
		// The rules of one family may be there before those of the other.
		if len(problems) == 0 || ctx.Err() != nil {
			for _, p := range problems {
				t.Error(p)
			}
			if *update {
				if err := os.WriteFile(c.file(), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(300 * time.Millisecond):
		}
	}
	value, err := n.Sysctl("net.ipv4.conf.all.route_localnet")
	want := map[bool]string{false: "0", true: "1"}[c.table(t).Node().LocalhostNodePorts]
	if err != nil || value != want {
		t.Errorf("route_localnet is %q, error %v; want %q", value, err, want)
	}
}
