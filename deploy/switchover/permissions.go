package switchover

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// right is what the user needs for one resource.
type right struct {
	group, resource, namespace string
	verbs                      []string
}

func (r right) String() string {
	text := strings.Join(r.verbs, ", ") + " " + r.resource
	if r.group != "" {
		text += "." + r.group
	}
	if r.namespace != "" {
		text += " in " + r.namespace
	}
	return text
}

// The rights that the two ways need, and those to install an observing nfqproxy and to remove it.
var (
	switching = []right{
		{"", "nodes", "", []string{"list", "patch"}},
		{"", "pods", namespace, []string{"create", "delete", "get", "list"}},
	}
	// both are what both ways need of kinds of the manifests.
	both = map[string][]string{"DaemonSet": {"get", "patch"}, "ConfigMap": {"get"}}

	installing   = rights(switching, both, "get", "create", "patch")
	uninstalling = rights(switching, both, "delete")
	observing    = rights([]right{{"", "nodes", "", []string{"list"}}, {"", "pods", namespace, []string{"list"}}}, nil, "get", "create", "patch")
	removing     = rights(nil, map[string][]string{"DaemonSet": {"get"}}, "delete")
)

// rights are a list, and verbs for the kinds of the manifests: those of each kind, and those of all.
func rights(of []right, kinds map[string][]string, all ...string) []right {
	list := slices.Clone(of)
	for _, kind := range slices.Sorted(maps.Keys(resources)) {
		r := right{resources[kind].Group, resources[kind].Resource, namespace, slices.Clone(kinds[kind])}
		if strings.HasPrefix(kind, "Cluster") {
			r.namespace = ""
		}
		for _, verb := range all {
			if !slices.Contains(r.verbs, verb) {
				r.verbs = append(r.verbs, verb)
			}
		}
		slices.Sort(r.verbs)
		list = append(list, r)
	}
	return list
}

// checkPermissions returns one error with all rights that the user lacks.
func (s *Switch) checkPermissions(ctx context.Context, wanted []right) error {
	var missing []string
	for _, r := range wanted {
		lacks := right{r.group, r.resource, r.namespace, nil}
		for _, verb := range r.verbs {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Group: r.group, Resource: r.resource, Namespace: r.namespace, Verb: verb},
			}}
			got, err := s.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("API server %s: check permissions: %w", s.Config.Host, err)
			}
			if !got.Status.Allowed {
				lacks.verbs = append(lacks.verbs, verb)
			}
		}
		if len(lacks.verbs) > 0 {
			missing = append(missing, lacks.String())
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("permissions are missing, nothing was changed: %s", strings.Join(missing, "; "))
	}
	return nil
}
