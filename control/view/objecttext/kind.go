// Package objecttext prints Kubernetes objects as kubectl get does: as a table, as YAML and as JSON.
package objecttext

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/nearest"
)

// kind is a kind of objects.
type kind struct {
	name       string // "Service"
	apiVersion string
	others     []string // its other names, besides the lower case one and that with an s
	namespaced bool
	columns    []string // after NAMESPACE and NAME
	list       func(*manifest.Objects) []Object
}

// kinds are in the order of the output.
var kinds = []kind{
	{"Service", "v1", []string{"svc"}, true, []string{"TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "SELECTOR"}, services},
	{"EndpointSlice", "discovery.k8s.io/v1", []string{"eps", "ep", "endpoints"}, true, []string{"SERVICE", "PORTS", "ADDRESS", "READY", "SERVING", "TERMINATING", "TARGET", "NODE"}, endpointSlices},
	{"Deployment", "apps/v1", []string{"deploy"}, true, []string{"READY", "SELECTOR"}, deployments},
	{"Pod", "v1", []string{"po"}, true, []string{"READY", "STATUS", "IP", "NODE", "LABELS"}, pods},
	{"Node", "v1", []string{"no"}, false, []string{"STATUS", "INTERNAL-IP", "POD-CIDRS"}, nodes},
}

// Plurals are the names of all kinds as most users write them, for completion.
func Plurals() (names []string) {
	for _, k := range kinds {
		names = append(names, strings.ToLower(k.name)+"s")
	}
	return names
}

// KindOf is the name of the kind that a user means: in any case, with an s, or short.
func KindOf(text string) (string, error) {
	lower := strings.ToLower(text)
	for _, k := range kinds {
		if one := strings.ToLower(k.name); lower == one || lower == one+"s" || slices.Contains(k.others, lower) {
			return k.name, nil
		}
	}
	return "", fmt.Errorf("no kind %q%s: want one of %s (or svc, eps, deploy, po, no)", text, nearest.Hint(lower, Plurals()), strings.Join(Plurals(), ", "))
}

// Object is one object.
type Object struct {
	metav1.Object // with its apiVersion and kind
	kind          string
	// rows are the columns of its kind: one line, or one for each of its parts.
	rows [][]string
}

// Selection selects the objects to print.
type Selection struct {
	Kinds     []string // names as KindOf returns them; none: all
	Namespace string   // empty: all
	Name      string   // NAME or NAMESPACE/NAME; empty: all
}

// Select returns the selected objects, in the order of the kinds. An error is that no object has the name.
func Select(o *manifest.Objects, s Selection) (all []Object, err error) {
	var names []string
	for _, k := range kinds {
		if len(s.Kinds) > 0 && !slices.Contains(s.Kinds, k.name) {
			continue
		}
		for _, object := range k.list(o) {
			if k.namespaced && s.Namespace != "" && object.GetNamespace() != s.Namespace {
				continue
			}
			full := strings.TrimPrefix(object.GetNamespace()+"/"+object.GetName(), "/")
			names = append(names, full)
			if s.Name == "" || s.Name == full || s.Name == object.GetName() {
				object.kind = k.name
				object.Object.(schema.ObjectKind).SetGroupVersionKind(schema.FromAPIVersionAndKind(k.apiVersion, k.name))
				all = append(all, object)
			}
		}
	}
	switch {
	case s.Name == "" || len(all) > 0:
	case len(names) == 0:
		return nil, fmt.Errorf("no %s %q: there are none", strings.Join(s.Kinds, " or "), s.Name)
	default:
		return nil, fmt.Errorf("no %s %q%s; there are: %s", strings.Join(s.Kinds, " or "), s.Name, nearest.Hint(s.Name, names), nearest.Few(names))
	}
	return all, nil
}
