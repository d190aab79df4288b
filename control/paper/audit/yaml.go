package audit

import (
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
)

// Documents returns the objects without empty fields: the Node and the ServiceCIDR, then each Service with its
// EndpointSlices behind it.
func (o *Objects) Documents() (all []map[string]any, err error) {
	var documents []any
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
		fields, err := document(d)
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

// document is an object without the empty fields that would be written.
func document(object any) (map[string]any, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	if status, ok := fields["status"].(map[string]any); ok {
		delete(status, "daemonEndpoints") // a Node's, with a port of 0
	}
	prune(fields)
	return fields, nil
}

// prune removes nulls, empty texts and empty objects, and reports whether nothing is left.
func prune(fields map[string]any) bool {
	for name, value := range fields {
		inner, isObject := value.(map[string]any)
		if value == nil || value == "" || isObject && prune(inner) {
			delete(fields, name)
		}
	}
	return len(fields) == 0
}
