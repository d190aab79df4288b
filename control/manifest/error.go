package manifest

import (
	"fmt"
	"slices"
	"strings"
)

// Error is one thing that is wrong with a manifest.
type Error struct {
	File     string // as it was given or found
	Document int    // from 1; 0: the file as a whole or, with a Field, the lab in it
	Item     int    // index within the items of a List; -1: not in a List
	Object   string // "Service default/web"; empty: not known
	Field    string // "spec.ports[0].port"; empty: the object as a whole
	Line     int    // of the field; 0: not known
	Err      error  // what is wrong
}

// Error returns all of it on one line.
func (e *Error) Error() string {
	file := e.File
	if e.Line > 0 {
		file = fmt.Sprintf("%s:%d", file, e.Line)
	}
	text := strings.Join(strings.Fields(e.Err.Error()), " ") // parsers may quote their input, which may hold line breaks
	parts := slices.DeleteFunc([]string{e.Object, e.Field}, func(s string) bool { return s == "" })
	return strings.Join(slices.Concat([]string{position(file, e.Document, e.Item)}, parts, []string{text}), ": ")
}

// Unwrap returns the cause, for example one that is [io/fs.ErrNotExist].
func (e *Error) Unwrap() error { return e.Err }

// position is the position of an object: "lab.yaml: document 2: items[3]".
func position(file string, document, item int) string {
	switch {
	case document == 0:
		return file
	case item < 0:
		return fmt.Sprintf("%s: document %d", file, document)
	}
	return fmt.Sprintf("%s: document %d: items[%d]", file, document, item)
}

// maxErrorLines bounds what Errors prints: a wrong file (a log, a values.yaml)
// can have thousands.
const maxErrorLines = 20

// Errors is everything that is wrong, in the order of files, documents and
// items. It is what [Load] fails with.
type Errors []*Error

// Error returns one error on each line: the first twenty, and how many follow.
func (e Errors) Error() string {
	var lines []string
	for i, err := range e {
		if i == maxErrorLines {
			lines = append(lines, fmt.Sprintf("and %d more", len(e)-i))
			break
		}
		lines = append(lines, err.Error())
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns all errors to [errors.Is] and [errors.As].
func (e Errors) Unwrap() []error {
	errs := make([]error, len(e))
	for i, err := range e {
		errs[i] = err
	}
	return errs
}

// orNil keeps an empty list from becoming a non-nil error.
func (e Errors) orNil() error {
	if len(e) == 0 {
		return nil
	}
	return e
}
