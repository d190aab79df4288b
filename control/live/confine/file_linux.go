package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// fileCapabilities are the capabilities without which the process cannot open the configuration's
// files: root without them has no access to other users' private files.
func (c *Config) fileCapabilities(own threadSets) (kept []observe.Capability, err error) {
	const dac = dacOverride | dacReadSearch
	if own.effective&dac == 0 {
		return nil, nil
	}
	without := own
	without.effective &^= dac
	err = withSets(without, own, func() {
		for _, dir := range slices.Concat(c.Sockets, c.Files) {
			if errors.Is(unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS), unix.EACCES) {
				kept = append(kept, observe.Capability{Name: "CAP_DAC_OVERRIDE", Use: "files in " + dir})
				break
			}
		}
		for _, path := range c.Reads {
			if !readable(path) {
				kept = append(kept, observe.Capability{Name: "CAP_DAC_READ_SEARCH", Use: "reading " + path})
				break
			}
		}
	})
	return kept, err
}

// withSets runs f in a thread with sets of its own.
func withSets(sets, own threadSets, f func()) error {
	runtime.LockOSThread()
	header, data := capabilityHeader(), sets.data()
	if err := unix.Capset(&header, &data[0]); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("capset: %w", err)
	}
	f()
	header, data = capabilityHeader(), own.data()
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("capset: %w", err) // other goroutines cannot use this thread
	}
	runtime.UnlockOSThread()
	return nil
}

// readable reports whether the calling thread may read a file, or all files of a directory. A file that
// does not exist is readable.
func readable(path string) bool {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return !errors.Is(err, fs.ErrPermission)
	case info.Mode().IsRegular():
		f, err := os.Open(path)
		if err == nil {
			_ = f.Close() // nothing was written
		}
		return !errors.Is(err, fs.ErrPermission)
	case !info.IsDir():
		return true // opening a pipe or a device may wait
	}
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrPermission) {
		return false
	}
	for _, e := range entries {
		name := filepath.Join(path, e.Name())
		if info, err := os.Stat(name); err == nil && info.IsDir() {
			continue
		}
		if !readable(name) {
			return false
		}
	}
	return true
}
