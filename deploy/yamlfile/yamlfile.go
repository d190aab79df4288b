// Package yamlfile reads YAML files that people write, strictly: each mistake has its file, line and field.
package yamlfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Mistake is a mistake in a file.
type Mistake struct {
	File  string
	Line  int    // from 1; 0: none in particular
	Field string // as steps[0].question; empty: none in particular
	Err   error
}

// Error has the file, the line and the field.
func (m *Mistake) Error() string {
	s := m.File
	if m.Line > 0 {
		s += ":" + strconv.Itoa(m.Line)
	}
	if m.Field != "" {
		s += ": " + m.Field
	}
	return s + ": " + m.Err.Error()
}

// Unwrap returns the cause.
func (m *Mistake) Unwrap() error { return m.Err }

// Mistakes are the mistakes in files, in their order.
type Mistakes []*Mistake

// Error has a line for each.
func (m Mistakes) Error() string {
	var lines []string
	for _, one := range m {
		lines = append(lines, one.Error())
	}
	return strings.Join(lines, "\n")
}

// File is a file that is read. It collects the mistakes.
type File struct {
	Name     string
	Root     yaml.Node // of the document; valid after [File.Decode]
	Mistakes Mistakes
}

// Err returns the mistakes; nil: there are none.
func (p *File) Err() error {
	if len(p.Mistakes) == 0 {
		return nil
	}
	return p.Mistakes
}

// yamlLine is the line in an error of package yaml.
var yamlLine = regexp.MustCompile(`line ([0-9]+): (?s:(.*))`)

// lineFromZero matches the errors of its parser, whose lines count from 0; those of its scanner count from 1 (parser.fail in
// decode.go of package yaml).
var lineFromZero = regexp.MustCompile(`^did not find expected (',' or|'-' indicator|<|key$|node content)`)

// Decode reads the one document of the file, strictly: unknown fields are mistakes.
func (p *File) Decode(data []byte, into any) {
	_ = yaml.Unmarshal(data, &p.Root) // the decoder reports its error
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	err := d.Decode(into)
	if errors.Is(err, io.EOF) {
		err = errors.New("is empty")
	}
	if err != nil {
		p.Failures(err)
		return
	}
	var second yaml.Node
	if err := d.Decode(&second); !errors.Is(err, io.EOF) {
		p.Mistakes = append(p.Mistakes, &Mistake{File: p.Name, Line: second.Line, Err: errors.New("has a second document: want one")})
	}
}

// Failures notes the mistakes in an error of package yaml.
func (p *File) Failures(err error) {
	var all []string
	if types, ok := errors.AsType[*yaml.TypeError](err); ok {
		all = types.Errors
	} else {
		all = []string{strings.TrimPrefix(err.Error(), "yaml: ")}
	}
	fields := placesOf(&p.Root)
	for _, text := range slices.Compact(all) {
		m := &Mistake{File: p.Name, Err: errors.New(text)}
		if parts := yamlLine.FindStringSubmatch(text); parts != nil {
			m.Line, _ = strconv.Atoi(parts[1])
			if lineFromZero.MatchString(parts[2]) {
				m.Line++
			}
			m.Field = fields.fieldOf(m.Line, parts[2])
			m.Err = errors.New(inWords(parts[2]))
		}
		p.Mistakes = append(p.Mistakes, m)
	}
}

var (
	unknownField = regexp.MustCompile(`^field (\S+) not found in type .*$`)
	wrongType    = regexp.MustCompile("^cannot unmarshal !!(\\S+)( `.*`)? into (.+)$")
	typesOfGo    = map[string]string{"string": "a text", "int": "a number", "float64": "a number", "bool": "true or false", "uint16": "a number from 0 to 65535", "time.Duration": "a time with its unit, as 30s or 5ms"}
)

// inWords is an error of package yaml without names of types in Go.
func inWords(text string) string {
	if m := unknownField.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("unknown field %q", m[1])
	}
	if m := wrongType.FindStringSubmatch(text); m != nil {
		want := typesOfGo[m[3]]
		switch {
		case want != "":
		case strings.HasPrefix(m[3], "[]"):
			want = "a list"
		default:
			want = "fields with values"
		}
		have := cmp.Or(map[string]string{"map": "fields", "seq": "a list", "str": "the text"}[m[1]], "the value")
		return fmt.Sprintf("want %s, not %s%s", want, have, m[2])
	}
	return text
}

// Fail notes a mistake of a field, as steps[0].name.
func (p *File) Fail(field, format string, args ...any) {
	p.Mistakes = append(p.Mistakes, &Mistake{File: p.Name, Line: lineOf(&p.Root, field), Field: field, Err: fmt.Errorf(format, args...)})
}

// Want notes a mistake unless ok.
func (p *File) Want(field string, ok bool, format string, args ...any) {
	if !ok {
		p.Fail(field, format, args...)
	}
}

var fieldPart = regexp.MustCompile(`[^.\[\]]+`)

// lineOf is the line of a field or, if the document lacks it, of what should have it.
func lineOf(n *yaml.Node, field string) int {
	if n.Kind == yaml.DocumentNode {
		n = n.Content[0]
	}
	line := n.Line
	for _, part := range fieldPart.FindAllString(field, -1) {
		var next *yaml.Node
		switch n.Kind {
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == part {
					next, line = n.Content[i+1], n.Content[i].Line
				}
			}
		case yaml.SequenceNode:
			if i, err := strconv.Atoi(part); err == nil && i < len(n.Content) {
				next, line = n.Content[i], n.Content[i].Line
			}
		}
		if next == nil {
			break
		}
		n = next
	}
	return line
}
