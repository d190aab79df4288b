package apiserver

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
)

// account is a service account, and a Source and a Recorder that run as it.
type account struct {
	*testing.T
	*cluster.Cluster
	name     string
	client   Client
	recorder *Recorder
	tokens   *Tokens // of the account itself

	mu      sync.Mutex
	log     bytes.Buffer
	objects servicetable.Update // all that came
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
	client, _, err := (&Connection{ClientConnection: proxyconfig.ClientConnection{Kubeconfig: kubeconfig, QPS: -1}}).Connect(log)
	if err != nil {
		a.Fatal(err)
	}
	a.client = client
	ctx, cancel := context.WithCancel(a.Context())
	a.recorder = NewRecorder(ctx, client, "worker", log)
	a.tokens = &Tokens{Client: client, Account: types.NamespacedName{Namespace: "kube-system", Name: a.name}}
	source := New(Config{Client: client, Node: "worker", NeedNodeIPs: true, Pods: true, Logger: log})
	ended := make(chan error, 1)
	go func() {
		ended <- source.Run(ctx, func(u servicetable.Update) {
			a.mu.Lock()
			defer a.mu.Unlock()
			merge(&a.objects.Services, u.Services)
			merge(&a.objects.EndpointSlices, u.EndpointSlices)
			merge(&a.objects.Nodes, u.Nodes)
			merge(&a.objects.Pods, u.Pods)
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
	for end := time.Now().Add(testTimeout); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.Fatalf("waited %v for %s; logged:\n%s", testTimeout, what, &a.log)
		}
	}
}

// refused gives the requests that the API server did not allow.
func (a *account) refused() (requests []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for line := range strings.Lines(a.log.String()) {
		if _, rest, ok := strings.Cut(line, `permission denied by the API server: check the ClusterRole" request="`); ok {
			request, _, _ := strings.Cut(rest, `"`)
			requests = append(requests, request)
		}
	}
	return requests
}

// merge adds what is in a part of an update to another.
func merge[K comparable, V any](to *map[K]V, from map[K]V) {
	if *to == nil {
		*to = make(map[K]V)
	}
	maps.Copy(*to, from)
}
