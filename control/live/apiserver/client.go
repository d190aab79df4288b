package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
)

// Client is the part of the Kubernetes API that the daemon uses. It is safe for concurrent use.
type Client interface {
	// ListWatch lists and watches the objects of a resource ("services") in all namespaces, those that the label and field
	// selectors select.
	ListWatch(resource, labels, fields string) cache.ListerWatcher
	CreateEvent(ctx context.Context, event *eventsv1.Event) error
	// PatchEvent applies a strategic merge patch.
	PatchEvent(ctx context.Context, namespace, name string, patch []byte) error
	ReviewToken(ctx context.Context, review *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error)
}

// restClient is the Client of an API server. It is not a kubernetes.Clientset, which links the types of all API groups and
// makes the daemon larger by half.
type restClient struct{ core, discovery, events, authentication rest.Interface }

// NewClient returns the client of an API server.
func NewClient(config *rest.Config) (Client, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, eventsv1.AddToScheme, authenticationv1.AddToScheme} {
		utilruntime.Must(add(scheme))
	}
	common := *config
	common.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	if common.QPS > 0 {
		if common.Burst <= 0 {
			return nil, fmt.Errorf("client of API server %s: burst %d with %g requests per second: want 1 or more", config.Host, config.Burst, config.QPS)
		}
		common.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(common.QPS, common.Burst) // one for all groups
	}
	transport, err := rest.HTTPClientFor(&common)
	c := &restClient{}
	for _, group := range []struct {
		version schema.GroupVersion
		path    string
		client  *rest.Interface
	}{
		{corev1.SchemeGroupVersion, "/api", &c.core},
		{discoveryv1.SchemeGroupVersion, "/apis", &c.discovery},
		{eventsv1.SchemeGroupVersion, "/apis", &c.events},
		{authenticationv1.SchemeGroupVersion, "/apis", &c.authentication},
	} {
		if err == nil {
			own := common
			own.GroupVersion, own.APIPath = &group.version, group.path
			*group.client, err = rest.RESTClientForConfigAndClient(&own, transport)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("client of API server %s: %w", config.Host, err)
	}
	return c, nil
}

func (c *restClient) ListWatch(resource, labels, fields string) cache.ListerWatcher {
	client := c.core
	if resource == "endpointslices" {
		client = c.discovery
	}
	return cache.NewFilteredListWatchFromClient(client, resource, metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.LabelSelector, o.FieldSelector = labels, fields
	})
}

func (c *restClient) CreateEvent(ctx context.Context, event *eventsv1.Event) error {
	return c.events.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(ctx).Error()
}

func (c *restClient) PatchEvent(ctx context.Context, namespace, name string, patch []byte) error {
	return c.events.Patch(types.StrategicMergePatchType).Namespace(namespace).Resource("events").Name(name).Body(patch).Do(ctx).Error()
}

func (c *restClient) ReviewToken(ctx context.Context, review *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
	answer := new(authenticationv1.TokenReview)
	return answer, c.authentication.Post().Resource("tokenreviews").Body(review).Do(ctx).Into(answer)
}

// TokenAudience is the audience of tokens for nfqproxy. A token with another one is for another
// service, and may not be used here; one of the API server's cannot be used there by nfqproxy.
const TokenAudience = "nfqproxy"

// ParseAccount parses NAMESPACE/NAME of a ServiceAccount.
func ParseAccount(s string) (account types.NamespacedName, err error) {
	namespace, name, ok := strings.Cut(s, "/")
	if !ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return account, fmt.Errorf("%q: want NAMESPACE/NAME of a ServiceAccount", s)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

// Tokens checks tokens of a ServiceAccount. It is safe for concurrent use.
type Tokens struct {
	Client  Client
	Account types.NamespacedName
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
	// The account's name as a user: MakeUsername in k8s.io/apiserver/pkg/authentication/serviceaccount.
	user := "system:serviceaccount:" + t.Account.Namespace + ":" + t.Account.Name
	status, want := &review.Status, fmt.Sprintf("want a token of ServiceAccount %s with audience %s (kubectl create token)", t.Account, TokenAudience)
	switch {
	case !status.Authenticated:
		return "it is invalid, expired or for another audience: " + want, nil
	// An API server without support for audiences reviews for its own ones.
	case !slices.Contains(status.Audiences, TokenAudience):
		return "it is for another audience: " + want, nil
	case status.User.Username != user:
		return "it is of " + status.User.Username + ": " + want, nil
	}
	return "", nil
}
