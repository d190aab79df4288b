package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientfeatures "k8s.io/client-go/features"
	featurestesting "k8s.io/client-go/features/testing"
	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/control"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

func TestMain(m *testing.M) { netns.Main(m) }

// patience is how long a test waits for what should come at once.
const patience = 30 * time.Second

const manifests = "../../deploy/kubernetes/"

// TestRBAC: the roles of the manifests let a Source and a Recorder do all they do, and
// without any one of their verbs something is refused.
func TestRBAC(t *testing.T) {
	netns.Require(t)
	cluster.Require(t)
	c, err := cluster.Start(t.Context(), cluster.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, n := range []string{"worker", "other"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{internal}}}
		if _, err := c.Client().CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	base, pods := readRole(t, "base"), readRole(t, "components/pod-names")
	both := slices.Concat(base.Rules, pods.Rules)
	// From the newest API servers a watch alone brings all objects; to the others list is
	// what it says.
	for _, streaming := range []bool{true, false} {
		t.Run(fmt.Sprintf("streaming lists %v", streaming), func(t *testing.T) {
			featurestesting.SetFeatureDuringTest(t, clientfeatures.WatchListClient, streaming)
			t.Run("all", func(t *testing.T) { t.Parallel(); newAccount(t, c, both).works(true) })
			t.Run("without pod-names", func(t *testing.T) { t.Parallel(); newAccount(t, c, base.Rules).works(false) })
			for i, rule := range both {
				for _, verb := range rule.Verbs {
					if streaming && verb == "list" {
						continue
					}
					t.Run(verb+" "+rule.Resources[0], func(t *testing.T) {
						t.Parallel()
						less := slices.Clone(both)
						less[i] = *rule.DeepCopy()
						less[i].Verbs = slices.DeleteFunc(less[i].Verbs, func(v string) bool { return v == verb })
						newAccount(t, c, less).isRefused(verb, rule)
					})
				}
			}
		})
	}
}

func readRole(t *testing.T, dir string) *rbacv1.ClusterRole {
	text, err := os.ReadFile(manifests + dir + "/clusterrole.yaml")
	if err != nil {
		t.Fatal(err)
	}
	role := new(rbacv1.ClusterRole)
	if err := yaml.UnmarshalStrict(text, role); err != nil {
		t.Fatal(err)
	}
	return role
}

// account is a service account, and a Source and a Recorder that run as it.
type account struct {
	*testing.T
	*cluster.Cluster
	name     string
	recorder *Recorder

	mu      sync.Mutex
	log     bytes.Buffer
	objects control.Update // all that came
}

func newAccount(t *testing.T, c *cluster.Cluster, rules []rbacv1.PolicyRule) *account {
	a := &account{T: t, Cluster: c}
	meta := metav1.ObjectMeta{GenerateName: "nfqproxy-", Namespace: "kube-system"}
	sa, err := c.Client().CoreV1().ServiceAccounts("kube-system").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a.name = sa.Name
	meta = metav1.ObjectMeta{Name: a.name}
	_, err1 := c.Client().RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	_, err2 := c.Client().RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: a.name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "kube-system", Name: a.name}},
	}, metav1.CreateOptions{})
	kubeconfig, err3 := c.KubeconfigFor(t.Context(), "kube-system", a.name, netip.Addr{})
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	a.awaitRights(rules)
	a.start(kubeconfig)
	return a
}

// awaitRights waits until the authorizer knows the role, of which it learns by watching.
func (a *account) awaitRights(rules []rbacv1.PolicyRule) {
	for _, rule := range rules {
		for _, verb := range rule.Verbs {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User:               "system:serviceaccount:kube-system:" + a.name,
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: rule.APIGroups[0], Resource: rule.Resources[0]},
			}}
			a.await(verb+" "+rule.Resources[0], func() bool {
				got, err := a.Client().AuthorizationV1().SubjectAccessReviews().Create(a.Context(), review, metav1.CreateOptions{})
				return err == nil && got.Status.Allowed
			})
		}
	}
}

func (a *account) start(kubeconfig string) {
	log := slog.New(slog.NewTextHandler(a, nil))
	client, err := (&Connection{Kubeconfig: kubeconfig, QPS: -1}).Connect(log)
	if err != nil {
		a.Fatal(err)
	}
	ctx, cancel := context.WithCancel(a.Context())
	if a.recorder, err = NewRecorder(ctx, client, "worker"); err != nil {
		a.Fatal(err)
	}
	source := New(Config{Client: client, Node: "worker", NeedNodeIPs: true, Pods: true, Logger: log})
	ended := make(chan error, 1)
	go func() {
		ended <- source.Run(ctx, func(u control.Update, err error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			if err != nil {
				a.Error(err)
			}
			for k, v := range u.Services {
				note(&a.objects.Services, k, v, false)
			}
			for k, v := range u.EndpointSlices {
				note(&a.objects.EndpointSlices, k, v, false)
			}
			for k, v := range u.Nodes {
				note(&a.objects.Nodes, k, v, false)
			}
			for k, v := range u.Pods {
				note(&a.objects.Pods, k, v, false)
			}
		})
	}()
	a.Cleanup(func() {
		cancel()
		a.recorder.Close()
		if err := <-ended; err != nil {
			a.Error(err)
		}
	})
}

// Write takes the log.
func (a *account) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.log.Write(p)
}

func (a *account) await(what string, is func() bool) {
	a.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.Fatalf("waited %v for %s; logged:\n%s", patience, what, &a.log)
		}
	}
}

// refused gives the requests that the API server did not allow.
func (a *account) refused() (requests []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for line := range strings.Lines(a.log.String()) {
		if _, rest, ok := strings.Cut(line, `the API server refuses: check the ClusterRole" request="`); ok {
			request, _, _ := strings.Cut(rest, `"`)
			requests = append(requests, request)
		}
	}
	return requests
}

// works sees that objects and changes come and that an event and its repetition are
// written.
func (a *account) works(pods bool) {
	a.await("the own Node", func() bool { return a.has(func(u *control.Update) bool { return u.Nodes["worker"] != nil }) })
	// Made after the first update: what comes now is watched.
	a.create(pods)
	k := key(a.name)
	a.await("the objects", func() bool {
		return a.has(func(u *control.Update) bool {
			return u.Services[k] != nil && u.EndpointSlices[k] != nil && (u.Pods[k] != nil || !pods)
		})
	})
	if a.has(func(u *control.Update) bool { return len(u.Nodes) > 1 }) {
		a.Error("another Node than the own one came")
	}
	a.repeatEvent()
	if err := a.recorder.NodeNow("Testing", strings.Repeat("ä", 1000)); err != nil {
		a.Error(err)
	}
	a.await("the repetition", func() bool { e := a.event(); return e != nil && e.Series != nil })
	for _, r := range a.refused() {
		if pods || r != "GET /api/v1/pods" {
			a.Errorf("refused: %s", r)
		}
	}
}

func (a *account) has(is func(*control.Update) bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return is(&a.objects)
}

func (a *account) create(pod bool) {
	meta := metav1.ObjectMeta{Name: a.name}
	_, err := a.Client().CoreV1().Services("default").Create(a.Context(), &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	if err != nil {
		a.Fatal(err)
	}
	if _, err = a.Client().DiscoveryV1().EndpointSlices("default").Create(a.Context(), &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4}, metav1.CreateOptions{}); err != nil {
		a.Fatal(err)
	}
	if pod {
		if _, err = a.Client().CoreV1().Pods("default").Create(a.Context(), &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{}); err != nil {
			a.Fatal(err)
		}
	}
}

// repeatEvent writes an event, and once more when it is there.
func (a *account) repeatEvent() {
	a.recorder.Service("default", a.name, "Testing", strings.Repeat("first ", 1000))
	a.await("an event", func() bool { return a.event() != nil })
	a.recorder.Service("default", a.name, "Testing", "second")
}

func (a *account) event() *eventsv1.Event {
	list, err := a.Client().EventsV1().Events("default").List(a.Context(), metav1.ListOptions{FieldSelector: "reason=Testing"})
	if err != nil {
		a.Fatal(err)
	}
	for i := range list.Items {
		if e := &list.Items[i]; e.Regarding.Name == a.name && e.Regarding.Kind == "Service" && e.Type == corev1.EventTypeWarning {
			return e
		}
	}
	return nil
}

// isRefused sees that what the rule is about is refused, and nothing else.
func (a *account) isRefused(verb string, rule rbacv1.PolicyRule) {
	method := map[string]string{"list": "GET", "watch": "GET", "create": "POST", "patch": "PATCH"}[verb]
	path := "/api/v1/"
	if rule.APIGroups[0] != "" {
		path = "/apis/" + rule.APIGroups[0] + "/v1/"
	}
	switch verb {
	case "create":
		a.recorder.Service("default", a.name, "Testing", "first")
	case "patch":
		a.repeatEvent()
	}
	a.await("a refusal", func() bool { return len(a.refused()) > 0 })
	for _, r := range a.refused() {
		if !strings.HasPrefix(r, method+" "+path) || !strings.Contains(r, "/"+rule.Resources[0]) {
			a.Errorf("refused: %s", r)
		}
	}
	if e := a.event(); verb == "create" && e != nil || verb == "patch" && e.Series != nil {
		a.Errorf("the event was written: %+v", e)
	}
}
