package cli

import (
	"context"
	"errors"
	"io"
	"syscall"
)

// listener is a standard output whose reader may close it.
type listener struct{ io.Writer }

// Unwrap is the output itself.
func (l listener) Unwrap() io.Writer { return l.Writer }

// errUnread: the reader has closed the output.
var errUnread = errors.New("standard output is closed")

func (l listener) Write(b []byte) (int, error) {
	n, err := l.Writer.Write(b)
	if errors.Is(err, syscall.EPIPE) {
		err = errUnread
	}
	return n, err
}

// unlessClosed drops errors that are none for the user: the reader closed the output, or the
// command was interrupted.
func unlessClosed(ctx context.Context, err error) error {
	if errors.Is(err, errUnread) || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}
