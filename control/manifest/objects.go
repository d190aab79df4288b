// Package manifest reads Kubernetes objects from files: manifests as people
// write them, and what kubectl prints with -o yaml or -o json.
//
// Reading is strict, because a service table built from half-understood
// manifests would lie: an unknown field, a duplicate key or a bad address is an
// error that names file, document, object and field. [Load] reads once,
// [Source] keeps reading as the files change.
//
// It is a ground package.
package manifest

import (
	"cmp"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/labapi"
)

// Objects are the objects of files, with the API server's defaults filled in. Each list is sorted by namespace and name and
// holds a namespace and name only once. The Warnings are about fields that were left out: those that an API server knows and
// this program does not.
type Objects struct {
	kube.Objects

	// Deployments are a running lab's, or those read with [Options].Deployments.
	Deployments []*appsv1.Deployment

	// Templates are of the objects that have Pods made, if they were read: see [Options].Context.
	Templates []*Template

	// Made lists what Complete has invented; nil: it was not called.
	Made *Made

	// Assumed are the objects whose file names no namespace, so that it is "default" here, as "Service default/web".
	// It is valid iff the Context is.
	Assumed map[string]bool

	// Lab is the lab that the objects are of; nil: they are of none.
	Lab Lab `json:"-"`

	// Notes, one line each, are about how objects were read: what stands for something that is missing.
	Notes []string

	// Skipped counts the objects of other kinds, sorted by kind and apiVersion.
	Skipped []Skipped
	// Files are the files that were read, in the order they were read. None
	// means that only directories without manifests were given.
	Files []string
}

// Lab describes a lab's machines, as far as objects do not. Package labfile defines it.
type Lab interface {
	LabPods() []labapi.Pod
	LabClients() []labapi.Client
	// NodePorts are the ports that a node serves on its own addresses.
	NodePorts(node string) []labapi.Port
}

// YAML is the text of the objects as a manifest; see [kube.Objects.YAML].
func (o *Objects) YAML() (string, error) {
	text, err := o.Objects.YAML()
	if err != nil || len(o.Deployments) == 0 {
		return text, err
	}
	more, err := kube.YAML(appsv1.SchemeGroupVersion.WithKind("Deployment"), o.Deployments)
	if text != "" {
		text += kube.Separator
	}
	return text + more, err
}

// Skipped counts the objects of one kind that services do not depend on.
type Skipped struct {
	APIVersion string
	Kind       string
	Count      int
}

// Empty reports whether there is no object of a kept kind, which is allowed but
// rarely what was meant.
func (o *Objects) Empty() bool {
	return len(o.Services)+len(o.EndpointSlices)+len(o.Endpoints)+len(o.Nodes)+len(o.Pods)+len(o.Templates) == 0
}

// named is what all kept kinds have.
type named interface {
	GetNamespace() string
	GetName() string
	GetUID() types.UID
	GetResourceVersion() string
	GetCreationTimestamp() metav1.Time
}

func compareNames[T named](a, b T) int {
	return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
}

// sort puts everything but Files, which has its order already, in the
// documented order.
func (o *Objects) sort() {
	slices.SortFunc(o.Services, compareNames)
	slices.SortFunc(o.EndpointSlices, compareNames)
	slices.SortFunc(o.Endpoints, compareNames)
	slices.SortFunc(o.Nodes, compareNames)
	slices.SortFunc(o.Pods, compareNames)
	slices.SortFunc(o.Deployments, compareNames)
	slices.SortFunc(o.Context.NetworkPolicies, compareNames)
	slices.SortFunc(o.Context.Namespaces, compareNames)
	slices.SortFunc(o.Context.ServiceCIDRs, compareNames)
	slices.SortFunc(o.Templates, func(a, b *Template) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	slices.SortFunc(o.Skipped, func(a, b Skipped) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.APIVersion, b.APIVersion))
	})
}

// skip counts one object of another kind.
func (o *Objects) skip(t typeName) {
	for i := range o.Skipped {
		if s := &o.Skipped[i]; s.APIVersion == t.apiVersion && s.Kind == t.kind {
			s.Count++
			return
		}
	}
	o.Skipped = append(o.Skipped, Skipped{APIVersion: t.apiVersion, Kind: t.kind, Count: 1})
}
