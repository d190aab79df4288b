package script

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// quiet is how long a folder must be quiet before a script is read: an editor saves in several steps.
const quiet = 50 * time.Millisecond

// Watch compiles the script anew whenever its file changes, until the context ends; then it returns
// nil. Pickers use the new version from their next flow on, with the state they have. Of a version
// that cannot be read or compiled reloaded gets the error, and the version before stays; otherwise
// it gets nil. reloaded is called from Watch's goroutine only. An error of the watching ends Watch.
func (s *Script) Watch(ctx context.Context, reloaded func(error)) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch balancing script: %w", err)
	}
	defer watcher.Close() // nothing is left to be done about it
	// The folder, not the file: editors and ConfigMap mounts replace files and links.
	if err := watcher.Add(filepath.Dir(s.path)); err != nil {
		return fmt.Errorf("watch balancing script %s: %w", s.path, err)
	}
	// The file may have changed between Load and now.
	s.reload(reloaded)
	var read <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-watcher.Events:
			if !ok {
				return errors.New("watch balancing script: the watcher ended")
			}
			read = time.After(quiet)
		case _, ok := <-watcher.Errors:
			if !ok {
				return errors.New("watch balancing script: the watcher ended")
			}
			read = time.After(quiet) // events may be lost
		case <-read:
			read = nil
			s.reload(reloaded)
		}
	}
}

// reload compiles the file if it is another one than before.
func (s *Script) reload(reloaded func(error)) {
	source, err := s.read()
	switch {
	case err != nil && s.source == nil:
		return // it is known
	case err != nil:
		s.source = nil
	case bytes.Equal(source, s.source):
		return
	default:
		s.source = source
		err = s.compile(source)
	}
	reloaded(err)
}
