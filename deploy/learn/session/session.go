// Package session runs the units of a course: each in a lab of its own, with a shell for the student, and with checks that
// turn a step green when the state is reached.
package session

import (
	"context"
	"io"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
)

// Options are what a session needs.
type Options struct {
	Course *learn.Course
	// Record is the student's record, which the session adds to.
	Record *learn.Record
	Unit   string // to begin with: its ID
	// Page is the address of the web page, as lab.RunOptions has it.
	Page string
	// Front is what the student sees. The session ends when it returns.
	Front  func(context.Context, Room) error
	Stderr io.Writer
}

// Room is what a front end needs of a session.
type Room interface {
	labapi.Teacher
	labapi.ShellOpener
	// Finished is closed when the student quits.
	Finished() <-chan struct{}
	// Page is the address of the web page of the unit's lab; empty: there is none.
	Page() string
	// Active notes that the student did something: checks that send requests do so soon.
	Active()
}
