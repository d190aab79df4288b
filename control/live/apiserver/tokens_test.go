package apiserver

import (
	"errors"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nfqproxy/nfqproxy/control/live/apiserver/apiservertest"
)

// TestReview: a token is valid if it is of the account and for nfqproxy, whatever kind of API server reviews it.
func TestReview(t *testing.T) {
	const account = "system:serviceaccount:kube-system:nfqproxy-reader"
	for _, tt := range []struct {
		name   string
		status authenticationv1.TokenReviewStatus
		err    error
		want   string // what is wrong; empty: nothing
	}{
		{"valid", authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: account}, Audiences: []string{"nfqproxy"}}, nil, ""},
		{"not authenticated", authenticationv1.TokenReviewStatus{User: authenticationv1.UserInfo{Username: account}, Audiences: []string{"nfqproxy"}}, nil, "it is invalid, expired or for another audience: want a token of ServiceAccount kube-system/nfqproxy-reader with audience nfqproxy"},
		{"an API server that knows no audiences", authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: account}}, nil, "it is for another audience"},
		{"another audience", authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: account}, Audiences: []string{"api"}}, nil, "it is for another audience"},
		{"another account", authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: account + "-2"}, Audiences: []string{"nfqproxy"}}, nil, "it is of " + account + "-2: want"},
		{"a user", authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "jane"}, Audiences: []string{"nfqproxy"}}, nil, "it is of jane: want"},
		{"no answer", authenticationv1.TokenReviewStatus{}, errors.New("connection refused"), ""},
	} {
		client := fake.NewClientset()
		var sent *authenticationv1.TokenReview
		client.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
			sent = a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
			return true, &authenticationv1.TokenReview{Status: tt.status}, tt.err
		})
		wrong, err := (&Tokens{Client: apiservertest.Client{Interface: client}, Account: types.NamespacedName{Namespace: "kube-system", Name: "nfqproxy-reader"}}).Review(t.Context(), "secret")
		if !errors.Is(err, tt.err) || (wrong == "") != (tt.want == "") || !strings.HasPrefix(wrong, tt.want) {
			t.Errorf("%s: %q, %v; want %q", tt.name, wrong, err, tt.want)
		}
		if sent.Spec.Token != "secret" || len(sent.Spec.Audiences) != 1 || sent.Spec.Audiences[0] != "nfqproxy" {
			t.Errorf("%s: sent %+v", tt.name, sent.Spec)
		}
	}
}

func TestParseAccount(t *testing.T) {
	for s, want := range map[string]types.NamespacedName{
		"kube-system/nfqproxy-reader": {Namespace: "kube-system", Name: "nfqproxy-reader"}, "a/b.c": {Namespace: "a", Name: "b.c"},
		"": {}, "nfqproxy": {}, "/x": {}, "x/": {}, "a/b/c": {}, "a/B": {}, "a b/c": {}, "a/b:c": {},
	} {
		if got, err := ParseAccount(s); got != want || (err == nil) != (want != types.NamespacedName{}) {
			t.Errorf("%q: %v, %v; want %v", s, got, err, want)
		}
	}
}
