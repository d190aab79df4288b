package apiserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	controlplane "github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// serverAddress is where nodes find the API server.
var serverAddress = netip.MustParseAddr("192.0.2.1")

// site is a real control plane with real nodes, each a namespace with two pods.
// nfqproxy has the account that deploy/kubernetes gives it.
type site struct {
	*controlplane.Cluster
	control *netns.Namespace
	nodes   int
}

func newSite(t *testing.T) *site {
	s := startSite(t)
	ctx, options, client := t.Context(), metav1.CreateOptions{}, s.Client()
	const base = "../../../../deploy/kubernetes/base/"
	_, err1 := client.CoreV1().ServiceAccounts("kube-system").Create(ctx, manifestFile[corev1.ServiceAccount](t, base+"serviceaccount.yaml"), options)
	_, err2 := client.RbacV1().ClusterRoles().Create(ctx, manifestFile[rbacv1.ClusterRole](t, base+"clusterrole.yaml"), options)
	_, err3 := client.RbacV1().ClusterRoleBindings().Create(ctx, manifestFile[rbacv1.ClusterRoleBinding](t, base+"clusterrolebinding.yaml"), options)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	return s
}

// startSite starts a control plane with kube-proxy's account, and nothing of nfqproxy.
func startSite(t *testing.T, controllers ...string) *site {
	netnstest.Require(t)
	clustertest.Require(t)
	s := &site{control: newNamespace(t, "control")}
	if err := s.control.AddAddress("lo", netip.PrefixFrom(serverAddress, 32)); err != nil {
		t.Fatal(err)
	}
	var err error
	s.Cluster, err = controlplane.Start(t.Context(), controlplane.Config{
		Dir: t.TempDir(), Namespace: s.control, Addresses: []netip.Addr{serverAddress}, Controllers: controllers,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if _, err := s.Account(t.Context(), "kube-proxy", "system:node-proxier", serverAddress); err != nil {
		t.Fatal(err)
	}
	return s
}

func manifestFile[T any](t *testing.T, path string) *T {
	object := new(T)
	if err := yaml.UnmarshalStrict([]byte(e2etest.ReadFile(t, path)), object); err != nil {
		t.Fatal(err)
	}
	return object
}

func newNamespace(t *testing.T, name string) *netns.Namespace {
	t.Helper()
	ns, err := netns.New(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// siteNode is a node for one test, with a pod that serves and one that asks.
type siteNode struct {
	*testing.T
	*site
	name       string
	ns, client *netns.Namespace
	server     netip.AddrPort // the serving pod's
	service    netip.AddrPort
}

func (s *site) newNode(t *testing.T) *siteNode {
	s.nodes++
	i := byte(s.nodes)
	n := &siteNode{T: t, site: s, name: fmt.Sprintf("node-%d", i), ns: newNamespace(t, "node"), client: newNamespace(t, "client")}
	pod := newNamespace(t, "server")
	up, gateway, own := fmt.Sprintf("node%d", i), netip.AddrFrom4([4]byte{198, 51, 100, 4*i + 1}), netip.AddrFrom4([4]byte{198, 51, 100, 4*i + 2})
	anywhere := netip.MustParsePrefix("0.0.0.0/0")
	errs := []error{
		s.control.AddVeth(up, n.ns, "eth0"),
		s.control.AddAddress(up, netip.PrefixFrom(gateway, 30)),
		n.ns.AddAddress("eth0", netip.PrefixFrom(own, 30)),
		n.ns.AddRoute(netns.Route{Destination: anywhere, Via: gateway, Link: "eth0"}),
		n.ns.SetSysctl("net.ipv4.ip_forward", "1"),
	}
	for j, p := range []*netns.Namespace{pod, n.client} {
		bridge, address := netip.AddrFrom4([4]byte{10, 244, i, byte(16*j + 1)}), netip.AddrFrom4([4]byte{10, 244, i, byte(16*j + 2)})
		errs = append(errs,
			n.ns.AddVeth(p.Name(), p, "eth0"), n.ns.AddAddress(p.Name(), netip.PrefixFrom(bridge, 28)),
			p.AddAddress("eth0", netip.PrefixFrom(address, 28)), p.AddRoute(netns.Route{Destination: anywhere, Via: bridge, Link: "eth0"}))
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	n.server = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, i, 2}), 8080)
	n.echo(pod)
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: own.String()}}}}
	if _, err := s.Client().CoreV1().Nodes().Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	web := n.expose(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web-" + n.name}})
	n.service = netip.AddrPortFrom(netip.MustParseAddr(web.Spec.ClusterIP), 80)
	return n
}

// expose makes a service of port 80 whose endpoint is the serving pod.
func (n *siteNode) expose(service *corev1.Service) *corev1.Service {
	n.Helper()
	protocol, port, name := corev1.ProtocolTCP, int32(n.server.Port()), "http"
	service.Spec.Ports = []corev1.ServicePort{{Name: name, Port: 80}}
	got, err := n.Client().CoreV1().Services("default").Create(n.Context(), service, metav1.CreateOptions{})
	if err != nil {
		n.Fatal(err)
	}
	if _, err := n.Client().DiscoveryV1().EndpointSlices("default").Create(n.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service.Name, Labels: map[string]string{discoveryv1.LabelServiceName: service.Name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{n.server.Addr().String()}, NodeName: &n.name}},
	}, metav1.CreateOptions{}); err != nil {
		n.Fatal(err)
	}
	return got
}

// echo has a pod send back what it is sent.
func (n *siteNode) echo(pod *netns.Namespace) {
	l, err := pod.Listen(n.Context(), netip.AddrPortFrom(netip.IPv4Unspecified(), n.server.Port()))
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
}

// connect connects to the service, from the node itself or from its client pod, and
// sees that the endpoint answers.
func (n *siteNode) connect(from *netns.Namespace, within time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(n.Context(), within)
	defer cancel()
	c, err := from.Dial(ctx, "tcp", e2etest.AnyPort, n.service)
	if err == nil {
		err = answers(c)
	}
	return c, err
}

// answers sees that a connection is alive.
func answers(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(e2etest.Timeout)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && line != "hello\n" {
		err = fmt.Errorf("the endpoint says %q", line)
	}
	return err
}

// serves fails the test if the service cannot be reached.
func (n *siteNode) serves() {
	n.Helper()
	for _, from := range []*netns.Namespace{n.ns, n.client} {
		c, err := n.connect(from, e2etest.Timeout)
		if err != nil {
			n.Errorf("from the %s: %v", from.Name(), err)
			continue
		}
		_ = c.Close()
	}
}

func (n *siteNode) kubeconfig(account string) string {
	n.Helper()
	path, err := n.KubeconfigFor(n.Context(), "kube-system", account, serverAddress)
	if err != nil {
		n.Fatal(err)
	}
	return path
}

func (n *siteNode) await(what string, is func() bool) {
	n.Helper()
	e2etest.Eventually(n, 2*e2etest.Timeout, what, is)
}

// tables are the nftables tables of the node.
func (n *siteNode) tables() (names []string) {
	n.Helper()
	if err := n.ns.Do(func() (err error) {
		names, err = e2etest.Tables()
		return err
	}); err != nil {
		n.Fatal(err)
	}
	return names
}
