package main

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
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
	"github.com/nfqproxy/nfqproxy/deploy/netns"
)

// apiCluster is the lab of testdata/api.yaml with a real control plane in one of its
// hosts. Nodes, Pods and Services are what a test makes of them; EndpointSlices are
// the endpoint slice controller's.
type apiCluster struct {
	*cluster
	control *controlplane.Cluster
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
	netns.Require(t)
	controlplane.Require(t)
	file, err := lab.Load("testdata/api.yaml")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	c := &apiCluster{cluster: &cluster{t: t, keep: 4096}, made: make(map[string]int)}
	c.up(file.Spec, lab.Options{NoDaemons: true, Arguments: []string{
		"-v", "--kubeconfig", kubeconfig, "--detect-local-mode", "NodeCIDR", "--nodeport-addresses", "primary",
		// These are the machine's.
		"--conntrack-max-per-core=0", "--conntrack-min=0", "--oom-score-adj=0",
		// As where no lab says otherwise.
		"--flow-api=127.0.0.1:10253", "--flow-api-holds=false", "--flow-api-token-file=",
	}})
	c.control, err = controlplane.Start(t.Context(), controlplane.Config{
		Dir: t.TempDir(), Namespace: c.host("control"), Addresses: []netip.Addr{controlAddress},
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
	c.t.Helper()
	ctx, client := c.t.Context(), c.control.Client()
	account, role, binding := new(corev1.ServiceAccount), new(rbacv1.ClusterRole), new(rbacv1.ClusterRoleBinding)
	for name, object := range map[string]any{"serviceaccount": account, "clusterrole": role, "clusterrolebinding": binding} {
		if err := yaml.UnmarshalStrict([]byte(mustRead(c.t, "../../deploy/kubernetes/base/"+name+".yaml")), object); err != nil {
			c.t.Fatal(err)
		}
	}
	_, err1 := client.CoreV1().ServiceAccounts(account.Namespace).Create(ctx, account, metav1.CreateOptions{})
	_, err2 := client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
	_, err3 := client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
	if err := errors.Join(err1, err2, err3); err != nil {
		c.t.Fatal(err)
	}
}

// run is one subtest. The cluster's helpers fail the test that runs.
func (c *apiCluster) run(t *testing.T, name string, test func()) {
	t.Run(name, func(t *testing.T) {
		outer := c.t
		c.setT(t)
		defer c.setT(outer)
		test()
	})
}

func (c *apiCluster) setT(t *testing.T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = t
}

// makeNode makes the Node object of a lab node, without pod CIDRs.
func (c *apiCluster) makeNode(name, zone string) {
	c.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
	for i := range c.Spec().Nodes {
		if n := &c.Spec().Nodes[i]; n.Name == name {
			node.Status.Addresses = internalIPs(n.Addresses...)
		}
	}
	if _, err := c.control.Client().CoreV1().Nodes().Create(c.t.Context(), node, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
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
	c.t.Helper()
	_, err := c.control.Client().CoreV1().Nodes().Patch(c.t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	if err != nil {
		c.t.Fatal(err)
	}
}

// service makes a Service for the pods of an app: TCP port 80 and UDP port 53, in both
// address families.
func (c *apiCluster) service(name, app string, options ...func(*corev1.ServiceSpec)) *corev1.Service {
	c.t.Helper()
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
	made, err := c.control.Client().CoreV1().Services("default").Create(c.t.Context(), s, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return made
}

func withNodePort(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort }

func (c *apiCluster) deleteService(name string) {
	c.t.Helper()
	if err := c.control.Client().CoreV1().Services("default").Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// longPatience is for what the API server, a controller and backing off clients have a
// part in. Only a failing test waits that long.
const longPatience = 3 * time.Minute

// await tries until there is no error.
func (c *apiCluster) await(what string, try func(context.Context) error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), longPatience)
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
			c.t.Fatalf("waited %s for %s: %v", longPatience, what, err)
		case <-tick.C:
		}
	}
}

// must ends the test at the first error.
func (c *cluster) must(errs ...error) {
	c.t.Helper()
	if err := errors.Join(errs...); err != nil {
		c.t.Fatal(err)
	}
}

// addressOf is a lab host's address of a family.
func (c *cluster) addressOf(host string, f decision.Family) netip.Addr {
	c.t.Helper()
	s := c.Spec()
	var addresses []netip.Addr
	for _, n := range s.Nodes {
		if n.Name == host {
			addresses = n.Addresses
		}
	}
	for _, p := range s.Pods {
		if p.Name == host {
			addresses = p.Addresses
		}
	}
	for _, o := range s.Clients {
		if o.Name == host {
			addresses = o.Addresses
		}
	}
	for _, a := range addresses {
		if decision.FamilyOf(a) == f {
			return a
		}
	}
	c.t.Fatalf("%s has no %s address", host, f)
	return netip.Addr{}
}

func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// awaitWritable waits until the API server can write again.
func (c *apiCluster) awaitWritable() {
	c.t.Helper()
	c.await("the API server to write", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := c.control.Client().CoreV1().Nodes().Patch(ctx, "node-a", types.StrategicMergePatchType,
			[]byte(`{"metadata":{"annotations":{"written":"`+time.Now().String()+`"}}}`), metav1.PatchOptions{})
		return err
	})
}
