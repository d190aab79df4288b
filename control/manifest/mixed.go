package manifest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// This file reads texts that have objects in YAML or JSON, and tables or descriptions of kubectl above or below them.

// objectHead is the first line of an object in YAML or JSON.
var objectHead = regexp.MustCompile(`^((apiVersion|kind): |\{)`)

// apart separates objects from what kubectl prints for people; both keep their lines. ok: the text has both.
func apart(data []byte) (objects, people string, ok bool) {
	if !bytes.Contains(data, []byte("NAME")) && !bytes.Contains(data, []byte("Name: ")) || bytes.Contains(data, []byte("==== START logs")) {
		return "", "", false
	}
	lines := strings.Split(strings.ReplaceAll(string(data), "\r\n", "\n"), "\n")
	others := make([]string, len(lines)) // those for people
	inObjects, described, seen, text, began := false, false, false, false, byte(0)
	for i, line := range lines {
		blank := i == 0 || lines[i-1] == "" || strings.HasPrefix(lines[i-1], "---")
		inObjects = inObjects && inColumnOne(line) // prose and fences of Markdown do not belong to it
		switch isPrompt := prompt.MatchString(line + "\n"); {
		case isPrompt, tableHead.MatchString(line), bareRow.MatchString(line), strings.HasPrefix(line, "Name: "):
			inObjects, described = false, !isPrompt && line[1] == 'a'
			text = text || !isPrompt
		case !inObjects && objectHead.MatchString(line) && blank && !described:
			if seen && (began != '{' || line[0] != '{') {
				lines[i-1] = "---"
			}
			inObjects, seen, began = true, true, line[0]
		}
		if !inObjects {
			lines[i], others[i] = "", line
		}
	}
	return strings.Join(lines, "\n"), strings.Join(others, "\n"), seen && text
}

// mixed are the documents of a text that has both.
func mixed(name, objects, people string, large int) (docs []document) {
	docs = slices.Collect(parse(name, []byte(objects), large))
	var known []map[string]any
	for i := range docs {
		known = append(known, objectsIn(docs[i].Value)...)
	}
	return append(docs, kubectlObjects(people, known)...)
}

// objectsIn is an object, or the items of a List.
func objectsIn(value any) (all []map[string]any) {
	m, _ := value.(map[string]any)
	items, _ := m["items"].([]any)
	for _, item := range items {
		all = append(all, objectsIn(item)...)
	}
	if _, ok := m["metadata"].(map[string]any); ok && items == nil {
		all = append(all, m)
	}
	return all
}

// without takes the rows of objects out that are known besides the tables. A row of a Service shows what the control plane added.
func (t *tables) without(known []map[string]any) {
	for _, object := range known {
		metadata := object["metadata"].(map[string]any)
		kind := textOf(object, "kind")
		t.rows[kind] = slices.DeleteFunc(t.rows[kind], func(r tableRow) bool {
			same := r["NAME"] == textOf(metadata, "name") && (kind == "Node" || r.namespace() == cmp.Or(textOf(metadata, "namespace"), "default"))
			if same && kind == "Service" {
				r.complete(object)
			}
			return same
		})
	}
}

// complete adds the addresses and node ports of a row to its Service.
func (r tableRow) complete(service map[string]any) {
	row, ports, err := r.service()
	spec, _ := service["spec"].(map[string]any)
	if err != nil || spec == nil {
		return
	}
	for key, value := range row["spec"].(map[string]any) {
		if spec[key] == nil && strings.HasPrefix(key, "clusterIP") {
			spec[key] = value
		}
	}
	if service["status"] == nil && row["status"] != nil {
		service["status"] = row["status"]
	}
	list, _ := spec["ports"].([]any)
	for i, item := range list {
		if p, ok := item.(map[string]any); ok && len(list) == len(ports) && p["nodePort"] == nil && ports[i].nodePort != 0 {
			p["nodePort"] = ports[i].nodePort
		}
	}
}

// textOf is a field of an object, as a text.
func textOf(m map[string]any, key string) string {
	if m[key] == nil {
		return ""
	}
	return fmt.Sprint(m[key])
}

// namespaceOf is the namespace of all of the Services; empty: they have several.
func namespaceOf(services []map[string]any) (namespace string) {
	for i, s := range services {
		switch of := cmp.Or(textOf(s["metadata"].(map[string]any), "namespace"), "default"); {
		case i > 0 && of != namespace:
			return ""
		default:
			namespace = of
		}
	}
	return namespace
}

// endpointsFor are the endpoints of a Service that is no row, if a table shows them.
func (t *tables) endpointsFor(service map[string]any) (docs []document) {
	metadata := service["metadata"].(map[string]any)
	spec, _ := service["spec"].(map[string]any)
	list, _ := spec["ports"].([]any)
	var ports []describedPort
	for _, item := range list {
		if p, ok := item.(map[string]any); ok {
			number, err := strconv.ParseUint(textOf(p, "port"), 10, 16)
			if err != nil {
				return nil // a mistake that is reported elsewhere
			}
			ports = append(ports, describedPort{name: textOf(p, "name"), protocol: cmp.Or(textOf(p, "protocol"), "TCP"), number: int64(number)})
		}
	}
	if len(ports) == 0 {
		return nil
	}
	switch err := t.addEndpoints(tableRow{"NAME": textOf(metadata, "name"), "NAMESPACE": textOf(metadata, "namespace")}, ports); {
	case errors.Is(err, errNoEndpoints):
		return nil
	case err != nil:
		annotations, _ := metadata["annotations"].(map[string]any)
		if annotations == nil {
			annotations = make(map[string]any)
			metadata["annotations"] = annotations
		}
		annotations[NotShown] = err.Error()
		return nil
	}
	for i := range ports {
		docs = append(docs, ports[i].slices(i, map[string]any{"name": metadata["name"], "namespace": metadata["namespace"]})...)
	}
	return docs
}
