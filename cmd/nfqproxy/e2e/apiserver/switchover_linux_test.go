package apiserver

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/switchover"
)

// switching is a site with kube-proxy as kubeadm installs it, on three nodes, and Nodes without a machine: one that is
// not ready, and one with another operating system.
type switching struct {
	*testing.T
	*site
	kubelets *kubelets
	nodes    []*siteNode
}

// TestSwitchover switches a cluster with the commands install and uninstall, there and back, while connections are
// made on each node. The pods are those that the DaemonSet controller makes, and their processes are real.
func TestSwitchover(t *testing.T) {
	t.Parallel()
	netnstest.RequireTool(t, "nft")
	c := &switching{T: t, site: startSite(t, "daemonset-controller")}
	for range 3 {
		c.nodes = append(c.nodes, c.newNode(t))
	}
	c.describe("node-1", `{"metadata":{"labels":{"kubernetes.io/os":"linux","node-role.kubernetes.io/control-plane":""}}}`, true)
	c.describe("node-2", `{"metadata":{"labels":{"kubernetes.io/os":"linux"}}}`, true)
	c.describe("node-3", `{"metadata":{"labels":{"kubernetes.io/os":"linux"}}}`, true)
	c.makeNode("windows")
	c.describe("windows", `{"metadata":{"labels":{"kubernetes.io/os":"windows"}}}`, true)

	c.fails("no DaemonSet kube-proxy in kube-system: there is no proxy that node labels could switch", "install")
	c.installKubeProxy("nftables")
	c.kubelets = startKubelets(t, c.site, "nftables", c.nodes)
	for _, n := range c.nodes {
		n.await("kube-proxy", func() bool { return n.leftByKubeProxy("nftables") })
		n.serves()
	}

	c.testRefusals()
	c.testDryRun("install", "install")
	load := c.newLoad()
	c.testWayBack()
	load.turn("the way back of one node")
	// Its pod of kube-proxy holds up rolling updates.
	c.makeNode("away")
	c.describe("away", `{"metadata":{"labels":{"kubernetes.io/os":"linux"}}}`, false)
	c.fails("--node away: it is not ready", "install", "--node", "away")
	c.testInterrupted("install", "node node-3 (2 of 3): to nfqproxy", "interrupted: ")
	load.turn("the installation")
	c.has(switchover.Nfqproxy)
	c.testAgain()
	c.testUpdate()
	load.turn("the update")
	c.testDryRun("uninstall", "dry run of uninstall")
	c.testInterrupted("uninstall", "node node-3 (2 of 3): to kube-proxy", "interrupted: ")
	load.turn("the removal")
	load.stop()
	c.testRemoved()
}

// makeNode makes a Node object without a machine.
func (c *switching) makeNode(name string) {
	c.Helper()
	if _, err := c.Client().CoreV1().Nodes().Create(c.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
}

// describe changes a Node, and its status: whether it is ready.
func (c *switching) describe(name, patch string, ready bool) {
	c.Helper()
	nodes, is := c.Client().CoreV1().Nodes(), corev1.ConditionTrue
	if !ready {
		is = corev1.ConditionUnknown
	}
	_, err1 := nodes.Patch(c.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	_, err2 := nodes.Patch(c.Context(), name, types.StrategicMergePatchType, fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, is), metav1.PatchOptions{}, "status")
	if err1 != nil || err2 != nil {
		c.Fatal(err1, err2)
	}
}

// installKubeProxy makes the DaemonSet and the ConfigMap.
func (c *switching) installKubeProxy(mode string) {
	c.Helper()
	labels := map[string]string{"k8s-app": "kube-proxy"}
	_, err1 := c.Client().CoreV1().ConfigMaps("kube-system").Create(c.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"},
		Data: map[string]string{
			"config.conf":     strings.Replace(e2etest.ReadFile(c, "../../../../control/live/proxyconfig/testdata/kubeadm.conf"), `mode: ""`, "mode: "+mode, 1),
			"kubeconfig.conf": "apiVersion: v1\nkind: Config\n", // kubelets write the test's own
		},
	}, metav1.CreateOptions{})
	_, err2 := c.Client().AppsV1().DaemonSets("kube-system").Create(c.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					HostNetwork: true, NodeSelector: map[string]string{"kubernetes.io/os": "linux"},
					Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					Containers:  []corev1.Container{{Name: "kube-proxy", Image: "kube-proxy:test"}},
				},
			},
		},
	}, metav1.CreateOptions{})
	if err1 != nil || err2 != nil {
		c.Fatal(err1, err2)
	}
}

// command is install or uninstall, where the control plane is.
func (c *switching) command(kubeconfig, command string, args ...string) *exec.Cmd {
	args = append([]string{command, "--cluster", "--kubeconfig", kubeconfig, "--timeout=2m"}, args...)
	if command == "install" {
		args = append([]string{"install", "--image=nfqproxy:test"}, args[1:]...)
	}
	return e2etest.Command(args...)
}

// run runs install or uninstall.
func (c *switching) run(command string, args ...string) (code int, stdout, stderr string) {
	c.Helper()
	return e2etest.RunCommand(c, c.control, c.command(c.Kubeconfig(), command, args...))
}

// succeeds runs a command that must succeed, and returns its output.
func (c *switching) succeeds(command string, args ...string) string {
	c.Helper()
	code, stdout, stderr := c.run(command, args...)
	if code != 0 || stderr != "" {
		c.Fatalf("%s %q: exit code %d, %s\n%s", command, args, code, stderr, stdout)
	}
	c.Logf("%s %q:\n%s", command, args, stdout)
	return stdout
}

// fails runs a command that must fail with an error, without a change.
func (c *switching) fails(want, command string, args ...string) {
	c.Helper()
	before := c.versions()
	code, stdout, stderr := c.run(command, args...)
	if code != 2 || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
		c.Errorf("%s %q: exit code %d, error %q; want %q\n%s", command, args, code, stderr, want, stdout)
	}
	c.unchanged(before, command+": "+want)
}

// versions are the resource versions of all objects that a switch changes.
func (c *switching) versions() map[string]string {
	c.Helper()
	versions := make(map[string]string)
	note := func(kind string, m metav1.Object) { versions[kind+" "+m.GetName()] = m.GetResourceVersion() }
	options, client, ctx := metav1.ListOptions{}, c.Client(), c.Context()
	nodes, err1 := client.CoreV1().Nodes().List(ctx, options)
	sets, err2 := client.AppsV1().DaemonSets("").List(ctx, options)
	pods, err3 := client.CoreV1().Pods("").List(ctx, options)
	maps, err4 := client.CoreV1().ConfigMaps("kube-system").List(ctx, options)
	accounts, err5 := client.CoreV1().ServiceAccounts("kube-system").List(ctx, options)
	roles, err6 := client.RbacV1().ClusterRoles().List(ctx, options)
	bindings, err7 := client.RbacV1().ClusterRoleBindings().List(ctx, options)
	for _, err := range []error{err1, err2, err3, err4, err5, err6, err7} {
		if err != nil {
			c.Fatal(err)
		}
	}
	for i := range nodes.Items {
		note("Node", &nodes.Items[i])
	}
	for i := range sets.Items {
		note("DaemonSet", &sets.Items[i])
	}
	for i := range pods.Items {
		note("Pod", &pods.Items[i])
	}
	for i := range maps.Items {
		note("ConfigMap", &maps.Items[i])
	}
	for i := range accounts.Items {
		note("ServiceAccount", &accounts.Items[i])
	}
	for i := range roles.Items {
		note("ClusterRole", &roles.Items[i])
	}
	for i := range bindings.Items {
		note("ClusterRoleBinding", &bindings.Items[i])
	}
	return versions
}

func (c *switching) unchanged(before map[string]string, what string) {
	c.Helper()
	after := c.versions()
	if maps.Equal(before, after) {
		return
	}
	for name := range after {
		if before[name] != after[name] {
			c.Errorf("%s: %s was changed", what, name)
		}
		delete(before, name)
	}
	for name := range before {
		c.Errorf("%s: %s was deleted", what, name)
	}
}

// testRefusals: what is not possible is one message, before the first change.
func (c *switching) testRefusals() {
	c.fails("--node node-9: no such node", "install", "--node", "node-9")
	c.fails("--node windows: its operating system is windows", "install", "--node", "windows")
	c.fails("--cluster-cidr and --api-server must be given together", "install", "--cluster-cidr", "10.244.0.0/16")

	c.refuses("viewer", "nfqproxy: permissions are missing, nothing was changed: patch nodes; create, delete pods in kube-system; "+
		"create, get, patch clusterroles.rbac.authorization.k8s.io; create, get, patch clusterrolebindings.rbac.authorization.k8s.io; "+
		"create, patch configmaps in kube-system; create, patch daemonsets.apps in kube-system; create, patch serviceaccounts in kube-system\n",
		rbacv1.PolicyRule{APIGroups: []string{"", "apps"}, Resources: []string{"nodes", "pods", "configmaps", "serviceaccounts", "daemonsets"}, Verbs: []string{"get", "list"}})
	// All rights but to give others what one does not have.
	c.refuses("installer", "attempting to grant RBAC permissions not currently held",
		rbacv1.PolicyRule{APIGroups: []string{"", "apps"}, Resources: []string{"nodes", "pods", "configmaps", "serviceaccounts", "daemonsets"}, Verbs: []string{"*"}},
		rbacv1.PolicyRule{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"clusterroles", "clusterrolebindings"}, Verbs: []string{"get", "create", "patch"}})
}

// refuses runs install with an account that has some rights. They take effect a moment after they are given.
func (c *switching) refuses(name, want string, rules ...rbacv1.PolicyRule) {
	c.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	if _, err := c.Client().RbacV1().ClusterRoles().Create(c.Context(), role, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
	kubeconfig, err := c.Account(c.Context(), name, name, serverAddress)
	if err != nil {
		c.Fatal(err)
	}
	before := c.versions()
	var last string
	defer func() {
		if c.Failed() {
			c.Logf("as %s: %s", name, last)
		}
	}()
	e2etest.Eventually(c, e2etest.Timeout, "the refusal of "+name, func() bool {
		_, _, last = e2etest.RunCommand(c, c.control, c.command(kubeconfig, "install"))
		return strings.Contains(last, want)
	})
	c.unchanged(before, "as "+name)
}

// testDryRun: a dry run prints what would change, and changes nothing.
func (c *switching) testDryRun(command, what string) {
	before := c.versions()
	out := c.succeeds(command, "--dry-run")
	c.unchanged(before, what)
	want := []string{
		"node node-3 (2 of 3): to nfqproxy\nnode node-3: label service-proxy: kube-proxy -> nfqproxy\n",
		"node windows: skipped: its operating system is windows, but nfqproxy requires Linux\n", "node windows: label service-proxy: (none) -> kube-proxy\n",
		"    +        service-proxy: kube-proxy\n", "ClusterRole nfqproxy: created\n", "    +        image: nfqproxy:test\n",
		"dry run: nothing was changed\n",
	}
	if command == "uninstall" {
		want = []string{
			"node node-3 (2 of 3): to kube-proxy\nnode node-3: label service-proxy: nfqproxy -> kube-proxy\n", "    -        service-proxy: kube-proxy\n",
			"node away: label service-proxy: kube-proxy -> (none)\n", "DaemonSet nfqproxy: deleted\n", "dry run: nothing was changed\n",
		}
	}
	for _, text := range want {
		if !strings.Contains(out, text) {
			c.Errorf("%s does not print %q:\n%s", what, text, out)
		}
	}
}

// testWayBack: node-3, whose daemon takes over and is never ready, goes back to kube-proxy, and the switch stops.
func (c *switching) testWayBack() {
	c.kubelets.deaf.Store("node-3", true)
	code, stdout, stderr := c.run("install", "--timeout=20s")
	c.kubelets.deaf.Delete("node-3")
	if want := "nfqproxy: node node-3: nfqproxy: not within 20s: pod nfqproxy-"; code != 2 || !strings.HasPrefix(stderr, want) ||
		!strings.Contains(stderr, "container nfqproxy is running, but not ready; the node is back with kube-proxy, and the switch stops here") {
		c.Errorf("exit code %d, %q; want %q\n%s", code, stderr, want, stdout)
	}
	for _, want := range []string{" new TCP flows to services got an answer\nnode node-2: served by nfqproxy, after ", "service-proxy=nfqproxy: node-2\nservice-proxy=kube-proxy: node-3, windows, node-1\n", "node node-3: served by kube-proxy, nfqproxy's rules are removed"} {
		if !strings.Contains(stdout, want) {
			c.Errorf("the output lacks %q:\n%s", want, stdout)
		}
	}
	c.nodeHas(c.nodes[0], switchover.KubeProxy)
	c.nodeHas(c.nodes[1], switchover.Nfqproxy)
	c.nodeHas(c.nodes[2], switchover.KubeProxy)
}

// testInterrupted interrupts a command when it prints a line, and runs it again.
func (c *switching) testInterrupted(command, at, want string) {
	c.Helper()
	cmd := c.command(c.Kubeconfig(), command)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		c.Fatal(err)
	}
	var stderr syncBuffer
	cmd.Stderr = &stderr
	if err := c.control.Start(cmd); err != nil {
		c.Fatal(err)
	}
	reached := false
	var out strings.Builder
	for s := bufio.NewScanner(stdout); s.Scan(); {
		out.WriteString(s.Text() + "\n")
		if s.Text() == at {
			reached = true
			_ = cmd.Process.Signal(syscall.SIGINT)
		}
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); !reached || code != 2 || !strings.HasPrefix(stderr.String(), "nfqproxy: "+want) {
		c.Errorf("%s, interrupted: exit code %d, %s\n%s", command, code, stderr.String(), &out)
	}
	if !strings.Contains(out.String(), "service-proxy=") {
		c.Errorf("%s, interrupted: no state of the nodes:\n%s", command, &out)
	}
	c.succeeds(command)
}

// testAgain: what is installed already is not changed.
func (c *switching) testAgain() {
	before := c.versions()
	out := c.succeeds("install")
	if strings.Contains(out, "->") || !strings.Contains(out, "DaemonSet nfqproxy: unchanged\n") {
		c.Errorf("install, once more:\n%s", out)
	}
	c.unchanged(before, "install, once more")
}

// testUpdate: another image replaces the daemons.
func (c *switching) testUpdate() {
	const image = "nfqproxy:newer"
	out := c.succeeds("install", "--image="+image)
	if !strings.Contains(out, "DaemonSet nfqproxy: applied\nServiceAccount nfqproxy-reader: unchanged\n") || !strings.Contains(out, "DaemonSet nfqproxy: wait for the update of 3 nodes\n") {
		c.Errorf("the update:\n%s", out)
	}
	pods, err := c.Client().CoreV1().Pods("kube-system").List(c.Context(), metav1.ListOptions{LabelSelector: "k8s-app=nfqproxy"})
	if err != nil {
		c.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.Spec.Containers[0].Image != image && p.DeletionTimestamp == nil {
			c.Errorf("pod %s on %s has image %s", p.Name, p.Spec.NodeName, p.Spec.Containers[0].Image)
		}
	}
	c.has(switchover.Nfqproxy)
}

// has checks that a proxy, and no other, serves each node that can be switched.
func (c *switching) has(proxy string) {
	c.Helper()
	for _, n := range c.nodes {
		c.nodeHas(n, proxy)
	}
}

func (c *switching) nodeHas(n *siteNode, proxy string) {
	c.Helper()
	object, err := c.Client().CoreV1().Nodes().Get(c.Context(), n.name, metav1.GetOptions{})
	if err != nil {
		c.Fatal(err)
	}
	_, marked := object.Annotations[switchover.Annotation]
	if got := object.Labels[switchover.Label]; got != proxy || marked != (proxy == switchover.Nfqproxy) {
		c.Errorf("%s: label %q, marked %t; want %s", n.name, got, marked, proxy)
	}
	tables := n.tables()
	if nfqproxy, kubeProxy := slices.Contains(tables, "nfqproxy"), slices.Contains(tables, "kube-proxy"); nfqproxy != (proxy == switchover.Nfqproxy) || kubeProxy == nfqproxy {
		c.Errorf("%s: tables %q; want those of %s", n.name, tables, proxy)
	}
}

// testRemoved: the cluster is as it was.
func (c *switching) testRemoved() {
	ctx, client := c.Context(), c.Client()
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	for _, n := range nodes.Items {
		if value, ok := n.Labels[switchover.Label]; ok || len(n.Annotations) > 0 {
			c.Errorf("%s has the label %q and annotations %v", n.Name, value, n.Annotations)
		}
	}
	for _, n := range c.nodes {
		if tables := n.tables(); slices.Contains(tables, "nfqproxy") || !slices.Contains(tables, "kube-proxy") {
			c.Errorf("%s: tables %q", n.name, tables)
		}
		n.serves()
	}
	d, err := client.AppsV1().DaemonSets("kube-system").Get(ctx, "kube-proxy", metav1.GetOptions{})
	if err != nil || !maps.Equal(d.Spec.Template.Spec.NodeSelector, map[string]string{"kubernetes.io/os": "linux"}) {
		c.Errorf("kube-proxy's node selector is %v, error %v", d.Spec.Template.Spec.NodeSelector, err)
	}
	_, err1 := client.AppsV1().DaemonSets("kube-system").Get(ctx, "nfqproxy", metav1.GetOptions{})
	_, err2 := client.RbacV1().ClusterRoles().Get(ctx, "nfqproxy", metav1.GetOptions{})
	_, err3 := client.RbacV1().ClusterRoleBindings().Get(ctx, "nfqproxy", metav1.GetOptions{})
	_, err4 := client.CoreV1().ServiceAccounts("kube-system").Get(ctx, "nfqproxy", metav1.GetOptions{})
	for _, err := range []error{err1, err2, err3, err4} {
		if !apierrors.IsNotFound(err) {
			c.Errorf("an object of nfqproxy is still there: %v", err)
		}
	}
	if out := c.succeeds("uninstall"); out != "nfqproxy is not installed on this cluster: nothing to do\n" {
		c.Errorf("uninstall, once more: %s", out)
	}
}

// switchLoad makes connections on each node all the time, and keeps one of each node.
type switchLoad struct {
	*switching
	kept  []net.Conn
	made  []atomic.Int64 // by node
	end   context.CancelFunc
	ended sync.WaitGroup
}

func (c *switching) newLoad() *switchLoad {
	l := &switchLoad{switching: c, made: make([]atomic.Int64, len(c.nodes))}
	var ctx context.Context
	ctx, l.end = context.WithCancel(c.Context())
	c.Cleanup(l.end)
	for i, n := range c.nodes {
		kept, err := n.connect(n.client, e2etest.Timeout)
		if err != nil {
			c.Fatal(err)
		}
		c.Cleanup(func() { _ = kept.Close() })
		l.kept = append(l.kept, kept)
		l.ended.Go(func() {
			for ctx.Err() == nil {
				conn, err := n.connect(n.client, e2etest.Timeout)
				if err != nil {
					if ctx.Err() == nil {
						c.Errorf("%s: connection %d: %v", n.name, l.made[i].Load(), err)
					}
					return
				}
				_ = conn.Close()
				l.made[i].Add(1)
				time.Sleep(5 * time.Millisecond) // the machine has other work
			}
		})
	}
	return l
}

// turn checks that connections were made on each node since the last one, and that those that are kept are alive.
func (l *switchLoad) turn(after string) {
	l.Helper()
	for i, n := range l.nodes {
		if err := answers(l.kept[i]); err != nil {
			l.Errorf("%s, after %s: the connection of before: %v", n.name, after, err)
		}
		if made := l.made[i].Swap(0); made == 0 {
			l.Errorf("%s, until %s: no connection", n.name, after)
		} else {
			l.Logf("%s, until %s: %d connections", n.name, after, made)
		}
	}
}

func (l *switchLoad) stop() {
	l.end()
	l.ended.Wait()
}
