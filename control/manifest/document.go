package manifest

import (
	"bytes"
	"errors"
	"iter"
	"path/filepath"
	"regexp"

	"github.com/nfqproxy/nfqproxy/control/yamlfile"
)

// document is one document of a file, before any Kubernetes type is involved.
type document struct {
	yamlfile.Document
	// list is not nil if Value lacks the items of a List, which are in here.
	list *list
	// note is for [Objects.Notes]; empty: none.
	note string
}

// parse takes a file apart, one document after the other. Documents without content
// (comments, blank lines between separators) are left out and not counted. The items of
// Lists of at least this many bytes are parsed item by item.
func parse(name string, data []byte, large int) iter.Seq[document] {
	return func(yield func(document) bool) {
		data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // the byte order mark of some editors
		var docs []document
		objects, people, ok := apart(data)
		if ok {
			docs = mixed(name, objects, people, large)
		} else {
			docs, ok = jsonDocuments(name, data, large)
		}
		if !ok {
			docs, ok = kubectlText(data)
		}
		for _, d := range docs {
			if !yield(d) {
				return
			}
		}
		if ok {
			return
		}
		for text, line := range yamlfile.Split(data) {
			d, ok := splitYAML(text, line, large)
			if !ok {
				d.Document, ok = parseYAML(text, line)
			}
			if ok && !yield(d) {
				return
			}
		}
	}
}

// jsonDocuments are those of a text in JSON. ok: it is one. YAML has braces, too.
func jsonDocuments(name string, data []byte, large int) (docs []document, ok bool) {
	if !bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) {
		return nil, false
	}
	if l, ok := splitJSON(data, large); ok {
		return []document{l}, true
	}
	parsed, err := yamlfile.ParseJSON(data)
	for _, d := range parsed {
		docs = append(docs, document{Document: d})
	}
	if err != nil {
		docs = append(docs, failed(err))
	}
	if err != nil && filepath.Ext(name) != ".json" {
		return nil, false
	}
	return docs, true
}

// templated is an action of a Go template. A string in quotes may have one.
var templated = regexp.MustCompile(`(?m)^[^'"#\n]*\{\{-?\s*([.$(]|(include|if|else|end|range|with|template|define|toYaml|default|required|tpl)\b)[^}\n]*\}\}`)

// parseYAML is [yamlfile.Parse] with a better error about templates.
func parseYAML(text []byte, line int) (yamlfile.Document, bool) {
	if at := templated.FindIndex(text); at != nil {
		return yamlfile.Document{Err: &yamlfile.LineError{
			Line: line + bytes.Count(text[:at[0]], []byte("\n")), Err: errors.New("a template, as of Helm: render it first (helm template), and give the result"),
		}}, true
	}
	return yamlfile.Parse(text, line)
}
