package apiserver

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientfeatures "k8s.io/client-go/features"
	featurestesting "k8s.io/client-go/features/testing"
	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// testTimeout is how long a test waits for what should come at once.
const testTimeout = time.Minute

const manifests = "../../../deploy/kubernetes/"

// TestRBAC: the roles of the manifests let a Source and a Recorder do all they do, and
// without any one of their verbs something is refused.
func TestRBAC(t *testing.T) {
	netnstest.Require(t)
	clustertest.Require(t)
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
	t.Run("list once", func(t *testing.T) { testList(t, c) })
	base, pods := readRole(t, "base"), readRole(t, "components/pod-names")
	both := slices.Concat(base.Rules, pods.Rules)
	// From the newest API servers a watch alone brings all objects; the others
	// need list.
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
						less = slices.DeleteFunc(less, func(r rbacv1.PolicyRule) bool { return len(r.Verbs) == 0 })
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

// works sees that objects and changes come and that an event and its repetition are
// written.
func (a *account) works(pods bool) {
	a.await("the own Node", func() bool { return a.has(func(u *servicetable.Update) bool { return u.Nodes["worker"] != nil }) })
	// Made after the first update: what comes now is watched.
	a.create(pods)
	k := key(a.name)
	a.await("the objects", func() bool {
		return a.has(func(u *servicetable.Update) bool {
			return u.Services[k] != nil && u.EndpointSlices[k] != nil && (u.Pods[k] != nil || !pods)
		})
	})
	if a.has(func(u *servicetable.Update) bool { return len(u.Nodes) > 1 }) {
		a.Error("another Node than the own one came")
	}
	a.repeatEvent()
	if err := a.recorder.NodeNow("Testing", strings.Repeat("ä", 1000)); err != nil {
		a.Error(err)
	}
	if wrong, err := a.tokens.Review(a.Context(), "nonsense"); err != nil || !strings.HasPrefix(wrong, "it is invalid") {
		a.Errorf("a review: %q %v", wrong, err)
	}
	a.await("the repetition", func() bool { e := a.event(); return e != nil && e.Series != nil })
	for _, r := range a.refused() {
		if pods || r != "GET /api/v1/pods" {
			a.Errorf("refused: %s", r)
		}
	}
}

func (a *account) has(is func(*servicetable.Update) bool) bool {
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
	switch {
	case rule.Resources[0] == "tokenreviews":
		if _, err := a.tokens.Review(a.Context(), "nonsense"); err == nil || !strings.Contains(err.Error(), "does not permit the daemon to create tokenreviews") {
			a.Errorf("a review: %v", err)
		}
	case verb == "create":
		a.recorder.Service("default", a.name, "Testing", "first")
	case verb == "patch":
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
