//go:build !linux

package screen

import (
	"context"
	"errors"

	"github.com/nfqproxy/nfqproxy/deploy/learn/session"
)

// runFull needs Linux, as all sessions do.
func runFull(context.Context, session.Room, Options) error { return errors.ErrUnsupported }
