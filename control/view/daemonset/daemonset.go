// Package daemonset observes a whole cluster: it finds the pods of nfqproxy's DaemonSet, connects to the
// flow API of each through the API server, and shows all nodes as one.
package daemonset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nfqproxy/nfqproxy/control/live/apiserver"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
)

// The DaemonSet of the manifests in deploy/kubernetes.
const (
	DefaultNamespace = "kube-system"
	DefaultName      = "nfqproxy"
)

// reader is the ClusterRole of the manifests that permits all requests of this package but those of
// pods/proxy.
const reader = "nfqproxy-reader"

// Config configures Open.
type Config struct {
	// REST is the connection to the API server.
	REST *rest.Config
	// Namespace and Name are the DaemonSet's; empty: the defaults.
	Namespace, Name string
	// Token is the daemons' token; empty: tokens of the ServiceAccount of the daemons' flag
	// --flow-api-service-account, made as needed.
	Token string
	// Warn reports what keeps the view from being complete and is no error of a request; nil: it is not
	// reported. It may be called at any time until the context of Open ends.
	Warn  func(text string)
	Relay remote.RelayOptions
}

// startTimeout bounds the requests of Open.
const startTimeout = 30 * time.Second

// Names lists the DaemonSets of all namespaces, as NAMESPACE/NAME.
func Names(ctx context.Context, config *rest.Config) (names []string, err error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	sets, err := client.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, s := range sets.Items {
		names = append(names, s.Namespace+"/"+s.Name)
	}
	return names, nil
}

// Open returns an Observer of all nodes on which the DaemonSet has a pod, until the context ends: nodes
// come and go with their pods. A node without a pod that runs stays a member, and is unreachable; a minute
// after its last pod was deleted it is none any more. Errors name the DaemonSet, the pod or the missing
// permission.
func Open(ctx context.Context, c Config) (*remote.Relay, error) {
	c.Namespace, c.Name = cmp.Or(c.Namespace, DefaultNamespace), cmp.Or(c.Name, DefaultName)
	if c.Warn == nil {
		c.Warn = func(string) {}
	}
	config := rest.CopyConfig(c.REST)
	config.QPS = -1 // there are few requests, and none in a loop
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of API server %s: %w", config.Host, err)
	}
	s := &set{Config: c, client: client, forget: forgetAfter, nodes: make(map[string]*node), changed: make(chan struct{}, 1)}
	starting, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("API server %s: no answer within %s", config.Host, startTimeout))
	defer cancel()
	object, err := s.get(starting)
	if err != nil {
		return nil, err
	}
	if s.tokens, err = s.newTokens(object); err != nil {
		return nil, err
	}
	if _, err := s.tokens.get(starting); err != nil {
		return nil, err
	}
	forward, err := s.newForwarder(config)
	if err != nil {
		return nil, err
	}
	if s.channels, err = newChannels(forward, config); err != nil {
		return nil, err
	}
	if err := s.watch(ctx, starting, object); err != nil {
		return nil, err
	}
	members := s.members(time.Now())
	if len(members) == 0 {
		return nil, fmt.Errorf("DaemonSet %s has no pods, and wants %d: check its node selector (kubectl -n %s describe daemonset %s)", s.name(), object.Status.DesiredNumberScheduled, c.Namespace, c.Name)
	}
	if wanted := int(object.Status.DesiredNumberScheduled); wanted > len(members) {
		c.Warn(fmt.Sprintf("DaemonSet %s wants pods on %d nodes and has them on %d: the others are not shown (kubectl -n %s describe daemonset %s)", s.name(), wanted, len(members), c.Namespace, c.Name))
	}
	relay, err := remote.NewRelay(members, c.Relay)
	if err != nil {
		return nil, err
	}
	go s.follow(ctx, relay)
	return relay, nil
}

// set is the DaemonSet.
type set struct {
	Config
	client   kubernetes.Interface
	tokens   *tokens
	channels *channels
	forget   time.Duration
	pods     podList
	nodes    map[string]*node // used by one goroutine
	changed  chan struct{}    // has an element when pods have changed
}

func (s *set) name() string { return s.Namespace + "/" + s.Name }

func (s *set) get(ctx context.Context) (*appsv1.DaemonSet, error) {
	object, err := s.client.AppsV1().DaemonSets(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return nil, s.forbidden("get", "daemonsets", err)
	case apierrors.IsNotFound(err):
		return nil, &missing{fmt.Sprintf("DaemonSet %s not found: name nfqproxy's with --daemonset NAMESPACE/NAME, or install it (deploy/kubernetes)", s.name())}
	case err != nil:
		return nil, s.failed(ctx, err)
	}
	return object, nil
}

// missing is the error for a cluster without the DaemonSet.
type missing struct{ text string }

func (e *missing) Error() string { return e.text }

// Missing reports whether the error of Open is that the cluster has no such DaemonSet.
func Missing(err error) bool {
	_, ok := errors.AsType[*missing](err)
	return ok
}

// Unavailable reports whether the error of Open is that there is nothing to observe for this user: the DaemonSet is
// missing, or a permission.
func Unavailable(err error) bool {
	denied, ok := errors.AsType[*observe.Error](err)
	return Missing(err) || ok && denied.Status == http.StatusForbidden
}

// failed describes an error of the API server.
func (s *set) failed(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return fmt.Errorf("API server %s: %w", s.REST.Host, err)
}

// forbidden is the error of a missing permission. It is that of a request for all nodes, not of one node.
func (s *set) forbidden(verb, resource string, err error) error {
	return &observe.Error{Status: http.StatusForbidden, Message: fmt.Sprintf("cannot %s %s in namespace %s: have the ClusterRole %s bound to you there (deploy/kubernetes/README.md): %v", verb, resource, s.Namespace, reader, err)}
}

// newTokens returns the tokens of the Config or of the account that the daemons take tokens of.
func (s *set) newTokens(object *appsv1.DaemonSet) (*tokens, error) {
	if s.Token != "" {
		return &tokens{set: s}, nil
	}
	account := flagOf(&object.Spec.Template.Spec, "flow-api-service-account")
	if account == "" {
		return nil, fmt.Errorf("the daemons of DaemonSet %s take no tokens of a ServiceAccount: start them with --flow-api-service-account and an ADDRESS:PORT in --flow-api, as deploy/kubernetes does", s.name())
	}
	a, err := apiserver.ParseAccount(account)
	if err != nil {
		return nil, fmt.Errorf("DaemonSet %s: --flow-api-service-account %w", s.name(), err)
	}
	return &tokens{set: s, account: a}, nil
}

// Lifetimes of tokens. They are as short as is practical: API servers give none of less than ten minutes.
const (
	tokenLifetime = time.Hour
	tokenTimeout  = 15 * time.Second // of a request for one
)

// tokens gives the daemons' token: that of the Config or, without it, those of a ServiceAccount.
type tokens struct {
	set     *set
	account types.NamespacedName

	mu    sync.Mutex
	token string
	// until is when the token is replaced: well before it expires.
	until time.Time
}

// get returns a valid token.
func (t *tokens) get(ctx context.Context) (string, error) {
	if t.set.Token != "" {
		return t.set.Token, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token != "" && time.Now().Before(t.until) {
		return t.token, nil
	}
	// Others wait for the same token: the end of this request does not end theirs.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), tokenTimeout, errors.New("no answer within "+tokenTimeout.String()))
	defer cancel()
	lifetime := int64(tokenLifetime / time.Second)
	now := time.Now()
	made, err := t.set.client.CoreV1().ServiceAccounts(t.account.Namespace).CreateToken(ctx, t.account.Name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{apiserver.TokenAudience}, ExpirationSeconds: &lifetime},
	}, metav1.CreateOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return "", t.set.forbidden("create", "serviceaccounts/token", err)
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("ServiceAccount %s of the daemons' --flow-api-service-account not found: create it (deploy/kubernetes/base/reader-serviceaccount.yaml)", t.account)
	case err != nil:
		return "", t.set.failed(ctx, err)
	}
	t.token = made.Status.Token
	t.until = now.Add(made.Status.ExpirationTimestamp.Sub(now) * 4 / 5)
	return t.token, nil
}

// refused notes that a daemon does not take a token, and reports whether there may be another one.
func (t *tokens) refused(token string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token == token {
		t.token = ""
	}
	return t.set.Token == ""
}
