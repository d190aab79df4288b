package daemonset

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
)

// TestMembers: a node stays a member for a while after its last pod, with the same Observer.
func TestMembers(t *testing.T) {
	pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	s := &set{Config: Config{Namespace: "kube-system", Name: "nfqproxy"}, forget: time.Minute, nodes: make(map[string]*node), pods: corelisters.NewPodLister(pods).Pods("kube-system")}
	pod := func(name, node string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	}
	now := time.Now()
	members := func(after time.Duration) string {
		var names []string
		for _, m := range s.members(now.Add(after)) {
			p, err := s.nodes[m.Name].running()
			if err != nil {
				p = pod("("+err.Error()+")", "")
			}
			names = append(names, m.Name+" "+p.Name)
		}
		return strings.Join(names, ", ")
	}
	add := func(p *corev1.Pod) {
		if err := pods.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(p *corev1.Pod) {
		if err := pods.Delete(p); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(after time.Duration, want string) {
		t.Helper()
		if got := members(after); got != want {
			t.Errorf("after %s: %s; want %s", after, got, want)
		}
	}
	expect(0, "")
	add(pod("b-1", "node-b"))
	add(pod("a-1", "node-a"))
	add(pod("waiting", "")) // for a node that is not known
	expect(0, "node-a a-1, node-b b-1")
	observer := s.nodes["node-b"].client
	remove(pod("b-1", "node-b"))
	expect(time.Second, "node-a a-1, node-b (no pod on this node)")
	expect(60*time.Second, "node-a a-1, node-b (no pod on this node)")
	add(pod("b-2", "node-b"))
	expect(61*time.Second, "node-a a-1, node-b b-2")
	if s.nodes["node-b"].client != observer {
		t.Error("another Observer of the same node")
	}
	remove(pod("b-2", "node-b"))
	expect(62*time.Second, "node-a a-1, node-b (no pod on this node)")
	expect(121*time.Second, "node-a a-1, node-b (no pod on this node)")
	expect(122*time.Second, "node-a a-1")
	add(pod("b-3", "node-b"))
	expect(123*time.Second, "node-a a-1, node-b b-3")
}

// TestTokens: a token is used until shortly before it expires, or until a daemon refuses it.
func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		made := 0
		client.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, runtime.Object, error) {
			request := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest)
			if a.GetSubresource() != "token" || a.GetNamespace() != "net" || len(request.Spec.Audiences) != 1 || request.Spec.Audiences[0] != "nfqproxy" || *request.Spec.ExpirationSeconds != 3600 {
				t.Errorf("%s in %s: %+v", a.GetSubresource(), a.GetNamespace(), request.Spec)
			}
			made++
			// The API server may give a shorter time.
			return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{Token: fmt.Sprint(made), ExpirationTimestamp: metav1.NewTime(time.Now().Add(10 * time.Minute))}}, nil
		})
		tokens := &tokens{set: &set{client: client}, account: types.NamespacedName{Namespace: "net", Name: "reader"}}
		expect := func(want string) {
			t.Helper()
			if got, err := tokens.get(t.Context()); got != want || err != nil {
				t.Errorf("%s, %v; want %s", got, err, want)
			}
		}
		expect("1")
		time.Sleep(8*time.Minute - time.Second)
		expect("1")
		time.Sleep(time.Second)
		expect("2")
		if !tokens.refused("1") { // of a request from before
			t.Error("there are other tokens")
		}
		expect("2")
		tokens.refused("2")
		expect("3")
	})
}
