package manifest

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// LineOf finds the line, from 1, of a field in a file of YAML or JSON documents: the field
// of an [Error], where the number of the document is. Of a field that is not there it is
// the line of what it should be in; 0: not known.
func LineOf(data []byte, document int, field string) int {
	n := 0
	for text, line := range yamlDocuments(data) {
		if _, ok := parseYAMLDocument(text, line); !ok {
			continue
		}
		if n++; n < document {
			continue
		}
		var root yaml.Node
		if document < 1 || yaml.Unmarshal(text, &root) != nil || len(root.Content) == 0 {
			return 0
		}
		at, found := root.Content[0], root.Content[0].Line
		for _, step := range steps(field) {
			value, key := child(at, step)
			if value == nil {
				break
			}
			at, found = value, key.Line
		}
		return line + found - 1
	}
	return 0
}

// Line finds the line of the error in the contents of its file; 0: not known.
func (e *Error) Line(data []byte) int {
	field, document := e.Field, e.Document
	if field != "" {
		document = max(document, 1) // a lab is a file's first document
	}
	if e.Item >= 0 {
		field = strings.TrimSuffix("items["+strconv.Itoa(e.Item)+"]."+field, ".")
	}
	return LineOf(data, document, field)
}

// steps takes a path apart: "a.b[0]" is a, b and 0, and "a[b.c]" is a and b.c.
func steps(field string) (all []string) {
	for field != "" {
		if rest, ok := strings.CutPrefix(field, "["); ok {
			step, after, _ := strings.Cut(rest, "]")
			all, field = append(all, step), strings.TrimPrefix(after, ".")
			continue
		}
		end := strings.IndexAny(field, ".[")
		if end < 0 {
			return append(all, field)
		}
		all, field = append(all, field[:end]), strings.TrimPrefix(field[end:], ".")
	}
	return all
}

// child finds the value of a step, and the node whose line is shown for it; nil: there is
// none.
func child(at *yaml.Node, step string) (value, key *yaml.Node) {
	if at.Kind == yaml.AliasNode {
		at = at.Alias
	}
	switch at.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(at.Content); i += 2 {
			if at.Content[i].Value == step {
				return at.Content[i+1], at.Content[i]
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(at.Content) {
			return at.Content[i], at.Content[i]
		}
	}
	return nil, nil
}
