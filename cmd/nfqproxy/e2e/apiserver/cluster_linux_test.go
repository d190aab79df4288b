package apiserver

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	controlplane "github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// apiCluster is the lab of testdata/api.yaml with a real control plane in one of its
// hosts. Nodes, Pods and Services are what a test makes of them; EndpointSlices are
// the endpoint slice controller's.
type apiCluster struct {
	*e2etest.Cluster
	control *controlplane.Cluster
	token   string         // the file of the daemons' token
	made    map[string]int // pods so far, by node
	ports   uint16         // source ports of attempts used so far
}

const v4, v6 = decision.IPv4, decision.IPv6

var bothFamilies = []decision.Family{v4, v6}

// controlAddress is where nodes reach the API server: the lab host "control".
var controlAddress = netip.MustParseAddr("172.21.0.200")

// newAPICluster starts all but the daemons, and makes no Node. The daemons will act as
// the service account of the manifests, with no right but its.
func newAPICluster(t *testing.T) *apiCluster {
	clustertest.Require(t)
	file, err := lab.Load("testdata/api.yaml")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	token := e2etest.WriteFile(t, "token", []byte("0123456789abcdef\n"))
	c := &apiCluster{token: token, made: make(map[string]int)}
	c.Cluster = e2etest.Up(t, file, lab.Options{NoDaemons: true, NoObjects: true, Arguments: append(e2etest.MachineUnchanged(t),
		"-v", "--kubeconfig", kubeconfig, "--state-dir", t.TempDir(), "--detect-local-mode", "NodeCIDR", "--nodeport-addresses", "primary",
		// As on a cluster, for kubectl port-forward.
		"--flow-api=127.0.0.1:10253", "--flow-api-holds=false", "--flow-api-token-file="+token,
	)})
	c.KeepRecords(4096)
	c.control, err = controlplane.Start(t.Context(), controlplane.Config{
		Dir: t.TempDir(), Namespace: c.Host("control"), Addresses: []netip.Addr{controlAddress},
		Controllers: []string{"endpointslice-controller"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.control.Close(); err != nil {
			t.Errorf("ending the control plane: %v", err)
		}
	})
	c.makeAccount()
	path, err := c.control.KubeconfigFor(t.Context(), "kube-system", "nfqproxy", controlAddress)
	if err := errors.Join(err, os.Rename(path, kubeconfig)); err != nil {
		t.Fatal(err)
	}
	return c
}

// makeAccount makes the service account and its role from the manifests.
func (c *apiCluster) makeAccount() {
	c.T.Helper()
	ctx, client := c.T.Context(), c.control.Client()
	account, role, binding := new(corev1.ServiceAccount), new(rbacv1.ClusterRole), new(rbacv1.ClusterRoleBinding)
	for name, object := range map[string]any{"serviceaccount": account, "clusterrole": role, "clusterrolebinding": binding} {
		if err := yaml.UnmarshalStrict([]byte(e2etest.ReadFile(c.T, "../../../../deploy/kubernetes/base/"+name+".yaml")), object); err != nil {
			c.T.Fatal(err)
		}
	}
	_, err1 := client.CoreV1().ServiceAccounts(account.Namespace).Create(ctx, account, metav1.CreateOptions{})
	_, err2 := client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
	_, err3 := client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
	if err := errors.Join(err1, err2, err3); err != nil {
		c.T.Fatal(err)
	}
}

// run is one subtest. The cluster's helpers fail the test that runs.
func (c *apiCluster) run(t *testing.T, name string, test func()) {
	t.Run(name, func(t *testing.T) {
		outer := c.T
		c.Use(t)
		defer c.Use(outer)
		test()
	})
}

// makeNode makes the Node object of a lab node, without pod CIDRs.
func (c *apiCluster) makeNode(name, zone string) {
	c.T.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
	for i := range c.Spec().Nodes {
		if n := &c.Spec().Nodes[i]; n.Name == name {
			node.Status.Addresses = internalIPs(n.Addresses...)
		}
	}
	if _, err := c.control.Client().CoreV1().Nodes().Create(c.T.Context(), node, metav1.CreateOptions{}); err != nil {
		c.T.Fatal(err)
	}
}

func internalIPs(addresses ...netip.Addr) []corev1.NodeAddress {
	var list []corev1.NodeAddress
	for _, a := range addresses {
		list = append(list, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	return list
}

// patchNode changes a Node, or its status, by a strategic merge patch.
func (c *apiCluster) patchNode(name, patch string, subresources ...string) {
	c.T.Helper()
	_, err := c.control.Client().CoreV1().Nodes().Patch(c.T.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	if err != nil {
		c.T.Fatal(err)
	}
}

// service makes a Service for the pods of an app: TCP port 80 and UDP port 53, in both
// address families.
func (c *apiCluster) service(name, app string, options ...func(*corev1.ServiceSpec)) *corev1.Service {
	c.T.Helper()
	dual := corev1.IPFamilyPolicyRequireDualStack
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": app}, IPFamilyPolicy: &dual, Ports: []corev1.ServicePort{
			{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: targetPort(tcpPort)},
			{Name: "echo", Port: 53, Protocol: corev1.ProtocolUDP, TargetPort: targetPort(udpPort)},
		}},
	}
	for _, o := range options {
		o(&s.Spec)
	}
	made, err := c.control.Client().CoreV1().Services("default").Create(c.T.Context(), s, metav1.CreateOptions{})
	if err != nil {
		c.T.Fatal(err)
	}
	return made
}

func withNodePort(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort }

func (c *apiCluster) deleteService(name string) {
	c.T.Helper()
	c.Must(c.control.Client().CoreV1().Services("default").Delete(c.T.Context(), name, metav1.DeleteOptions{}))
}

// longTimeout is for what the API server, a controller and backing off clients have a
// part in. Only a failing test waits that long.
const longTimeout = 3 * time.Minute

// await tries until there is no error.
func (c *apiCluster) await(what string, try func(context.Context) error) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.T.Context(), longTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			c.T.Fatalf("waited %s for %s: %v", longTimeout, what, err)
		case <-tick.C:
		}
	}
}

func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// awaitWritable waits until the API server can write again.
func (c *apiCluster) awaitWritable() {
	c.T.Helper()
	c.await("the API server to write", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := c.control.Client().CoreV1().Nodes().Patch(ctx, "node-a", types.StrategicMergePatchType,
			[]byte(`{"metadata":{"annotations":{"written":"`+time.Now().String()+`"}}}`), metav1.PatchOptions{})
		return err
	})
}
