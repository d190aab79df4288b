//go:build !linux

package collect

import (
	"context"

	"github.com/nfqproxy/nfqproxy/control/bundle"
)

// Collect collects nothing: it needs Linux.
func Collect(context.Context, Source) *bundle.Bundle {
	b := &bundle.Bundle{}
	b.Note("nfqproxy collects on Linux only")
	return b
}
