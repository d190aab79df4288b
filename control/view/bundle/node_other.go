//go:build !linux

package bundle

import "context"

// Collect collects nothing: it needs Linux.
func Collect(context.Context, Source) *Bundle {
	b := &Bundle{}
	b.Note("rules, connection entries and packets: nfqproxy collects them on Linux only")
	return b
}
