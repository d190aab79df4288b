package findings

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
)

// Manifest returns a Service with its EndpointSlices.
func (d *Doctor) Manifest(ctx context.Context, namespace, name string) (*remote.Manifest, error) {
	if d.Objects == nil {
		return nil, &observe.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("the objects of the cluster are not known here: use kubectl get service,endpointslice -n %s -o yaml", namespace)}
	}
	objects, _, err := d.Objects(ctx)
	if err != nil {
		return nil, err
	}
	mine := new(manifest.Objects)
	for _, s := range objects.Services {
		if s.Namespace == namespace && s.Name == name {
			mine.Services = append(mine.Services, s)
		}
	}
	if len(mine.Services) == 0 {
		return nil, &observe.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("Service %s/%s not found", namespace, name)}
	}
	for _, e := range objects.EndpointSlices {
		if e.Namespace == namespace && e.Labels[discoveryv1.LabelServiceName] == name {
			mine.EndpointSlices = append(mine.EndpointSlices, e)
		}
	}
	slices.SortFunc(mine.EndpointSlices, func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	text, err := mine.YAML()
	return &remote.Manifest{Service: namespace + "/" + name, YAML: text}, err
}
