//go:build !linux

package session

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
)

var errOtherSystem = fmt.Errorf("units require Linux network namespaces; this is %s: %w", runtime.GOOS, errors.ErrUnsupported)

// Run needs Linux.
func Run(Options) (int, error) { return 1, errOtherSystem }

// RunProof needs Linux.
func RunProof(Options, *learn.Unit) (int, error) { return 1, errOtherSystem }

// Enter needs Linux.
func Enter(string) (int, error) { return 1, errOtherSystem }

// Send needs Linux.
func Send(labapi.LessonCommand) (string, error) { return "", errOtherSystem }
