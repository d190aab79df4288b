package iptables

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Error is one fault of a file.
type Error struct {
	Line    int // counts from 1
	Column  int // in bytes, from 1
	Problem string
	Want    string // what was expected instead; may be empty
}

func (e *Error) Error() string {
	s := fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Problem)
	if e.Want != "" {
		s += ": want " + e.Want
	}
	return s
}

// Errors are the faults of a file that Parse or ParseSets found: all of them, or the
// first dozen.
func Errors(err error) []*Error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []*Error
		for _, e := range joined.Unwrap() {
			all = append(all, Errors(e)...)
		}
		return all
	}
	if one := (*Error)(nil); errors.As(err, &one) {
		return []*Error{one}
	}
	return nil
}

const (
	// maxErrors keeps the errors of a file of another kind readable.
	maxErrors = 12
	// maxFaults is the number of faults after which reading stops.
	maxFaults = 1000
)

// errorList collects faults; each place in the file only once.
type errorList []*Error

func (l *errorList) add(line int, e *Error) {
	if e != nil {
		e.Line = line
		*l = append(*l, e)
	}
}

// tooMany adds to the faults that reading stops on this line because of their number. false: it goes on.
func (l *errorList) tooMany(line int) bool {
	if len(*l) < maxFaults {
		return false
	}
	l.add(line, &Error{Column: 1, Problem: "too many faults: the rest of the file is not read"})
	return true
}

func (l errorList) err() error {
	if len(l) == 0 {
		return nil
	}
	slices.SortStableFunc(l, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	var all []error
	for _, e := range l[:min(len(l), maxErrors)] {
		all = append(all, e)
	}
	if more := len(l) - maxErrors; more > 0 {
		all = append(all, fmt.Errorf("and %d more", more))
	}
	return errors.Join(all...)
}
