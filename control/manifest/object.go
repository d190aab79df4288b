package manifest

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"errors"
	"fmt"
	"path/filepath"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/yamlfile"
	appsv1 "k8s.io/api/apps/v1"
)

// object decodes, defaults, validates and keeps one object.
func (l *loader) object(at Place, t typeName, m map[string]any, duplicates []string) {
	switch t {
	case typeName{"v1", "Service"}:
		keep(l, at, t, m, duplicates, &l.objects.Services, defaultService, validateService)
	case typeName{"discovery.k8s.io/v1", "EndpointSlice"}:
		keep(l, at, t, m, duplicates, &l.objects.EndpointSlices, defaultEndpointSlice, validateEndpointSlice)
	case typeName{"v1", "Endpoints"}:
		keep(l, at, t, m, duplicates, &l.objects.Endpoints, defaultEndpoints, validateEndpoints)
	case typeName{"v1", "Node"}:
		keep(l, at, t, m, duplicates, &l.objects.Nodes, nil, validateNode)
	case typeName{"v1", "Pod"}:
		validate := validatePod
		if l.Deployments {
			validate = func(o *corev1.Pod, v *validation) { l.check(o, v) }
		}
		keep(l, at, t, m, duplicates, &l.objects.Pods, func(o *corev1.Pod) { defaultPod(&o.Spec) }, validate)
	case deploymentType:
		if !l.Deployments {
			l.other(at, t, m, duplicates)
			return
		}
		keep(l, at, t, m, duplicates, &l.objects.Deployments, nil, func(o *appsv1.Deployment, v *validation) { l.check(o, v) })
	default:
		if l.extension == nil || !l.extend(at, t, m, duplicates) {
			l.other(at, t, m, duplicates)
		}
	}
}

func (l *loader) check(object any, v *validation) {
	if l.extension != nil {
		v.errs = append(v.errs, l.extension.Check(object)...)
	}
}

// extend takes an object for the extension, if it is of one of its kinds.
func (l *loader) extend(at Place, t typeName, m map[string]any, duplicates []string) bool {
	r, ok := l.extension.Read(at, t.apiVersion, t.kind, m)
	if !ok {
		return false
	}
	at.Object = t.kind
	for _, path := range duplicates {
		l.fail(at, path, errDuplicate)
	}
	l.failAll(at, r.Errs)
	l.objects.Warnings = append(l.objects.Warnings, r.Warnings...)
	for _, path := range r.Further {
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(at.File), path)
		}
		l.further = append(l.further, path)
	}
	return true
}

// other takes an object that the service table does not depend on.
func (l *loader) other(at Place, t typeName, m map[string]any, duplicates []string) {
	switch {
	case l.Context && t.hasTemplate():
		l.template(at, t, m, duplicates)
	case l.Context && t.isContext() && l.keepContext(at, t, m, duplicates):
	case nearest.Name(t.kind, kindsOf[t.apiVersion]) != "":
		l.fail(at, "kind", fmt.Errorf("%s has no kind %q%s", t.apiVersion, t.kind, nearest.Hint(t.kind, kindsOf[t.apiVersion])))
	default:
		l.objects.skip(t)
	}
}

// kindsOf are the kinds that service tables depend on: no other kind of their apiVersions has a name that is near.
var kindsOf = map[string][]string{"v1": {"Service", "Endpoints", "Node", "Pod", "List"}, "discovery.k8s.io/v1": {"EndpointSlice"}}

// keepContext takes an object of Objects.Context. It returns false for one that is of no interest.
func (l *loader) keepContext(at Place, t typeName, m map[string]any, duplicates []string) bool {
	c := &l.objects.Context
	switch t.kind {
	case "NetworkPolicy":
		keep(l, at, t, m, duplicates, &c.NetworkPolicies, nil, nil)
	case "ServiceCIDR":
		keep(l, at, t, m, duplicates, &c.ServiceCIDRs, nil, nil)
	case "Namespace":
		keep(l, at, t, m, duplicates, &c.Namespaces, nil, nil)
	case "ConfigMap":
		if metadata, _ := m["metadata"].(map[string]any); metadata["name"] != kube.KubeProxyConfigMap || metadata["namespace"] != metav1.NamespaceSystem {
			return false
		}
		if o, ok := add[corev1.ConfigMap](l, at, t, m, duplicates, nil, nil); ok {
			c.KubeProxy = o
		}
	}
	return true
}

// kind is a pointer to one of the kept kinds.
type kind[T any] interface {
	*T
	named
	SetNamespace(string)
}

// keep adds an object to a list, unless something is wrong with it.
func keep[T any, P kind[T]](l *loader, at Place, t typeName, m map[string]any, duplicates []string, list *[]P, defaults func(P), validate func(P, *validation)) {
	if o, ok := add(l, at, t, m, duplicates, defaults, validate); ok {
		*list = append(*list, o)
	}
}

// add does for one object what is the same for all kinds. The functions may be nil. It returns false if the
// object is not to be kept because something is wrong with it.
func add[T any, P kind[T]](l *loader, at Place, t typeName, m map[string]any, duplicates []string, defaults func(P), validate func(P, *validation)) (P, bool) {
	before := len(l.errs)
	o := P(new(T))
	errs := l.decoder.Decode(m, o)
	namespaced := t.namespaced()
	assumed := namespaced && o.GetNamespace() == ""
	if assumed {
		o.SetNamespace(cmp.Or(l.namespace, "default"))
	}
	switch {
	case o.GetName() == "":
		at.Object = t.kind
	case namespaced:
		at.Object = t.kind + " " + o.GetNamespace() + "/" + o.GetName()
	default:
		at.Object = t.kind + " " + o.GetName()
	}
	if assumed && l.Context {
		if l.objects.Assumed == nil {
			l.objects.Assumed = make(map[string]bool)
		}
		l.objects.Assumed[at.Object] = true
	}
	for _, path := range duplicates {
		l.fail(at, path, errDuplicate)
	}
	for _, e := range errs {
		// Who writes an object misspells fields; an API server, which gives each object its
		// UID, is newer than this program.
		if unknown, ok := errors.AsType[*yamlfile.UnknownField](e.Err); ok && unknown.Meant == "" && o.GetUID() != "" {
			l.leftOut(at, t.kind, e.Field)
			continue
		}
		l.fail(at, e.Field, e.Err)
	}
	if len(l.errs) > before {
		// What did not decode would only be complained about again.
		return o, false
	}

	if defaults != nil {
		defaults(o)
	}
	var v validation
	v.name(o)
	if validate != nil {
		validate(o, &v)
	}
	l.failAll(at, v.errs)
	if o.GetName() != "" {
		if first, ok := l.defined[at.Object]; ok {
			l.fail(at, "", fmt.Errorf("is already defined in %s", first))
		} else {
			l.defined[at.Object] = at
		}
	}
	return o, len(l.errs) == before
}
