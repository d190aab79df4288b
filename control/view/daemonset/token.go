package daemonset

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/control/live/apiserver"
)

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
