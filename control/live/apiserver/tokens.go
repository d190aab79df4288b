package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
)

// TokenAudience is the audience of tokens for nfqproxy. A token with another one is for another
// service, and may not be used here; one of the API server's cannot be used there by nfqproxy.
const TokenAudience = "nfqproxy"

// Account is a ServiceAccount.
type Account struct{ Namespace, Name string }

// ParseAccount parses NAMESPACE/NAME.
func ParseAccount(s string) (a Account, err error) {
	namespace, name, ok := strings.Cut(s, "/")
	if !ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return a, fmt.Errorf("%q: want NAMESPACE/NAME of a ServiceAccount", s)
	}
	return Account{namespace, name}, nil
}

// String returns NAMESPACE/NAME.
func (a Account) String() string { return a.Namespace + "/" + a.Name }

// user is the account's name as a user (MakeUsername in k8s.io/apiserver/pkg/authentication/serviceaccount).
func (a Account) user() string { return "system:serviceaccount:" + a.Namespace + ":" + a.Name }

// Tokens checks tokens of a ServiceAccount. It is safe for concurrent use.
type Tokens struct {
	Client  Client
	Account Account
}

// Review has the API server check a token: it returns why the token is wrong; empty: it is one of the
// account, for [TokenAudience]. The error is the API server's, which cannot be reached or does not
// permit reviews.
func (t *Tokens) Review(ctx context.Context, token string) (wrong string, err error) {
	review, err := t.Client.ReviewToken(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{TokenAudience}},
	})
	switch {
	case apierrors.IsForbidden(err):
		return "", errors.New("the API server does not permit the daemon to create tokenreviews: check the ClusterRole of its ServiceAccount")
	case err != nil:
		return "", fmt.Errorf("the API server does not answer: %w", err)
	}
	status, want := &review.Status, fmt.Sprintf("want a token of ServiceAccount %s with audience %s (kubectl create token)", t.Account, TokenAudience)
	switch {
	case !status.Authenticated:
		return "it is invalid, expired or for another audience: " + want, nil
	// An API server without support for audiences reviews for its own ones.
	case !slices.Contains(status.Audiences, TokenAudience):
		return "it is for another audience: " + want, nil
	case status.User.Username != t.Account.user():
		return "it is of " + status.User.Username + ": " + want, nil
	}
	return "", nil
}
