package findings

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
)

// Manifest returns a Service with its EndpointSlices.
func (d *Doctor) Manifest(ctx context.Context, namespace, name string) (*observe.Manifest, error) {
	if d.Objects == nil {
		return nil, &observe.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("the objects of the cluster are not known here: use kubectl get service,endpointslice -n %s -o yaml", namespace)}
	}
	objects, _, err := d.Objects(ctx)
	if err != nil {
		return nil, err
	}
	answer := &observe.Manifest{Service: namespace + "/" + name}
	add := func(kind metav1.TypeMeta, object runtime.Object) {
		if err != nil {
			return
		}
		var text []byte
		if text, err = plain(kind, object); err == nil {
			answer.YAML += separator(answer.YAML) + string(text)
		}
	}
	for _, s := range objects.Services {
		if s.Namespace == namespace && s.Name == name {
			add(metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, s)
		}
	}
	if answer.YAML == "" && err == nil {
		return nil, &observe.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("Service %s/%s not found", namespace, name)}
	}
	slicesOf := slices.DeleteFunc(slices.Clone(objects.EndpointSlices), func(e *discoveryv1.EndpointSlice) bool {
		return e.Namespace != namespace || e.Labels[discoveryv1.LabelServiceName] != name
	})
	slices.SortFunc(slicesOf, func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	for _, e := range slicesOf {
		add(metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, e)
	}
	return answer, err
}

func separator(before string) string {
	if before == "" {
		return ""
	}
	return "---\n"
}

// plain is an object as people write it: what an API server adds to each one is left out, and so are
// empty fields that Kubernetes' types always write.
func plain(kind metav1.TypeMeta, object runtime.Object) ([]byte, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	fields["apiVersion"], fields["kind"] = kind.APIVersion, kind.Kind
	if meta, ok := fields["metadata"].(map[string]any); ok {
		for _, field := range []string{"managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink"} {
			delete(meta, field)
		}
	}
	if status, ok := fields["status"].(map[string]any); ok {
		if balancer, ok := status["loadBalancer"].(map[string]any); ok && len(balancer) == 0 {
			delete(status, "loadBalancer")
		}
		if len(status) == 0 {
			delete(fields, "status")
		}
	}
	return yaml.Marshal(fields)
}
