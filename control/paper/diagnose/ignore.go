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
	noteIgnored(ignored, "Service", objects.Services)
	noteIgnored(ignored, "Pod", objects.Pods)
	noteIgnored(ignored, "Node", objects.Nodes)
	noteIgnored(ignored, "NetworkPolicy", objects.Context.NetworkPolicies)
	return ignored
}

func noteIgnored[T metav1.Object](ignored map[string]string, kind string, list []T) {
	for _, o := range list {
		if codes := o.GetAnnotations()[IgnoreAnnotation]; codes != "" {
			ignored[kind+" "+strings.TrimPrefix(nameOf(o).String(), "/")] = codes
		}
	}
}

// Ignore sets why a finding is intended, if its object has the annotation with its code.
func (c *Cluster) Ignore(f *Finding) {
	codes, ok := c.ignored[f.Object]
	if ok && slices.ContainsFunc(strings.Split(codes, ","), func(code string) bool { return strings.TrimSpace(code) == string(f.Code) }) {
		f.Ignored = fmt.Sprintf("annotation %s of %s", IgnoreAnnotation, f.Object)
	}
}
