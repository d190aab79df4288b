package objecttext

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"
)

// Formats are the formats of Write.
var Formats = []string{"text", "yaml", "json"}

// Write prints objects in a format of Formats. A single object that was selected by its name is printed alone, others as
// a List.
func Write(w io.Writer, objects []Object, format string, single bool) error {
	if format == "text" {
		return writeText(w, objects)
	}
	var value any
	if single && len(objects) == 1 {
		value = objects[0].Value
	} else {
		items := make([]any, len(objects))
		for i := range objects {
			items[i] = objects[i].Value
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
		t := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
		line := func(namespace, name string, columns []string) {
			cells := append([]string{name}, columns...)
			if k.namespaced {
				cells = append([]string{namespace}, cells...)
			}
			fmt.Fprintln(t, strings.Join(cells, "\t"))
		}
		line("NAMESPACE", "NAME", k.columns)
		for _, o := range own {
			name := o.GetName()
			if several {
				name = strings.ToLower(k.name) + "/" + name
			}
			for _, row := range o.rows {
				line(o.GetNamespace(), name, row)
			}
		}
		_ = t.Flush() // a Builder takes everything
	}
	for line := range strings.Lines(b.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}
