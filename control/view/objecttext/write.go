package objecttext

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

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
