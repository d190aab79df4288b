package manifest

import (
	"bytes"
	"encoding/json"

	kjson "sigs.k8s.io/json"

	"github.com/nfqproxy/nfqproxy/control/yamlfile"
)

// largeList is the size in bytes from which on the items of a List are parsed one by one:
// as a whole, a List takes ten times the memory of its text.
const largeList = 1 << 20

// list are the items of a List, each not parsed yet.
type list struct {
	items [][]byte
	// parse parses an item. It fails on one that is wrong, or not complete without the rest
	// of the document.
	parse func(item []byte) (value any, ok bool)
	// whole parses the document as a whole.
	whole func() document
}

// splitYAML takes a List apart by the indentation of its lines, if it is written as kubectl
// and most people write it. The items are not looked into, so the parser of the items
// must notice that one of them ended elsewhere.
func splitYAML(data []byte, first, large int) (document, bool) {
	if len(data) < large {
		return document{}, false
	}
	var items [][]byte
	var rest bytes.Buffer // the lines before and after the items, and the one of their key
	in, indent, start := false, -1, 0
	done := func(end int) {
		if in && indent >= 0 {
			items = append(items, data[start:end])
		}
		start = end
	}
	at := 0
	for line := range bytes.Lines(data) {
		text := bytes.TrimRight(line, "\r\n")
		spaces := len(text) - len(bytes.TrimLeft(text, " "))
		content := text[spaces:]
		blank := len(content) == 0 || content[0] == '#'
		item := bytes.HasPrefix(content, []byte("- "))
		switch {
		case !in && bytes.Equal(bytes.TrimRight(text, " "), []byte("items:")) && items == nil:
			in = true
			rest.Write(line) // an error if it is not indented as the lines before are
		case !in:
			rest.Write(line)
		case indent < 0 && item:
			indent, start = spaces, at
		case indent < 0 && blank:
			rest.Write(line) // it may be no text at all
		case indent < 0:
			return document{}, false
		case item && spaces == indent:
			done(at)
		case blank || spaces > indent:
		case spaces == 0:
			done(at)
			in = false
			rest.Write(line)
		default:
			return document{}, false
		}
		at += len(line)
	}
	done(len(data))
	if len(items) == 0 {
		return document{}, false
	}
	d, ok := parseYAML(rest.Bytes(), first)
	if !ok || d.Err != nil {
		return document{}, false
	}
	if fields, ok := d.Value.(map[string]any); ok && len(d.Duplicates) == 0 {
		if fields["items"] != nil {
			return document{}, false // a line behind the items is one of them
		}
		delete(fields, "items")
	}
	return document{Document: d, list: &list{items, yamlItem, func() document {
		whole, _ := parseYAML(data, first)
		return document{Document: whole}
	}}}, true
}

// yamlItem parses a sequence of one item.
func yamlItem(text []byte) (any, bool) {
	if v, ok := parsePlain(text); ok {
		if l, ok := v.([]any); ok && len(l) == 1 {
			return l[0], true
		}
		return nil, false
	}
	d, ok := parseYAML(text, 1)
	if !ok || d.Err != nil || len(d.Duplicates) > 0 {
		return nil, false
	}
	l, ok := d.Value.([]any)
	if !ok || len(l) != 1 {
		return nil, false
	}
	return l[0], true
}

// splitJSON takes a List apart that is all there is in a file.
func splitJSON(data []byte, large int) (document, bool) {
	if len(data) < large {
		return document{}, false
	}
	envelope := make(map[string]any)
	var items [][]byte
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return document{}, false
	}
	var raw json.RawMessage // with the memory of the one before
	next := func() ([]byte, bool) {
		if dec.Decode(&raw) != nil {
			return nil, false
		}
		end := dec.InputOffset()
		return data[end-int64(len(raw)) : end], true
	}
	for dec.More() {
		key, err := dec.Token()
		name, ok := key.(string)
		if _, twice := envelope[name]; err != nil || !ok || twice {
			return document{}, false
		}
		if name != "items" {
			value, ok := next()
			if !ok {
				return document{}, false
			}
			if envelope[name], ok = jsonItem(value); !ok {
				return document{}, false
			}
			continue
		}
		if t, err := dec.Token(); err != nil || t != json.Delim('[') {
			return document{}, false
		}
		envelope[name] = nil
		for dec.More() {
			item, ok := next()
			if !ok {
				return document{}, false
			}
			items = append(items, item)
		}
		if _, err := dec.Token(); err != nil {
			return document{}, false
		}
	}
	if _, err := dec.Token(); err != nil || len(bytes.TrimSpace(data[dec.InputOffset():])) > 0 || len(items) == 0 {
		return document{}, false
	}
	return document{Document: yamlfile.Document{Value: envelope}, list: &list{items, jsonItem, func() document {
		docs, err := yamlfile.ParseJSON(data)
		if err != nil {
			return failed(err)
		}
		return document{Document: docs[0]}
	}}}, true
}

func jsonItem(text []byte) (value any, ok bool) {
	strict, err := kjson.UnmarshalStrict(text, &value)
	return value, err == nil && len(strict) == 0
}
