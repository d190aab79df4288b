package yamlfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"
)

// Document is one document of a file as the parsers understand it.
type Document struct {
	// Value is of the types of JSON: nil, bool, int64, float64, string,
	// []any or map[string]any. Nil if Err is not nil.
	Value any
	// Duplicates are the paths of keys that a mapping has twice
	// ("items[0].spec.ports"); Value has the last one.
	Duplicates []string
	Err        error

	text []byte
	line int        // of the file, where the text begins
	root *yaml.Node // nil: Line parses the text
}

// LineError is an error in a line of a file.
type LineError struct {
	Line int // from 1
	Err  error
}

// Error has the line.
func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap returns the cause.
func (e *LineError) Unwrap() error { return e.Err }

// byteOrderMark is what some editors put before a text.
const byteOrderMark = "\xef\xbb\xbf"

// Split returns the text of each YAML document, and the line of the file it begins in. An error
// in one document then does not hide the others.
func Split(data []byte) iter.Seq2[[]byte, int] {
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

// Parse reads one YAML document that begins in the given line of its file, with the values that kubectl sees: "on" is a bool.
// It returns false for one without content: comments, or blank lines between markers.
func Parse(text []byte, line int) (Document, bool) { return parse(text, line, false) }

func parse(text []byte, line int, texts bool) (Document, bool) {
	if len(bytes.TrimSpace(text)) == 0 {
		return Document{}, false
	}
	d := Document{text: text, line: line}
	var root yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	err := decoder.Decode(&root)
	if errors.Is(err, io.EOF) {
		return Document{}, false
	}
	switch {
	case err != nil:
		d.Err = syntaxError(err, text, line)
	// The parser ends at a line that is indented less than the first one, and leaves the
	// rest unread.
	case !errors.Is(decoder.Decode(new(yaml.Node)), io.EOF):
		d.Err = &LineError{line + lessIndented(text), errors.New("a field is indented less than the first one: want all fields of an object in one column")}
	default:
		d.root = root.Content[0]
		c := converter{texts: texts, line: line, budget: int64(len(text)) + maxExpanded, nodes: maxAliased}
		if d.Value, d.Err = c.value(nil, d.root); d.Err != nil {
			d.Value = nil
		}
		d.Duplicates = c.duplicates
	}
	return d, d.Err != nil || d.Value != nil
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

var yamlLine = regexp.MustCompile(`^(?:line ([0-9]+): )?(?s:(.*))$`)

// lineFromZero matches the errors of the library's parser, whose lines count from 0; those of its scanner count from 1
// (parser.fail in decode.go of package yaml).
var lineFromZero = regexp.MustCompile(`^(did not find expected|found duplicate|found undefined tag handle|found incompatible) `)

// syntaxError turns the line number in a parser's error, which counts from the part it saw, into the file's. At the end of the text it
// is the number of the last line with content.
func syntaxError(err error, text []byte, first int) error {
	parts := yamlLine.FindStringSubmatch(strings.TrimPrefix(err.Error(), "yaml: "))
	n, _ := strconv.Atoi(parts[1])
	if lineFromZero.MatchString(parts[2]) {
		n++
	}
	if n == 0 {
		return errors.New(parts[2])
	}
	last := 1 + bytes.Count(bytes.TrimRight(text, " \t\r\n"), []byte("\n"))
	n = min(n, last)
	if at := bytes.Split(text, []byte("\n"))[max(n-1, 0)]; bytes.IndexByte(at[:len(at)-len(bytes.TrimLeft(at, " \t"))], '\t') >= 0 {
		return &LineError{first + n - 1, errors.New("a tab in front of a field: YAML is indented with spaces")}
	}
	lacks := strings.Contains(parts[2], "find expected") || strings.Contains(parts[2], "unexpected end")
	if n == last && last > 2 && lacks { // a text of one line is not cut off, but wrong
		parts[2] += "; it is the last line: is the text cut off?"
	}
	return &LineError{first + n - 1, errors.New(parts[2])}
}

// ParseJSON reads one JSON value after the other, as kubectl does. The error is of what follows the documents.
func ParseJSON(data []byte) ([]Document, error) {
	var docs []Document
	dec := json.NewDecoder(bytes.NewReader(data))
	lineAt := func(offset int64) int { return 1 + bytes.Count(data[:offset], []byte("\n")) }
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
			return docs, &LineError{lineAt(min(max(offset, 0), int64(len(data)))), err}
		}
		d := Document{text: raw, line: lineAt(dec.InputOffset() - int64(len(raw)))}
		// UnmarshalStrict and not json.Unmarshal, for it sees duplicate keys
		// and keeps integers.
		var strict []error
		strict, d.Err = kjson.UnmarshalStrict(raw, &d.Value)
		for _, e := range strict {
			path := e.Error()
			if fe, ok := errors.AsType[kjson.FieldError](e); ok {
				path = fe.FieldPath()
			}
			d.Duplicates = append(d.Duplicates, path)
		}
		docs = append(docs, d)
	}
}

// Line finds the line of the file, from 1, of a field. Of a field that is not there it is
// the line of what it should be in; 0: not known.
func (d *Document) Line(field string) int { return d.lineOf(field, false) }

// lineOf finds the line of the first of several fields with the name, or of the last one, which counts.
func (d *Document) lineOf(field string, first bool) int {
	if d.root == nil {
		var root yaml.Node
		if yaml.Unmarshal(d.text, &root) != nil || len(root.Content) == 0 {
			return 0
		}
		d.root = root.Content[0]
	}
	at, found := d.root, d.root.Line
	for _, step := range steps(field) {
		value, key := child(at, step, first)
		if value == nil {
			break
		}
		at, found = value, key.Line
	}
	return d.line + found - 1
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
func child(at *yaml.Node, step string, first bool) (value, key *yaml.Node) {
	if at.Kind == yaml.AliasNode {
		at = at.Alias
	}
	switch at.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(at.Content); i += 2 {
			if at.Content[i].Value == step && (value == nil || !first) {
				value, key = at.Content[i+1], at.Content[i]
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(at.Content) {
			return at.Content[i], at.Content[i]
		}
	}
	return value, key
}
