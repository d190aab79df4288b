package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	controlplane "github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/viewapi"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

const base = "../../../../deploy/kubernetes/base/"

// viewed is a cluster of nodes with real daemons, as the DaemonSet starts them, and a person who may see them.
type viewed struct {
	*testing.T
	*site
	set        *appsv1.DaemonSet
	kubeconfig string // of the person
	nodes      []*viewedNode
}

// viewedNode is a node with a daemon, its pod, and the part of a kubelet that forwards ports.
type viewedNode struct {
	*siteNode
	daemon  *e2etest.Daemon
	kubelet *exec.Cmd
	pod     *corev1.Pod
	dir     string
	args    []string // of its daemon, besides those of the manifest
}

// TestClusterView: the commands show three nodes as one, by the permissions of the manifests' roles.
func TestClusterView(t *testing.T) {
	t.Parallel()
	forward := clustertest.RequireProgram(t, controlplane.PortForward)
	v := &viewed{T: t, site: newSite(t), set: manifestFile[appsv1.DaemonSet](t, base+"daemonset.yaml")}
	v.makeReader()
	v.addNode(forward)
	for range 2 {
		v.addNode(forward, "--flow-api-holds")
	}
	for _, n := range v.nodes {
		n.serves()
	}
	v.lists()
	v.follows()
	v.page()
	v.answers()
	v.tops()
	v.steps()
	v.watches()
	v.unreachable()
	v.permissions()
}

// makeReader makes the objects of the manifests for people, and binds them as README.md does.
func (v *viewed) makeReader() {
	ctx, options, client := v.Context(), metav1.CreateOptions{}, v.Client()
	_, err1 := client.CoreV1().ServiceAccounts("kube-system").Create(ctx, manifestFile[corev1.ServiceAccount](v.T, base+"reader-serviceaccount.yaml"), options)
	_, err2 := client.RbacV1().ClusterRoles().Create(ctx, manifestFile[rbacv1.ClusterRole](v.T, base+"reader-clusterrole.yaml"), options)
	_, err3 := client.RbacV1().ClusterRoles().Create(ctx, manifestFile[rbacv1.ClusterRole](v.T, base+"doctor-clusterrole.yaml"), options)
	_, err4 := client.AppsV1().DaemonSets("kube-system").Create(ctx, v.set, options)
	_, err5 := client.CoreV1().ServiceAccounts("kube-system").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "jane"}}, options)
	jane := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-system", Name: "jane"}}
	role := func(name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
	}
	_, err6 := client.RbacV1().RoleBindings("kube-system").Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "nfqproxy-reader"}, RoleRef: role("nfqproxy-reader"), Subjects: jane}, options)
	_, err7 := client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "nfqproxy-doctor"}, RoleRef: role("nfqproxy-doctor"), Subjects: jane}, options)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7); err != nil {
		v.Fatal(err)
	}
	var err error
	if v.kubeconfig, err = v.KubeconfigFor(ctx, "kube-system", "jane", netip.Addr{}); err != nil {
		v.Fatal(err)
	}
}

func (v *viewed) addNode(forward string, args ...string) {
	v.Helper()
	n := &viewedNode{siteNode: v.newNode(v.T), args: args}
	dir, err := os.MkdirTemp("", "nfqproxy") // shorter than the test's: a socket's path is limited
	if err != nil {
		v.Fatal(err)
	}
	v.Cleanup(func() { _ = os.RemoveAll(dir) })
	n.dir = dir
	object, err := v.Client().CoreV1().Nodes().Get(v.Context(), n.name, metav1.GetOptions{})
	if err != nil {
		v.Fatal(err)
	}
	address := object.Status.Addresses[0].Address
	object.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	if _, err := v.Client().CoreV1().Nodes().UpdateStatus(v.Context(), object, metav1.UpdateOptions{}); err != nil {
		v.Fatal(err)
	}
	n.kubelet = exec.Command(forward, address+":10250")
	n.kubelet.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.ns.Start(n.kubelet); err != nil {
		v.Fatal(err)
	}
	v.Cleanup(func() { _ = n.kubelet.Process.Kill(); _ = n.kubelet.Wait() })
	n.await("the kubelet's part", func() bool {
		c, err := v.control.Dial(v.Context(), "tcp", e2etest.AnyPort, netip.AddrPortFrom(netip.MustParseAddr(address), 10250))
		return err == nil && c.Close() == nil
	})
	v.nodes = append(v.nodes, n)
	v.start(n)
}

// start starts a node's daemon, with the arguments of the manifest that are of the flow API, and its pod.
func (v *viewed) start(n *viewedNode) {
	v.Helper()
	arguments := v.set.Spec.Template.Spec.Containers[0].Args
	own := slices.DeleteFunc(slices.Clone(arguments), func(a string) bool { return !strings.HasPrefix(a, "--flow-api") })
	for i := range own {
		own[i] = strings.Replace(own[i], "/run/nfqproxy/", n.dir+"/", 1)
	}
	n.daemon = e2etest.StartDefault(v.T, n.ns, slices.Concat(e2etest.MachineUnchanged(v.T), []string{"--kubeconfig", n.siteNode.kubeconfig("nfqproxy"), "--hostname-override", n.name, "--cluster-cidr", "10.244.0.0/16"},
		own, n.args)...)
	pod := &corev1.Pod{ObjectMeta: *v.set.Spec.Template.ObjectMeta.DeepCopy(), Spec: *v.set.Spec.Template.Spec.DeepCopy()}
	pod.GenerateName, pod.Spec.NodeName = "nfqproxy-", n.name
	pods := v.Client().CoreV1().Pods("kube-system")
	pod, err := pods.Create(v.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		v.Fatal(err)
	}
	pod.Status.Phase = corev1.PodRunning
	if n.pod, err = pods.UpdateStatus(v.Context(), pod, metav1.UpdateOptions{}); err != nil {
		v.Fatal(err)
	}
}

// run runs a command as the person, beside the API server.
func (v *viewed) run(args ...string) (code int, stdout, stderr string) {
	v.Helper()
	return e2etest.Run(v.T, v.control, append(args, "--cluster", "--kubeconfig", v.kubeconfig)...)
}

// lists: a list has the flows of all nodes, in the order of the decisions.
func (v *viewed) lists() {
	code, stdout, stderr := v.run("flows", "--limit", "0", "-o", "jsonl")
	if code != 0 || stderr != "" {
		v.Fatalf("exit code %d, %s", code, stderr)
	}
	flows := make(map[string]int)
	var last time.Time
	for line := range strings.Lines(stdout) {
		var r flow.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Time == nil || r.Time.Before(last) {
			v.Fatalf("%s after %s: %v", line, last, err)
		}
		last = *r.Time
		if r.Service == "default/web-"+r.Node+":http" {
			flows[r.Node]++
		}
	}
	for _, n := range v.nodes {
		if flows[n.name] < 2 {
			v.Errorf("%d flows to the service of %s:\n%s", flows[n.name], n.name, stdout)
		}
	}
	if code, stdout, stderr := v.run("status"); code != 0 || strings.Count(stdout, ": healthy\n") != 3 {
		v.Errorf("status: exit code %d, %s %s", code, stdout, stderr)
	}
}

// follows: a stream of all nodes goes on with the daemon and the pod that replace others.
func (v *viewed) follows() {
	c := v.begin("flows", "--follow", "--event", "decided", "-o", "jsonl")
	awaitRecord := func(n *viewedNode) {
		v.Helper()
		seen := false
		for end := time.Now().Add(longTimeout); !seen; {
			if time.Now().After(end) {
				v.Fatalf("no record of %s", n.name)
			}
			n.serves()
			for quiet := time.After(100 * time.Millisecond); !seen; {
				select {
				case line := <-c.lines:
					var r flow.Record
					seen = json.Unmarshal([]byte(line), &r) == nil && r.Node == n.name && r.Service == "default/web-"+n.name+":http"
					continue
				case <-quiet:
				}
				break
			}
		}
	}
	for _, n := range v.nodes {
		awaitRecord(n)
	}
	n := v.nodes[1]
	n.daemon.Stop(syscall.SIGTERM)
	for line := ""; !strings.HasPrefix(line, "node "+n.name+" is unreachable"); {
		if line = c.line(); strings.HasPrefix(line, "node ") && !strings.HasPrefix(line, "node "+n.name) {
			v.Fatalf("%s; want %s", line, n.name)
		}
	}
	if err := v.Client().CoreV1().Pods("kube-system").Delete(v.Context(), n.pod.Name, *metav1.NewDeleteOptions(0)); err != nil {
		v.Fatal(err)
	}
	v.start(n)
	for _, n := range v.nodes {
		awaitRecord(n)
	}
}

var pageAddress = regexp.MustCompile(`(http://127\.0\.0\.1:\d+)/#token=(\S+)$`)

// page: the page and the flow API of all nodes are served on this machine, with a token.
func (v *viewed) page() {
	first := v.begin("web", "--no-open").line()
	m := pageAddress.FindStringSubmatch(first)
	if m == nil {
		v.Fatalf("web prints %q", first)
	}
	client := e2etest.HTTPClient(v.control)
	get := func(path, token string, answer any) int {
		v.Helper()
		r, err := http.NewRequestWithContext(v.Context(), http.MethodGet, m[1]+path, nil)
		if err != nil {
			v.Fatal(err)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := client.Do(r)
		if err != nil {
			v.Fatal(err)
		}
		defer response.Body.Close()
		if answer != nil {
			if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
				v.Errorf("%s: %v", path, err)
			}
		}
		return response.StatusCode
	}
	if code := get("/", "", nil); code != http.StatusOK {
		v.Errorf("the page: %d", code)
	}
	if code := get("/v1/topology", "", nil); code != http.StatusUnauthorized {
		v.Errorf("without the token: %d", code)
	}
	var topology observe.Topology
	get("/v1/topology", m[2], &topology)
	var names []string
	for _, n := range topology.Nodes {
		if n.Observed {
			names = append(names, n.Name)
		}
	}
	if !slices.Equal(names, []string{"node-1", "node-2", "node-3"}) || !topology.CanWhy {
		v.Errorf("the topology: %+v", topology)
	}
	var found viewapi.FindingList
	if code := get("/v1/findings", m[2], &found); code != http.StatusOK {
		v.Errorf("findings: %d %+v", code, found)
	}
}

// answers: why and doctor read the objects, and what the nodes observe.
func (v *viewed) answers() {
	n := v.nodes[0]
	code, stdout, stderr := v.run("why", "outside", fmt.Sprintf("web-%s.default:80", n.name))
	if code > 1 || stdout == "" {
		v.Errorf("why: exit code %d, %s %s", code, stdout, stderr)
	}
	if code, stdout, stderr := v.run("doctor"); code > 1 || stdout == "" || stderr != "" {
		v.Errorf("doctor: exit code %d, %s %s", code, stdout, stderr)
	}
}

// unreachable: a node that cannot be reached is named.
func (v *viewed) unreachable() {
	n := v.nodes[2]
	_ = n.kubelet.Process.Kill()
	_ = n.kubelet.Wait()
	code, stdout, stderr := v.run("status")
	if code != 1 || strings.Count(stdout, ": healthy\n") != 2 || !strings.Contains(stdout, "DaemonSet kube-system/nfqproxy: pod "+n.pod.Name+": ") {
		v.Errorf("exit code %d, %s %s", code, stdout, stderr)
	}
	code, stdout, stderr = v.run("flows", "-o", "name")
	if want := "node " + n.name + " is unreachable"; code != 0 || stdout == "" || !strings.Contains(stderr, want) {
		v.Errorf("exit code %d, %s %s; want %s", code, stdout, stderr, want)
	}
}

// permissions: without the roles, errors name what is missing.
func (v *viewed) permissions() {
	ctx, client := v.Context(), v.Client().RbacV1()
	if err := errors.Join(client.ClusterRoleBindings().Delete(ctx, "nfqproxy-doctor", metav1.DeleteOptions{}), client.RoleBindings("kube-system").Delete(ctx, "nfqproxy-reader", metav1.DeleteOptions{})); err != nil {
		v.Fatal(err)
	}
	e2etest.Eventually(v.T, longTimeout, "a refusal", func() bool {
		code, _, stderr := v.run("flows")
		return code == 2 && strings.HasPrefix(stderr, "nfqproxy: cannot get daemonsets in namespace kube-system: have the ClusterRole nfqproxy-reader bound to you there")
	})
}
