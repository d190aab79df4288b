//go:build !linux

package noderules

import (
	"context"
	"errors"
	"net/netip"
)

// Read reads nothing: it needs Linux.
func Read(context.Context, []netip.Addr) (*Rules, error) {
	return nil, errors.New("nfqproxy reads the rules of a node on Linux only")
}
