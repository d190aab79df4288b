// Package yamlfile reads YAML and JSON: Kubernetes objects, and nfqproxy's own files. Values, types and positions are of one
// parse, so that a mistake has its line and field. [Parse] and [ParseJSON] read a document, [Decoder] turns it into a type,
// and [File] does both for files of one document.
//
// It is a ground package.
package yamlfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
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

// File is a file of one document that is read. It collects the mistakes. Numbers may stand for texts in it.
type File struct {
	Name     string
	Mistakes Mistakes
	// Decoder has the formats of the file.
	Decoder Decoder

	document Document
}

// Err returns the mistakes; nil: there are none.
func (p *File) Err() error {
	if len(p.Mistakes) == 0 {
		return nil
	}
	return p.Mistakes
}

// Decode reads a file of the kind, strictly: unknown fields are mistakes.
func (p *File) Decode(data []byte, kind string, into any) {
	var header struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	value := p.Read(data)
	if fields, ok := value.(map[string]any); ok {
		p.Into(map[string]any{"apiVersion": fields["apiVersion"], "kind": fields["kind"]}, &header)
		delete(fields, "apiVersion")
		delete(fields, "kind")
	}
	if value != nil {
		p.Into(value, into)
	}
	if len(p.Mistakes) == 0 {
		p.Want("apiVersion", IsAPIVersion(header.APIVersion), "want %s", APIVersion)
		p.Want("kind", header.Kind == kind, "want %s", kind)
	}
}

// Read parses the file. Its value is nil if it cannot be parsed.
func (p *File) Read(data []byte) any {
	count := 0
	for text, line := range Split(bytes.TrimPrefix(data, []byte(byteOrderMark))) {
		d, ok := parse(text, line, true)
		if !ok {
			continue
		}
		if count++; count > 1 {
			p.Mistakes = append(p.Mistakes, &Mistake{File: p.Name, Line: line, Err: errors.New("has a second document: want one")})
			break
		}
		p.document = d
	}
	d := &p.document
	if count == 0 {
		d.Err = errors.New("is empty")
	}
	if d.Err != nil {
		m := &Mistake{File: p.Name, Err: d.Err}
		if at, ok := errors.AsType[*LineError](d.Err); ok {
			m.Line, m.Err = at.Line, at.Err
		}
		p.Mistakes = append(p.Mistakes, m)
	}
	for _, field := range d.Duplicates {
		p.Fail(field, "given twice: first in line %d", d.lineOf(field, true))
	}
	return d.Value
}

// Into decodes a part of the file's value.
func (p *File) Into(value, into any) {
	for _, e := range p.Decoder.Decode(value, into) {
		p.Fail(e.Field, "%w", e.Err)
	}
	slices.SortStableFunc(p.Mistakes, func(a, b *Mistake) int { return cmp.Compare(a.Line, b.Line) })
}

// Fail notes a mistake of a field, as steps[0].name.
func (p *File) Fail(field, format string, args ...any) {
	p.Mistakes = append(p.Mistakes, &Mistake{File: p.Name, Line: p.document.Line(field), Field: field, Err: fmt.Errorf(format, args...)})
}

// Want notes a mistake unless ok.
func (p *File) Want(field string, ok bool, format string, args ...any) {
	if !ok {
		p.Fail(field, format, args...)
	}
}
