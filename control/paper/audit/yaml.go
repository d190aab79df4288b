package audit

import (
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/control/kube"
)

// Documents returns the objects without empty fields: the Node and the ServiceCIDR, then each Service with its
// EndpointSlices behind it.
func (o *Objects) Documents() (all []map[string]any, err error) {
	var documents []runtime.Object
	if o.Node != nil {
		documents = append(documents, o.Node)
	}
	if o.ServiceCIDR != nil {
		documents = append(documents, o.ServiceCIDR)
	}
	rest := o.EndpointSlices
	for _, s := range o.Services {
		documents = append(documents, s)
		for len(rest) > 0 && rest[0].Namespace == s.Namespace && rest[0].Labels["kubernetes.io/service-name"] == s.Name {
			documents = append(documents, rest[0])
			rest = rest[1:]
		}
	}
	for _, d := range documents {
		fields, err := kube.Fields(d.GetObjectKind().GroupVersionKind(), d)
		if err != nil {
			return nil, err
		}
		all = append(all, fields)
	}
	return all, nil
}

// WriteYAML writes the objects as YAML documents.
func (o *Objects) WriteYAML(w io.Writer) error {
	all, err := o.Documents()
	if err != nil {
		return err
	}
	for i, d := range all {
		text, err := yaml.Marshal(d)
		if err != nil {
			return err
		}
		if i > 0 {
			fmt.Fprintln(w, "---")
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	return nil
}
