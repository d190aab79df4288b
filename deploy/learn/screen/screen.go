// Package screen shows a course on a terminal.
package screen

import (
	"context"
	"io"
	"os"

	"golang.org/x/term"

	"github.com/nfqproxy/nfqproxy/deploy/learn/session"
)

// Options are how a course is shown.
type Options struct {
	// Plain: as lines of text, without control of the terminal. It is so where there is no terminal.
	Plain bool
	Stdin *os.File
	// Stdout gets the lines of text. The full screen needs the terminal itself: what a shell prints is rendered by an
	// emulator, and the texts of lessons are quoted.
	Stdout   io.Writer
	Terminal *os.File
}

// Front returns what shows a session.
func Front(o Options) func(context.Context, session.Room) error {
	front := runFull
	if o.Plain || !term.IsTerminal(int(o.Stdin.Fd())) || !term.IsTerminal(int(o.Terminal.Fd())) {
		front = runPlain
	}
	return func(ctx context.Context, s session.Room) error { return front(ctx, s, o) }
}
