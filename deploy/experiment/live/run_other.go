//go:build !linux

package live

import (
	"context"
	"errors"

	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// Run implements [experiment.Backend]. It is an error: labs require Linux.
func (Backend) Run(context.Context, *experiment.Experiment, experiment.Key, func(float64)) (*experiment.Cell, *experiment.Cost, error) {
	return nil, nil, errors.New("live experiments require Linux")
}
