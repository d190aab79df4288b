// Package objecttext prints Kubernetes objects as kubectl get does: as a table, as YAML and as JSON.
package objecttext

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/view/text"
)

// Formats are the formats of Write.
var Formats = []string{"text", "yaml", "json", "name"}

// Write prints objects in a format of Formats. A single object that was selected by its name is printed alone, others as
// a List.
func Write(w io.Writer, objects []Object, format string, single bool) error {
	switch format {
	case "text":
		return writeText(w, objects)
	case "name":
		for _, o := range objects {
			if _, err := fmt.Fprintf(w, "%s/%s\n", strings.ToLower(o.kind), o.GetName()); err != nil {
				return err
			}
		}
		return nil
	}
	var value any
	if single && len(objects) == 1 {
		value = objects[0].Object
	} else {
		items := make([]any, len(objects))
		for i := range objects {
			items[i] = objects[i].Object
		}
		value = map[string]any{"apiVersion": "v1", "kind": "List", "items": items}
	}
	if format == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(value)
	}
	data, err := yaml.Marshal(value)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

// writeText prints a table for each kind. With several kinds, names have their kind before them.
func writeText(w io.Writer, objects []Object) error {
	if len(objects) == 0 {
		_, err := fmt.Fprintln(w, "No objects found.")
		return err
	}
	several := objects[0].kind != objects[len(objects)-1].kind
	var b strings.Builder
	for _, k := range kinds {
		own := slices.DeleteFunc(slices.Clone(objects), func(o Object) bool { return o.kind != k.name })
		if len(own) == 0 {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("\n")
		}
		var rows [][]string
		row := func(namespace, name string, columns []string) {
			cells := append([]string{name}, columns...)
			if k.namespaced {
				cells = append([]string{namespace}, cells...)
			}
			rows = append(rows, cells)
		}
		row("NAMESPACE", "NAME", k.columns)
		for _, o := range own {
			name := o.GetName()
			if several {
				name = strings.ToLower(k.name) + "/" + name
			}
			for _, r := range o.rows {
				row(o.GetNamespace(), name, r)
			}
		}
		b.WriteString(text.Columns("", 3, rows))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

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
