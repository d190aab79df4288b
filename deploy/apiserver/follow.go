package apiserver

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// Follow serves the objects of files and directories, which are watched, until the context ends; then it returns nil. It calls
// begun when the first ones are there. If these have mistakes, Follow returns them; later ones are logged, and the last good
// objects stay in force.
func (s *Server) Follow(ctx context.Context, log *slog.Logger, paths []string, begun func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	started, failing := false, false
	var warnings []string
	err := labfile.NewSource(paths...).Run(ctx, func(o *manifest.Objects, err error) {
		if err == nil {
			err = s.Set(&o.Objects)
		}
		if err != nil && !started {
			cancel(err)
			return
		}
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				log.Error("cannot load the objects; the last good ones stay in force", "error", strings.TrimSpace(line))
			}
			failing = true
			return
		}
		for _, w := range o.Warnings {
			if !slices.Contains(warnings, w) {
				log.Warn(w)
			}
		}
		if failing {
			log.Info("loading the objects works again")
		}
		warnings, failing = o.Warnings, false
		if !started {
			started = true
			begun()
		}
	})
	if err == nil && !started {
		err = context.Cause(ctx)
	}
	return err
}
