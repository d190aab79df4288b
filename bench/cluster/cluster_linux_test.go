package cluster_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

var (
	controlAddress  = netip.MustParsePrefix("192.0.2.1/24")
	controlAddress6 = netip.MustParsePrefix("2001:db8::1/64")
	nodeAddress     = netip.MustParsePrefix("192.0.2.2/24")
	nodeAddress6    = netip.MustParsePrefix("2001:db8::2/64")
)

// fixture is one control plane for all of TestCluster, and a namespace beside its own.
type fixture struct {
	*cluster.Cluster
	node *netns.Namespace
}

func TestCluster(t *testing.T) {
	netnstest.Require(t)
	clustertest.Require(t)
	f := newFixture(t)
	type step struct {
		name string
		test func(*testing.T)
	}
	t.Run("undisturbed", func(t *testing.T) {
		for _, s := range []step{{"own objects", f.testOwnObjects}, {"endpoint slice", f.testEndpointSlice}, {"RBAC", f.testRBAC}, {"user", f.testUser}, {"kube-proxy", f.testKubeProxy}} {
			t.Run(s.name, func(t *testing.T) { t.Parallel(); s.test(t) })
		}
	})
	for _, s := range []step{
		{"API server stopped", f.testStop}, {"etcd killed", f.testEtcdKilled}, {"etcd frozen", f.testEtcdFrozen},
		{"compacted", f.testCompact}, {"exited unexpectedly", f.testUnasked},
	} {
		t.Run(s.name, s.test)
	}
}

func newFixture(t *testing.T) *fixture {
	control, node := newNamespace(t, "control"), newNamespace(t, "node")
	for _, err := range []error{
		control.AddVeth("eth0", node, "eth0"),
		control.AddAddress("eth0", controlAddress), control.AddAddress("eth0", controlAddress6),
		node.AddAddress("eth0", nodeAddress), node.AddAddress("eth0", nodeAddress6),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	c, err := cluster.Start(t.Context(), cluster.Config{
		Dir:         t.TempDir(),
		Namespace:   control,
		Addresses:   []netip.Addr{controlAddress.Addr(), controlAddress6.Addr()},
		Controllers: []string{"endpointslice-controller", "node-lifecycle-controller"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &fixture{c, node}
}

func newNamespace(t *testing.T, name string) *netns.Namespace {
	n, err := netns.New(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// testOwnObjects looks at the API server's own objects.
func (f *fixture) testOwnObjects(t *testing.T) {
	version, err := f.Client().Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if version.Major != "1" || !strings.HasPrefix(version.GitVersion, "v1."+version.Minor+".") {
		t.Errorf("version %+v, want that of a release", version)
	}
	service, err := f.Client().CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || service.Spec.ClusterIP != "10.96.0.1" {
		t.Errorf("service kubernetes: %v, %v", service, err)
	}
	await(t, "the endpoint of the service kubernetes", func(ctx context.Context) (bool, error) {
		slice, err := f.Client().DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return len(slice.Endpoints) == 1 && slice.Endpoints[0].Addresses[0] == controlAddress.Addr().String(), nil
	})
}

// testRBAC sends requests from another namespace, over both families, as a service account.
func (f *fixture) testRBAC(t *testing.T) {
	ctx := t.Context()
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list"}}},
	}
	if _, err := f.Client().RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.makeAccount(t, "reader", role.Name)
	for _, server := range []netip.Addr{controlAddress.Addr(), controlAddress6.Addr()} {
		client := f.clientAs(t, "reader", server)
		// The authorizer learns of roles by watching.
		await(t, "the right to list services", func(ctx context.Context) (bool, error) {
			_, err := client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
			return err == nil, err
		})
		if _, err := client.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("getting a service: %v, want 403", err)
		}
		if _, err := client.CoreV1().Secrets("").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("listing secrets: %v, want 403", err)
		}
	}
	if _, err := f.TokenFor(ctx, "kube-system", "missing"); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "kube-system/missing") {
		t.Errorf("token of no account: %v", err)
	}
}

// testUser sends requests with a certificate: the server takes the user and the groups from it.
func (f *fixture) testUser(t *testing.T) {
	for group, allowed := range map[string]bool{"system:masters": true, "guests": false} {
		path, err := f.UserKubeconfig("jane:"+group, []string{group}, controlAddress.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.clientFrom(t, path).CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
		if allowed && err != nil || !allowed && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `"jane:guests"`)) {
			t.Errorf("a user in group %s lists secrets: %v", group, err)
		}
	}
}

// makeAccount makes a service account in kube-system that has a role.
func (f *fixture) makeAccount(t *testing.T, account, role string) {
	t.Helper()
	_, err1 := f.Client().CoreV1().ServiceAccounts("kube-system").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
	_, err2 := f.Client().RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "kube-system", Name: account}},
	}, metav1.CreateOptions{})
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
}

// clientAs is a client in the node's namespace, as a service account.
func (f *fixture) clientAs(t *testing.T, account string, server netip.Addr) kubernetes.Interface {
	path, err := f.KubeconfigFor(t.Context(), "kube-system", account, server)
	if err != nil {
		t.Fatal(err)
	}
	return f.clientFrom(t, path)
}

// clientFrom is a client in the node's namespace, by the kubeconfig at a path.
func (f *fixture) clientFrom(t *testing.T, path string) kubernetes.Interface {
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return nil, err
		}
		return f.node.Dial(ctx, network, netip.AddrPort{}, to)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestStartFails(t *testing.T) {
	netnstest.Require(t)
	clustertest.Require(t)
	_, err := cluster.Start(t.Context(), cluster.Config{Dir: t.TempDir(), EtcdFlags: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "starting etcd: it ended") || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("%v, want the log's end", err)
	}
}

// TestHere runs a component in the process's own namespace and a directory of its own.
func TestHere(t *testing.T) {
	netnstest.Require(t)
	clustertest.Require(t)
	c, err := cluster.Prepare(cluster.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Etcd.Start(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Etcd.Start(t.Context()); err == nil {
		t.Error("started a second time")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(c.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory after Close: %v", err)
	}
	if err := c.Etcd.Freeze(); err == nil {
		t.Error("froze what does not run")
	}
}

// await repeats a check until it holds, and fails with the last error if it never does.
func await(t *testing.T, what string, check func(context.Context) (bool, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		yes, err := check(ctx)
		if yes {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waited for %s in vain: %v", what, err)
		case <-tick.C:
		}
	}
}
