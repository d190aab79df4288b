package diagnose

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/manifest"
)

// IgnoreAnnotation is the annotation of an object with the codes of findings about it that are intended, separated by
// commas: a Service that has no endpoints on purpose, for example.
const IgnoreAnnotation = "nfqproxy.io/ignore-findings"

// ignoredIn are the values of the annotation, by the object as in [Finding].
func ignoredIn(objects *manifest.Objects) map[string]string {
	ignored := make(map[string]string)
	note := func(kind string, o metav1.Object) {
		codes := o.GetAnnotations()[IgnoreAnnotation]
		if codes == "" {
			return
		}
		object := o.GetName()
		if o.GetNamespace() != "" {
			object = o.GetNamespace() + "/" + object
		}
		ignored[kind+" "+object] = codes
	}
	for _, o := range objects.Services {
		note("Service", o)
	}
	for _, o := range objects.Pods {
		note("Pod", o)
	}
	for _, o := range objects.Nodes {
		note("Node", o)
	}
	for _, o := range objects.Context.NetworkPolicies {
		note("NetworkPolicy", o)
	}
	return ignored
}

// Ignore sets why a finding is intended, if its object has the annotation with its code.
func (c *Cluster) Ignore(f *Finding) {
	codes, ok := c.ignored[f.Object]
	if ok && slices.ContainsFunc(strings.Split(codes, ","), func(code string) bool { return strings.TrimSpace(code) == string(f.Code) }) {
		f.Ignored = fmt.Sprintf("annotation %s of %s", IgnoreAnnotation, f.Object)
	}
}
