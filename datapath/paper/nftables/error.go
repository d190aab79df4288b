package nftables

import "fmt"

// Position is a place in a file.
type Position struct {
	File string
	Line int // counts from 1; 0: unknown
	// Column counts bytes from 1.
	Column int
}

func (p Position) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// Error is why a ruleset could not be read.
type Error struct {
	Position
	Found string // what stands there
	Want  string // what was expected instead
	Err   error  // of opening an included file; else nil
}

func (e *Error) Error() string { return e.Position.String() + ": " + e.Problem() }

// Problem is the error without its place.
func (e *Error) Problem() string {
	switch {
	case e.Err != nil:
		return e.Err.Error()
	case e.Found == "":
		return e.Want
	}
	return fmt.Sprintf("%s: want %s", e.Found, e.Want)
}

func (e *Error) Unwrap() error { return e.Err }
