package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v2"
	kjson "sigs.k8s.io/json"
)

// document is one document of a file as the parsers understand it, before any
// Kubernetes type is involved.
type document struct {
	// value is of the types of JSON: nil, bool, int64, float64, string,
	// []any or map[string]any. Nil if err is not nil.
	value any
	// duplicates are the paths of keys that a mapping has twice
	// ("items[0].spec.ports"); value has one of the two.
	duplicates []string
	err        error
	// list is not nil if value lacks the items of a List, which are in here.
	list *list
}

// parse takes a file apart, one document after the other. Documents without content
// (comments, blank lines between separators) are left out and not counted. The items of
// Lists of at least so many bytes are left to be parsed one by one.
func parse(name string, data []byte, large int) iter.Seq[document] {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // the byte order mark of some editors
	if bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) {
		if l, ok := splitJSON(data, large); ok {
			return slices.Values([]document{l})
		}
		docs, err := parseJSON(data)
		if err == nil || filepath.Ext(name) == ".json" {
			if err != nil {
				docs = append(docs, document{err: err})
			}
			return slices.Values(docs)
		}
		// YAML has braces too.
	}
	if docs, ok := kubectlText(data); ok {
		return slices.Values(docs)
	}
	return parseYAML(data, large)
}

// parseJSON reads one JSON value after the other, as kubectl does.
func parseJSON(data []byte) ([]document, error) {
	var docs []document
	dec := json.NewDecoder(bytes.NewReader(data))
	for {
		var raw json.RawMessage
		start := dec.InputOffset()
		if err := dec.Decode(&raw); err != nil {
			rest := bytes.TrimSpace(data[start:])
			if len(rest) == 0 {
				return docs, nil
			}
			offset := int64(len(data)) // where the end came too early
			if se, ok := errors.AsType[*json.SyntaxError](err); ok {
				offset = se.Offset
			}
			offset = min(max(offset, 0), int64(len(data)))
			return docs, fmt.Errorf("line %d: %w", 1+bytes.Count(data[:offset], []byte("\n")), err)
		}
		var d document
		// UnmarshalStrict and not json.Unmarshal, for it sees duplicate keys
		// and keeps integers.
		strict, err := kjson.UnmarshalStrict(raw, &d.value)
		d.err = err
		d.duplicates = fieldPaths(strict)
		docs = append(docs, d)
	}
}

// fieldPaths are the paths of keys that are given twice.
func fieldPaths(strict []error) (paths []string) {
	for _, e := range strict {
		path := e.Error()
		if fe, ok := errors.AsType[kjson.FieldError](e); ok {
			path = fe.FieldPath()
		}
		paths = append(paths, path)
	}
	return paths
}

// parseYAML splits a YAML stream at its markers and reads each document on its
// own, so that an error in one does not hide the others.
func parseYAML(data []byte, large int) iter.Seq[document] {
	return func(yield func(document) bool) {
		for text, line := range yamlDocuments(data) {
			d, ok := splitYAML(text, line, large)
			if !ok {
				d, ok = parseYAMLDocument(text, line)
			}
			if ok && !yield(d) {
				return
			}
		}
	}
}

// yamlDocuments returns the text of each document, and the line of the file it begins in.
func yamlDocuments(data []byte) iter.Seq2[[]byte, int] {
	return func(yield func([]byte, int) bool) {
		line, start, more := 1, 0, true // line is that of data[start]
		flush := func(end int) {
			more = more && (start == end || yield(data[start:end], line))
			line += bytes.Count(data[start:end], []byte("\n"))
			start = end
		}
		at := 0
		for text := range bytes.Lines(data) {
			switch marker(text) {
			case "---":
				// The marker stays with what follows it: "--- {kind: Service}".
				flush(at)
			case "...":
				flush(at + len(text))
			}
			if at += len(text); !more {
				return
			}
		}
		flush(len(data))
	}
}

// marker returns the document marker of a line: "---", "..." or none. Both stand
// at the start of a line and before white space (YAML 1.1, 4.3.1); nothing else
// in a document may begin like this.
func marker(line []byte) string {
	for _, m := range []string{"---", "..."} {
		if rest, ok := bytes.CutPrefix(line, []byte(m)); ok && (len(rest) == 0 || strings.ContainsRune(" \t\r\n", rune(rest[0]))) {
			return m
		}
	}
	return ""
}

// templated is an action of a Go template. A string in quotes may have one.
var templated = regexp.MustCompile(`(?m)^[^'"#\n]*\{\{-?\s*([.$(]|(include|if|else|end|range|with|template|define|toYaml|default|required|tpl)\b)[^}\n]*\}\}`)

// parseYAMLDocument reads one document that begins in the given line of its
// file. It returns false for an empty one.
func parseYAMLDocument(data []byte, line int) (document, bool) {
	if len(bytes.TrimSpace(data)) == 0 {
		return document{}, false
	}
	var d document
	if at := templated.FindIndex(data); at != nil {
		return document{err: fmt.Errorf("line %d: a template, as of Helm: render it first (helm template), and give the result", line+bytes.Count(data[:at[0]], []byte("\n")))}, true
	}
	var v any
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.SetStrict(true)
	err := decoder.Decode(&v)
	if errors.Is(err, io.EOF) {
		return document{}, false
	}
	if _, ok := errors.AsType[*yaml.TypeError](err); ok {
		// What a strict decoder has against an untyped value can only be
		// duplicate keys. It names lines; the second look finds the paths.
		if d.duplicates = yamlDuplicates(data); len(d.duplicates) > 0 {
			err = nil
		}
	}
	if err == nil {
		// The parser ends at a line that is indented less than the first one, and leaves the
		// rest unread.
		if !errors.Is(decoder.Decode(new(any)), io.EOF) {
			err = fmt.Errorf("line %d: a field is indented less than the first one: want all fields of an object in one column", 1+lessIndented(data))
		}
	}
	if err != nil {
		return document{err: yamlError(err, line)}, true
	}
	if v == nil {
		return document{}, false
	}
	// Aliases share memory here but not in what is made from them.
	c := converter{budget: int64(len(data)) + maxExpanded}
	d.value, d.err = c.convert(v)
	if d.err != nil {
		d.value = nil
	}
	return d, true
}

// lessIndented is the first line that is indented less than the first one of the text.
func lessIndented(data []byte) int {
	first := -1
	for i, line := range bytes.Split(data, []byte("\n")) {
		text := bytes.TrimLeft(line, " ")
		switch indent := len(line) - len(text); {
		case len(bytes.TrimSpace(text)) == 0 || text[0] == '#' || marker(line) != "":
		case first < 0:
			first = indent
		case indent < first:
			return i
		}
	}
	return 0
}

// yamlDuplicates finds the paths of duplicate keys. A MapSlice keeps all items
// of a mapping in their order.
func yamlDuplicates(data []byte) []string {
	var m yaml.MapSlice
	if err := yaml.Unmarshal(data, &m); err != nil {
		return nil
	}
	var paths []string
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case yaml.MapSlice:
			seen := make(map[string]bool, len(v))
			for _, item := range v {
				key, err := keyString(item.Key)
				if err != nil {
					continue
				}
				if seen[key] {
					paths = append(paths, join(path, key))
				}
				seen[key] = true
				walk(join(path, key), item.Value)
			}
		case []any:
			for i, e := range v {
				walk(fmt.Sprintf("%s[%d]", path, i), e)
			}
		}
	}
	walk("", m)
	return paths
}

var yamlLine = regexp.MustCompile(`line (\d+)`)

// yamlError makes the line numbers of a parser that only saw a part of the file
// those of the file.
func yamlError(err error, first int) error {
	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:\n")
	return errors.New(yamlLine.ReplaceAllStringFunc(text, func(s string) string {
		n, err := strconv.Atoi(strings.TrimPrefix(s, "line "))
		if err != nil {
			return s
		}
		return fmt.Sprintf("line %d", n+first-1)
	}))
}

// maxExpanded bounds what the aliases of a document add to it, in bytes.
const maxExpanded = 64 << 20

// converter converts the YAML parser's values to the types of JSON.
type converter struct {
	budget int64 // bytes of text that may still come
}

func (c *converter) convert(v any) (any, error) {
	switch v := v.(type) {
	case map[any]any:
		m := make(map[string]any, len(v))
		for k, e := range v {
			key, err := keyString(k)
			if err != nil {
				return nil, err
			}
			if _, ok := m[key]; ok { // 1 and "1"
				return nil, fmt.Errorf("key %q: given twice", key)
			}
			if err := c.spend(key); err != nil {
				return nil, err
			}
			if m[key], err = c.convert(e); err != nil {
				return nil, err
			}
		}
		return m, nil
	case []any:
		l := make([]any, len(v))
		for i, e := range v {
			var err error
			if l[i], err = c.convert(e); err != nil {
				return nil, err
			}
		}
		return l, nil
	case string:
		return v, c.spend(v)
	case int:
		return int64(v), nil
	case uint64:
		return float64(v), nil // as JSON does with integers beyond int64
	default:
		return v, nil
	}
}

// spend guards against one long text that is named by thousands of aliases. (The
// parser itself only guards against aliases of aliases.)
func (c *converter) spend(s string) error {
	if c.budget -= int64(len(s)); c.budget < 0 {
		return fmt.Errorf("aliases add more than %s", size(maxExpanded))
	}
	return nil
}

// keyString returns a mapping's key as Kubernetes' YAML-to-JSON conversion does.
func keyString(k any) (string, error) {
	switch k := k.(type) {
	case string:
		return k, nil
	case int, int64, uint64, bool:
		return fmt.Sprint(k), nil
	case float64:
		return strconv.FormatFloat(k, 'g', -1, 32), nil
	}
	return "", fmt.Errorf("a key is neither text nor a number: %v", k)
}

// join adds a field's name to a path.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
