//go:build !linux

package hostrules

import (
	"context"
	"errors"
)

var errLinux = errors.New("the host's nat rules: only Linux has any")

// Read fails: only Linux has such rules.
func Read() (*Rules, error) { return nil, errLinux }

// Watch fails: only Linux has such rules.
func Watch(context.Context, func() error) error { return errLinux }
