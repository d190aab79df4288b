package daemonset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nfqproxy/nfqproxy/control/live/apiserver"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// counts are upgrades that were requested.
type counts struct{ websocket, spdy atomic.Int32 }

// awaitRights waits until the authorizer has the rules, and no others.
func (w *world) awaitRights(rules []rbacv1.PolicyRule) {
	w.Helper()
	all := read[rbacv1.ClusterRole](w.T, "reader-clusterrole").Rules
	all = append(all, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/proxy"}, Verbs: []string{"get", "create", "delete"}})
	for _, rule := range all {
		for _, verb := range rule.Verbs {
			resource, sub, _ := strings.Cut(rule.Resources[0], "/")
			attributes := &authorizationv1.ResourceAttributes{Namespace: "kube-system", Verb: verb, Group: rule.APIGroups[0], Resource: resource, Subresource: sub}
			if len(rule.ResourceNames) > 0 {
				attributes.Name = rule.ResourceNames[0]
			}
			want := slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
				return r.Resources[0] == rule.Resources[0] && slices.Contains(r.Verbs, verb)
			})
			w.await(verb+" "+rule.Resources[0], func() error {
				got, err := w.Client().AuthorizationV1().SubjectAccessReviews().Create(w.Context(), &authorizationv1.SubjectAccessReview{
					Spec: authorizationv1.SubjectAccessReviewSpec{User: person, ResourceAttributes: attributes},
				}, metav1.CreateOptions{})
				if err == nil && got.Status.Allowed != want {
					err = fmt.Errorf("allowed: %v, want %v", got.Status.Allowed, want)
				}
				return err
			})
		}
	}
}

// open opens the cluster until the test or the returned function ends it.
func (w *world) open(config *rest.Config, c Config) (*remote.Relay, error) {
	c.REST = config
	return Open(w.Context(), c)
}

func (w *world) mustOpen(config *rest.Config) *remote.Relay {
	w.Helper()
	relay, err := w.open(config, Config{Warn: func(text string) { w.Log("warning: " + text) }})
	if err != nil {
		w.Fatal(err)
	}
	return relay
}

// states are the nodes of a relay with their problems.
func states(t *testing.T, relay *remote.Relay) string {
	t.Helper()
	list, err := relay.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, s := range list {
		text := s.Node
		for _, p := range s.Problems {
			text += ": " + p.Text
		}
		all = append(all, text)
	}
	return strings.Join(all, "\n")
}

func record(node string, second int) observe.Item {
	at := time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC)
	return observe.Item{Record: &flow.Record{Version: flow.Version, ID: fmt.Sprintf("%s-%d", node, second), Node: node, Time: &at, Verdict: "dnat"}}
}

func TestCluster(t *testing.T) {
	w := newWorld(t)
	for _, tt := range []struct {
		name string
		test func(*world)
	}{
		{"no pods", (*world).testNoPods},
		{"three nodes", (*world).testThreeNodes},
		{"without WebSocket", (*world).testSPDY},
		{"by pods/proxy", (*world).testProxy},
		{"a pod is replaced", (*world).testReplaced},
		{"unreachable nodes", (*world).testUnreachable},
		{"missing permissions", (*world).testPermissions},
		{"tokens", (*world).testTokens},
		{"a token of a file", (*world).testTokenFile},
	} {
		t.Run(tt.name, func(t *testing.T) {
			outer := w.T
			w.T = t
			defer func() { w.T = outer }()
			tt.test(w)
		})
	}
}

func (w *world) testNoPods() {
	_, err := w.open(w.RESTConfig(), Config{})
	if err == nil || !strings.HasPrefix(err.Error(), "DaemonSet kube-system/nfqproxy has no pods, and wants 0: check its node selector") {
		w.Errorf("error %v", err)
	}
	_, err = w.open(w.RESTConfig(), Config{Namespace: "net", Name: "other"})
	if err == nil || !strings.HasPrefix(err.Error(), "DaemonSet net/other not found: name nfqproxy's with --daemonset NAMESPACE/NAME") {
		w.Errorf("error %v", err)
	}
	away := w.RESTConfig()
	away.Host = "https://127.0.0.1:1"
	_, err = w.open(away, Config{})
	if err == nil || !strings.HasPrefix(err.Error(), "API server https://127.0.0.1:1: ") || !strings.Contains(err.Error(), "connection refused") {
		w.Errorf("error %v", err)
	}
}

// testThreeNodes: lists are in the order of time, and streams go on.
func (w *world) testThreeNodes() {
	a, b, c := w.daemon("node-a"), w.daemon("node-b"), w.daemon("node-c")
	a.fake.List = []observe.Item{record("node-a", 1), record("node-a", 5)}
	b.fake.List = []observe.Item{record("node-b", 2), record("node-b", 3)}
	c.fake.List = []observe.Item{record("node-c", 4)}
	relay := w.mustOpen(w.RESTConfig())
	var got []string
	if err := relay.Flows(w.Context(), observe.FlowQuery{}, func(i observe.Item) error {
		if i.Record == nil {
			return fmt.Errorf("%+v", i.Missed)
		}
		got = append(got, i.Record.ID)
		return nil
	}); err != nil {
		w.Fatal(err)
	}
	if want := []string{"node-a-1", "node-b-2", "node-b-3", "node-c-4", "node-a-5"}; !slices.Equal(got, want) {
		w.Errorf("got %q, want %q", got, want)
	}
	if got := states(w.T, relay); got != "node-a\nnode-b\nnode-c" {
		w.Errorf("nodes: %s", got)
	}
	// Errors of requests are those of the nodes.
	if _, err := relay.Flow(w.Context(), "no/such flow"); err == nil || !strings.Contains(err.Error(), `flow "no/such flow" not found`) {
		w.Errorf("error %v", err)
	}
	ctx, cancel := context.WithTimeout(w.Context(), 2*testTimeout)
	defer cancel()
	items := follow(ctx, relay)
	for i, d := range []*daemon{a, b, c} {
		if !d.fake.AwaitReaders(ctx, 1) {
			w.Fatal("no reader")
		}
		d.fake.Publish(record(d.node, 10+i))
		if i := w.next(items); i.Record == nil || i.Record.Node != d.node {
			w.Errorf("got %+v, want a record of %s", i, d.node)
		}
	}
	for _, d := range []*daemon{a, b, c} {
		d.delete()
	}
}

// follow follows flows until the context ends.
func follow(ctx context.Context, o observe.Observer) <-chan observe.Item {
	items := make(chan observe.Item, 100)
	go func() {
		_ = o.Flows(ctx, observe.FlowQuery{Follow: true}, func(i observe.Item) error {
			select {
			case items <- i:
			case <-ctx.Done():
			}
			return nil
		})
	}()
	return items
}

func (w *world) next(items <-chan observe.Item) observe.Item {
	w.Helper()
	select {
	case i := <-items:
		return i
	case <-time.After(testTimeout):
		w.Fatal("waited for a record")
		return observe.Item{}
	}
}

// testSPDY: where WebSocket is not taken, SPDY is, and WebSocket is not tried again.
func (w *world) testSPDY() {
	a, b := w.daemon("node-a"), w.daemon("node-b")
	config, n := w.withoutWebSocket(w.RESTConfig())
	relay := w.mustOpen(config)
	if got := states(w.T, relay); got != "node-a\nnode-b" {
		w.Errorf("nodes: %s", got)
	}
	before := n.websocket.Load()
	if before == 0 || n.spdy.Load() == 0 {
		w.Errorf("%d attempts with WebSocket, %d with SPDY", before, n.spdy.Load())
	}
	ctx, cancel := context.WithTimeout(w.Context(), 2*testTimeout)
	defer cancel()
	items := follow(ctx, relay)
	for _, d := range []*daemon{a, b} {
		if !d.fake.AwaitReaders(ctx, 1) {
			w.Fatal("no reader")
		}
		d.fake.Publish(record(d.node, 1))
		if i := w.next(items); i.Record == nil || i.Record.Node != d.node {
			w.Errorf("got %+v", i)
		}
	}
	if n.websocket.Load() != before {
		w.Error("WebSocket was tried again")
	}
	a.delete()
	b.delete()
}

var proxyRule = rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/proxy"}, Verbs: []string{"get", "create", "delete"}}

// testProxy: who may not forward ports uses pods/proxy, to daemons that serve other machines.
func (w *world) testProxy() {
	w.addAddress()
	role := read[rbacv1.ClusterRole](w.T, "reader-clusterrole").Rules
	noForward := slices.DeleteFunc(slices.Clone(role), func(r rbacv1.PolicyRule) bool { return r.Resources[0] == "pods/portforward" })
	w.allow(append(noForward, proxyRule)...)
	a, b, c := w.daemonAt("node-a", "192.0.2.1", flowapi.Config{}), w.daemonAt("node-b", "", flowapi.Config{}), w.daemon("node-c")
	relay := w.mustOpen(w.asPerson())
	got := strings.Split(states(w.T, relay), "\n")
	if len(got) != 3 || got[0] != "node-a" || got[1] != "node-b" || !strings.HasPrefix(got[2], "node-c: the daemon does not answer: DaemonSet kube-system/nfqproxy: cannot create pods/portforward in namespace kube-system: have the ClusterRole nfqproxy-reader bound to you there") {
		w.Errorf("nodes: %q", got)
	}
	c.delete()
	w.await("the end of node-c", func() error {
		if s := states(w.T, relay); !strings.Contains(s, "no pod on this node") {
			return errors.New(s)
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(w.Context(), 2*testTimeout)
	defer cancel()
	b.fake.ExplainAnswer.Version = flow.Version
	relay = w.mustOpen(w.asPerson())
	items := follow(ctx, relay)
	for _, d := range []*daemon{a, b} {
		if !d.fake.AwaitReaders(ctx, 1) {
			w.Fatal("no reader")
		}
		d.fake.Publish(record(d.node, 1))
		if i := w.next(items); i.Record == nil || i.Record.Node != d.node {
			w.Errorf("got %+v", i)
		}
	}
	if _, err := relay.Explain(ctx, observe.Question{Node: "node-b"}); err != nil { // a POST
		w.Error(err)
	}
	if _, err := relay.Flow(ctx, "a/b?c"); err == nil || !strings.Contains(err.Error(), `flow "a/b?c" not found`) {
		w.Errorf("error %v", err)
	}
	// Where port-forward leads to all addresses, it is used, through TLS.
	if got := states(w.T, w.mustOpen(w.RESTConfig())); got != "node-a\nnode-b" {
		w.Errorf("as an administrator: %s", got)
	}
	w.allow(noForward...)
	if _, err := w.mustOpen(w.asPerson()).Stats(ctx); err == nil || !strings.HasPrefix(err.Error(), "cannot ") || !strings.Contains(err.Error(), " in namespace kube-system") {
		w.Errorf("without pods/proxy: %v", err)
	}
	a.delete()
	b.delete()
}

// testReplaced: a stream goes on with the pod that replaces another, on the same node or on a new one.
func (w *world) testReplaced() {
	a, b := w.daemon("node-a"), w.daemon("node-b")
	relay := w.mustOpen(w.RESTConfig())
	ctx, cancel := context.WithTimeout(w.Context(), 2*testTimeout)
	defer cancel()
	items := follow(ctx, relay)
	if !a.fake.AwaitReaders(ctx, 1) || !b.fake.AwaitReaders(ctx, 1) {
		w.Fatal("no readers")
	}
	a.delete()
	if i := w.next(items); i.Missed == nil || i.Missed.Why != observe.MissedUnreachable || i.Missed.Node != "node-a" {
		w.Errorf("got %+v, want that node-a is unreachable", i)
	}
	w.await("the end of the pod", func() error {
		if got := states(w.T, relay); got != "node-a: the daemon does not answer: DaemonSet kube-system/nfqproxy: no pod on this node\nnode-b" {
			return errors.New(got)
		}
		return nil
	})
	again, c := w.daemon("node-a"), w.daemon("node-c")
	for _, d := range []*daemon{again, c, b} {
		if !d.fake.AwaitReaders(ctx, 1) {
			w.Fatal("no reader of " + d.node)
		}
		d.fake.Publish(record(d.node, 1))
		i := w.next(items)
		for i.Missed != nil && i.Missed.Node == "node-c" { // its pod was there before it ran
			i = w.next(items)
		}
		if i.Record == nil || i.Record.Node != d.node {
			w.Errorf("got %+v, want a record of %s", i, d.node)
		}
	}
	again.delete()
	b.delete()
	c.delete()
}

// testUnreachable: nodes without a daemon that answers are named, with the reason.
func (w *world) testUnreachable() {
	a := w.daemon("node-a")
	w.makePod("node-b", corev1.PodPending, "--flow-api=127.0.0.1:1")
	refused := w.makePod("node-c", corev1.PodRunning, "--flow-api=127.0.0.1:1")
	old := w.makePod("node-d", corev1.PodRunning, "--flow-api=unix:/run/nfqproxy/flows.sock")
	gone := w.makePod("node-e", corev1.PodRunning, "--flow-api=127.0.0.1:1") // there is no Node
	unscheduled := w.set.Spec.Template.Spec.DeepCopy()
	unscheduled.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"node-f"}}}}},
	}}}
	pods := w.Client().CoreV1().Pods("kube-system")
	waiting, err := pods.Create(w.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "nfqproxy-waiting", Labels: w.set.Spec.Template.Labels}, Spec: *unscheduled}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	defer func() { _ = pods.Delete(context.Background(), waiting.Name, *metav1.NewDeleteOptions(0)) }()
	relay := w.mustOpen(w.RESTConfig())
	lines := strings.Split(states(w.T, relay), "\n")
	for i, want := range []string{
		"node-a",
		"node-b: the daemon does not answer: DaemonSet kube-system/nfqproxy: pod nfqproxy-", // does not run
		"node-c: the daemon does not answer: DaemonSet kube-system/nfqproxy: pod " + refused.Name + ": ",
		"node-d: the daemon does not answer: DaemonSet kube-system/nfqproxy: pod " + old.Name + ": its daemon serves the flow API at no ADDRESS:PORT",
		"node-e: the daemon does not answer: DaemonSet kube-system/nfqproxy: pod " + gone.Name + ": ",
		"node-f: the daemon does not answer: DaemonSet kube-system/nfqproxy: pod nfqproxy-waiting does not run: Pending",
	} {
		if i >= len(lines) || !strings.HasPrefix(lines[i], want) {
			w.Fatalf("got:\n%s\nwant %s", strings.Join(lines, "\n"), want)
		}
	}
	if !strings.Contains(lines[1], "does not run: Pending") || !strings.Contains(lines[2], "connection refused") {
		w.Errorf("reasons: %s\n%s", lines[1], lines[2])
	}
	missed := 0
	if err := relay.Flows(w.Context(), observe.FlowQuery{}, func(i observe.Item) error {
		if i.Missed != nil && i.Missed.Why == observe.MissedUnreachable {
			missed++
		}
		return nil
	}); err != nil || missed != 5 {
		w.Errorf("%d nodes are missing, error %v", missed, err)
	}
	a.delete()
}

// testPermissions: the role of the manifests is sufficient, and without each of its verbs an error names it.
func (w *world) testPermissions() {
	a := w.daemon("node-a")
	defer a.delete()
	role := read[rbacv1.ClusterRole](w.T, "reader-clusterrole").Rules
	use := func(config *rest.Config) (warnings []string, err error) {
		var mu sync.Mutex
		warned := make(chan struct{}, 100)
		relay, err := w.open(config, Config{Warn: func(text string) {
			mu.Lock()
			defer mu.Unlock()
			warnings = append(warnings, text)
			warned <- struct{}{}
		}})
		if err != nil {
			return nil, err
		}
		if _, err := relay.Stats(w.Context()); err != nil {
			return nil, err
		}
		b := w.daemon("node-b")
		defer b.delete()
		end := time.Now().Add(testTimeout)
		for !strings.Contains(states(w.T, relay), "node-b") {
			mu.Lock()
			n := len(warnings)
			mu.Unlock()
			if n > 0 || time.Now().After(end) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(warnings), nil
	}
	w.allow(role...)
	if warnings, err := use(w.asPerson()); err != nil || len(warnings) > 0 {
		w.Errorf("with all: %q %v", warnings, err)
	}
	spdyOnly, _ := w.withoutWebSocket(w.asPerson())
	if warnings, err := use(spdyOnly); err != nil || len(warnings) > 0 {
		w.Errorf("with all, without WebSocket: %q %v", warnings, err)
	}
	for i, rule := range role {
		for _, verb := range rule.Verbs {
			w.allow(without(role, i, verb)...)
			warnings, err := use(w.asPerson())
			what := rule.Resources[0]
			switch verb + " " + what {
			case "get pods/portforward":
				// SPDY needs no get, and is tried next.
				if err != nil || len(warnings) > 0 {
					w.Errorf("without %s %s: %q %v", verb, what, warnings, err)
				}
			case "create pods/portforward":
				// This API server requires it of WebSocket clients, too, or does not.
				if err != nil && !strings.HasPrefix(err.Error(), "cannot create pods/portforward in namespace kube-system") {
					w.Errorf("without %s %s: %v", verb, what, err)
				}
				if _, err := use(spdyOnly); err == nil || !strings.HasPrefix(err.Error(), "cannot create pods/portforward in namespace kube-system: have the ClusterRole nfqproxy-reader bound to you there") {
					w.Errorf("without %s %s, by SPDY: %v", verb, what, err)
				}
			case "watch pods":
				text := ""
				if err != nil {
					text = err.Error()
				} else if len(warnings) > 0 { // an older API server brings the list first
					text = warnings[0]
				}
				if !strings.HasPrefix(text, "cannot watch pods in namespace kube-system: have the ClusterRole nfqproxy-reader bound to you there") {
					w.Errorf("without %s %s: %q %v", verb, what, warnings, err)
				}
			case "list pods":
				// Newer API servers bring all objects with a watch.
				if err != nil && !strings.HasPrefix(err.Error(), "cannot list pods in namespace kube-system: have the ClusterRole") {
					w.Errorf("without %s %s: %v", verb, what, err)
				}
			default:
				if err == nil || !strings.HasPrefix(err.Error(), "cannot "+verb+" "+what+" in namespace kube-system: have the ClusterRole nfqproxy-reader bound to you there") || !strings.Contains(err.Error(), person) {
					w.Errorf("without %s %s: %v", verb, what, err)
				}
			}
		}
	}
}

// testTokens: which tokens daemons take, and that a token that is no longer valid is replaced.
func (w *world) testTokens() {
	a := w.daemon("node-a")
	accounts := w.Client().CoreV1().ServiceAccounts("kube-system")
	token := func(account, audience string) string {
		w.Helper()
		got, err := accounts.CreateToken(w.Context(), account, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}, metav1.CreateOptions{})
		if err != nil {
			w.Fatal(err)
		}
		return got.Status.Token
	}
	for _, tt := range []struct{ name, token, want string }{
		{"its own", token("nfqproxy-reader", "nfqproxy"), ""},
		{"another account's", token("nfqproxy", "nfqproxy"), "wrong token: it is of system:serviceaccount:kube-system:nfqproxy: want a token of ServiceAccount kube-system/nfqproxy-reader"},
		{"of another audience", token("nfqproxy-reader", "https://kubernetes.default.svc"), "wrong token: it is invalid, expired or for another audience"},
		{"nonsense", "0123456789abcdef", "wrong token: it is invalid"},
	} {
		relay, err := w.open(w.RESTConfig(), Config{Token: tt.token})
		if err != nil {
			w.Fatal(err)
		}
		_, err = relay.Stats(w.Context())
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.want)) {
			w.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
		time.Sleep(time.Second / 2) // a daemon reviews eight tokens a second at most
	}
	// The account is made anew: its tokens are revoked. The API server keeps them for some seconds, and daemons
	// that know them for a minute.
	relay := w.mustOpen(w.RESTConfig())
	if _, err := relay.Stats(w.Context()); err != nil {
		w.Error(err)
	}
	// Reviewed after the one that the relay has, so that the API server keeps it longer.
	revoked := token("nfqproxy-reader", "nfqproxy")
	reviewer := &apiserver.Tokens{Client: w.daemons, Account: types.NamespacedName{Namespace: "kube-system", Name: "nfqproxy-reader"}}
	if wrong, err := reviewer.Review(w.Context(), revoked); wrong != "" || err != nil {
		w.Errorf("%s %v", wrong, err)
	}
	if err := accounts.Delete(w.Context(), "nfqproxy-reader", metav1.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
	w.await("the end of the tokens", func() error {
		wrong, err := reviewer.Review(w.Context(), revoked)
		if err == nil && wrong == "" {
			err = errors.New("the token is valid")
		}
		return err
	})
	b := w.daemon("node-b")
	w.await("the error of a missing account", func() error {
		if got := states(w.T, relay); !strings.Contains(got, "node-b: the daemon does not answer: DaemonSet kube-system/nfqproxy: ServiceAccount kube-system/nfqproxy-reader of the daemons' --flow-api-service-account not found") {
			return errors.New(got)
		}
		return nil
	})
	if _, err := accounts.Create(w.Context(), read[corev1.ServiceAccount](w.T, "reader-serviceaccount"), metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.await("new tokens", func() error {
		if got := states(w.T, relay); got != "node-a\nnode-b" {
			return errors.New(got)
		}
		return nil
	})
	// Daemons that take tokens of another account only.
	c := w.daemonAt("node-c", "127.0.0.1", flowapi.Config{Reviewer: refuser{}})
	w.await("a node that refuses all tokens", func() error {
		if got := states(w.T, relay); !strings.Contains(got, "node-c: the daemon does not answer: DaemonSet kube-system/nfqproxy: pod "+c.pod.Name+" refuses the token: wrong token: no reason") {
			return errors.New(got)
		}
		return nil
	})
	// A daemon that may not have tokens reviewed.
	d := w.daemonAt("node-d", "127.0.0.1", flowapi.Config{Reviewer: &apiserver.Tokens{Client: w.withoutRights()}})
	w.await("a node that cannot check tokens", func() error {
		if got := states(w.T, relay); !strings.Contains(got, "node-d: the daemon does not answer: DaemonSet kube-system/nfqproxy: cannot check the token: the API server does not permit the daemon to create tokenreviews: check the ClusterRole") {
			return errors.New(got)
		}
		return nil
	})
	for _, d := range []*daemon{a, b, c, d} {
		d.delete()
	}
}

// withoutRights is the client of a user without any permissions.
func (w *world) withoutRights() apiserver.Client {
	config := w.RESTConfig()
	config.Impersonate.UserName = "somebody"
	client, err := apiserver.NewClient(config)
	if err != nil {
		w.Fatal(err)
	}
	return client
}

type refuser struct{}

func (refuser) Review(context.Context, string) (string, error) { return "no reason", nil }

// testTokenFile: daemons that have a token of their own.
func (w *world) testTokenFile() {
	a := w.daemonAt("node-a", "127.0.0.1", flowapi.Config{Token: "0123456789abcdef"})
	defer a.delete()
	for token, want := range map[string]string{"0123456789abcdef": "", "fedcba9876543210": "wrong token: want the content of the server's --flow-api-token-file (in a lab: the token that lab status prints)"} {
		relay, err := w.open(w.RESTConfig(), Config{Token: token})
		if err != nil {
			w.Fatal(err)
		}
		if _, err = relay.Stats(w.Context()); want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			w.Errorf("%s: %v, want %s", token, err, want)
		}
	}
}
