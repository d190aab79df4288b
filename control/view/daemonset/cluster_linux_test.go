package daemonset

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/control/live/apiserver"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// testTimeout is how long a test waits for what should come at once.
const testTimeout = time.Minute

const manifests = "../../../deploy/kubernetes/base/"

// person is a user of the cluster without permissions but those that a test gives.
const person = "jane"

// world is a real API server with the manifests' objects, and nodes with the part of a kubelet that forwards
// ports. All are in the network namespace of the test.
type world struct {
	*testing.T
	*cluster.Cluster
	set     *appsv1.DaemonSet
	daemons apiserver.Client // with the daemons' permissions
	port    int              // the last one used
}

func newWorld(t *testing.T) *world {
	netnstest.Require(t)
	clustertest.Require(t)
	netnstest.RequireTool(t, "ip")
	forward := clustertest.RequireProgram(t, cluster.PortForward)
	c, err := cluster.Start(t.Context(), cluster.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	for _, name := range []string{"https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"} {
		t.Setenv(name, "http://192.0.2.9:1") // the API server is at a loopback address
	}
	w := &world{T: t, Cluster: c, set: read[appsv1.DaemonSet](t, "daemonset"), port: 20000}
	w.makeObjects()
	for i := range 4 {
		address := fmt.Sprintf("127.0.0.%d", 2+i)
		cmd := exec.Command(forward, address+":10250")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		w.await("the kubelet's part", func() error {
			conn, err := net.Dial("tcp", address+":10250")
			if err == nil {
				err = conn.Close()
			}
			return err
		})
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%c", 'a'+i)}, Status: corev1.NodeStatus{
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
		}}
		if _, err := c.Client().CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func read[T any](t *testing.T, name string) *T {
	t.Helper()
	text, err := os.ReadFile(manifests + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	object := new(T)
	if err := yaml.UnmarshalStrict(text, object); err != nil {
		t.Fatal(err)
	}
	return object
}

// makeObjects makes those of the manifests.
func (w *world) makeObjects() {
	ctx, options, client := w.Context(), metav1.CreateOptions{}, w.Client()
	accounts := client.CoreV1().ServiceAccounts("kube-system")
	_, err1 := accounts.Create(ctx, read[corev1.ServiceAccount](w.T, "serviceaccount"), options)
	_, err2 := accounts.Create(ctx, read[corev1.ServiceAccount](w.T, "reader-serviceaccount"), options)
	_, err3 := client.RbacV1().ClusterRoles().Create(ctx, read[rbacv1.ClusterRole](w.T, "clusterrole"), options)
	_, err4 := client.RbacV1().ClusterRoleBindings().Create(ctx, read[rbacv1.ClusterRoleBinding](w.T, "clusterrolebinding"), options)
	_, err5 := client.AppsV1().DaemonSets("kube-system").Create(ctx, w.set, options)
	kubeconfig, err6 := w.KubeconfigFor(ctx, "kube-system", "nfqproxy", netip.Addr{})
	config, err7 := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7); err != nil {
		w.Fatal(err)
	}
	var err error
	if w.daemons, err = apiserver.NewClient(config); err != nil {
		w.Fatal(err)
	}
}

func (w *world) await(what string, try func() error) {
	w.Helper()
	end := time.Now().Add(testTimeout)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			w.Fatalf("waited %s for %s: %v", testTimeout, what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// daemon is a pod of the DaemonSet, and a server of the flow API that is its daemon's.
type daemon struct {
	w    *world
	node string
	pod  *corev1.Pod
	fake *observetest.Fake
	stop func()
}

// daemon makes one that serves at a loopback address.
func (w *world) daemon(node string) *daemon {
	w.Helper()
	return w.daemonAt(node, "127.0.0.1", flowapi.Config{})
}

// daemonAt makes one at another address. With TLS if that is not a loopback one.
func (w *world) daemonAt(node, host string, c flowapi.Config, arguments ...string) *daemon {
	w.Helper()
	w.port++
	at := net.JoinHostPort(host, fmt.Sprint(w.port))
	arguments = append([]string{"run", "--flow-api=unix:/run/x," + at, "--flow-api-service-account", "kube-system/nfqproxy-reader"}, arguments...)
	address := flowapi.Address{Address: at, HasToken: true}
	if host != "127.0.0.1" {
		address.CertFile, address.KeyFile = w.certificate()
		arguments = append(arguments, "--flow-api-tls-cert=cert", "--flow-api-tls-key=key")
	}
	d := &daemon{w: w, node: node, fake: observetest.New(node)}
	d.fake.StatusAnswer = observetest.Status()
	d.fake.StatusAnswer.Node = node
	c.Observer = d.fake
	if c.Reviewer == nil && c.Token == "" {
		c.Reviewer = &apiserver.Tokens{Client: w.daemons, Account: types.NamespacedName{Namespace: "kube-system", Name: "nfqproxy-reader"}}
	}
	l, err := flowapi.Listen(address)
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.Context())
	var serving sync.WaitGroup
	serving.Go(func() { _ = flowapi.New(c).Serve(ctx, l) })
	d.stop = func() { cancel(); serving.Wait() }
	w.Cleanup(d.stop)
	d.pod = w.makePod(node, corev1.PodRunning, arguments...)
	return d
}

// makePod makes a pod of the DaemonSet.
func (w *world) makePod(node string, phase corev1.PodPhase, arguments ...string) *corev1.Pod {
	w.Helper()
	pod := &corev1.Pod{ObjectMeta: *w.set.Spec.Template.ObjectMeta.DeepCopy(), Spec: *w.set.Spec.Template.Spec.DeepCopy()}
	pod.GenerateName, pod.Spec.NodeName, pod.Spec.Containers[0].Args = "nfqproxy-", node, arguments
	pods := w.Client().CoreV1().Pods("kube-system")
	pod, err := pods.Create(w.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = pods.Delete(context.Background(), pod.Name, *metav1.NewDeleteOptions(0)) })
	pod.Status.Phase = phase
	pod.Status.PodIP, pod.Status.HostIP = "192.0.2.1", "192.0.2.1"
	pod.Status.PodIPs, pod.Status.HostIPs = []corev1.PodIP{{IP: "192.0.2.1"}}, []corev1.HostIP{{IP: "192.0.2.1"}}
	if pod, err = pods.UpdateStatus(w.Context(), pod, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
	return pod
}

// delete ends the pod and its daemon.
func (d *daemon) delete() {
	d.w.Helper()
	d.stop()
	if err := d.w.Client().CoreV1().Pods("kube-system").Delete(d.w.Context(), d.pod.Name, *metav1.NewDeleteOptions(0)); err != nil {
		d.w.Fatal(err)
	}
}

func (w *world) certificate() (certFile, keyFile string) {
	certificate, key, err := cert.GenerateSelfSignedCertKey("nobody.example", nil, nil)
	dir := w.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	if err := errors.Join(err, os.WriteFile(certFile, certificate, 0o600), os.WriteFile(keyFile, key, 0o600)); err != nil {
		w.Fatal(err)
	}
	return certFile, keyFile
}

// allow makes the roles of person: in the DaemonSet's namespace. It returns when the API server knows them.
func (w *world) allow(rules ...rbacv1.PolicyRule) {
	w.Helper()
	ctx, client := w.Context(), w.Client().RbacV1()
	_ = client.Roles("kube-system").Delete(ctx, person, metav1.DeleteOptions{})
	_ = client.RoleBindings("kube-system").Delete(ctx, person, metav1.DeleteOptions{})
	_, err1 := client.Roles("kube-system").Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: person}, Rules: rules}, metav1.CreateOptions{})
	_, err2 := client.RoleBindings("kube-system").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: person},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: person},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: person}},
	}, metav1.CreateOptions{})
	if err := errors.Join(err1, err2); err != nil {
		w.Fatal(err)
	}
	w.awaitRights(rules)
}

// asPerson is the connection of a user without other permissions.
func (w *world) asPerson() *rest.Config {
	c := w.RESTConfig()
	c.Impersonate.UserName = person
	return c
}

// withoutWebSocket is the connection through a proxy that takes no WebSocket, as some are.
func (w *world) withoutWebSocket(c *rest.Config) (*rest.Config, *counts) {
	to, err := url.Parse(w.RESTConfig().Host)
	if err != nil {
		w.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(w.RESTConfig().CAData)
	n := new(counts)
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}},
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch strings.ToLower(r.Header.Get("Upgrade")) {
		case "websocket":
			n.websocket.Add(1)
			http.Error(rw, "no WebSocket here", http.StatusBadRequest)
			return
		case "":
		default:
			n.spdy.Add(1)
		}
		proxy.ServeHTTP(rw, r)
	}))
	server.StartTLS()
	w.Cleanup(server.Close)
	c = rest.CopyConfig(c)
	c.Host = server.URL
	c.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return c, n
}

func without(rules []rbacv1.PolicyRule, rule int, verb string) []rbacv1.PolicyRule {
	less := slices.Clone(rules)
	less[rule] = *rules[rule].DeepCopy()
	less[rule].Verbs = slices.DeleteFunc(less[rule].Verbs, func(v string) bool { return v == verb })
	return slices.DeleteFunc(less, func(r rbacv1.PolicyRule) bool { return len(r.Verbs) == 0 })
}

// addAddress adds the address of the pods, which a pods/proxy request may lead to.
func (w *world) addAddress() {
	if err := exec.Command("ip", "address", "replace", "192.0.2.1/32", "dev", "lo").Run(); err != nil {
		w.Fatal(err)
	}
}
