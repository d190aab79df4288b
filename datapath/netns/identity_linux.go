package netns

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// view is the identity in force. The zero value: processes see the machine as this process does.
type view struct {
	mu       sync.Mutex // guards what follows
	closed   bool
	hostname string
	paths    []string          // of the files, sorted
	dir      string            // see source and machine; empty: there are no files yet
	set      map[string]string // the contents that SetIdentity gave the files last
}

// source is where the contents of a file are kept.
func source(dir, path string) string { return filepath.Join(dir, "files", path) }

// machine is where processes find a directory of the machine that is covered.
func machine(dir, covered string) string { return filepath.Join(dir, "machine", covered) }

// named is where the named network namespaces of the host are kept.
func named(dir string) string { return filepath.Join(dir, "netns") }

// SetIdentity sets the hostname and the files for the processes that [Namespace.Start] starts from now on. Processes
// that already run see the new contents of their files, and keep their hostname. What a process has written to a file stays
// until the file gets contents other than the last ones. The contents are kept below /run until Close: call it inside an
// [Isolation], where that is in memory.
func (n *Namespace) SetIdentity(i Identity) error {
	paths := slices.Sorted(maps.Keys(i.Files))
	for _, path := range paths {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path || filepath.Dir(path) == path {
			return fmt.Errorf("namespace %s: %q is not the absolute path of a file", n.name, path)
		}
	}
	v := &n.view
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return fmt.Errorf("namespace %s: %w", n.name, os.ErrClosed)
	}
	if err := v.write(i.Files); err != nil {
		return fmt.Errorf("files of namespace %s: %w", n.name, err)
	}
	v.hostname, v.paths = i.Hostname, paths
	return nil
}

// Hostname is the one of SetIdentity; empty: none is set.
func (n *Namespace) Hostname() string {
	n.view.mu.Lock()
	defer n.view.mu.Unlock()
	return n.view.hostname
}

// File is the content of a file as processes of the namespace see it; empty: it is not one of SetIdentity.
func (n *Namespace) File(path string) string {
	n.view.mu.Lock()
	defer n.view.mu.Unlock()
	if !slices.Contains(n.view.paths, path) {
		return ""
	}
	content, err := os.ReadFile(source(n.view.dir, path))
	if err != nil {
		return ""
	}
	return string(content)
}

func (v *view) write(files map[string]string) (err error) {
	if v.dir == "" && len(files) > 0 {
		if v.dir, err = os.MkdirTemp("/run", "nfqproxy-host-"); err != nil {
			return err
		}
		// Not for its owner only: programs may become another user.
		if err := errors.Join(os.Chmod(v.dir, 0o755), shareNamed(named(v.dir))); err != nil {
			return err
		}
	}
	for path, content := range files {
		if last, ok := v.set[path]; ok && last == content {
			continue
		}
		at := source(v.dir, path)
		err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.MkdirAll(machine(v.dir, filepath.Dir(path)), 0o755))
		if err == nil {
			err = os.WriteFile(at, []byte(content), 0o644)
		}
		if err != nil {
			return err
		}
		if v.set == nil {
			v.set = make(map[string]string)
		}
		v.set[path] = content
	}
	return nil
}

func (v *view) close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed, v.paths = true, nil
	if v.dir == "" {
		return nil
	}
	if err := unix.Unmount(named(v.dir), unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmounting %s: %w", named(v.dir), err)
	}
	return os.RemoveAll(v.dir)
}

// openNamed is [openNamed] of the host; -1: it has no files.
func (v *view) openNamed() (fd int, err error) {
	v.mu.Lock()
	dir := v.dir
	v.mu.Unlock()
	if dir == "" {
		return -1, nil
	}
	return openNamed(named(dir))
}

// enter gives the calling thread the identity, in UTS and mount namespaces of its own; it is in the latter already.
func (v *view) enter() error {
	v.mu.Lock()
	hostname, paths, dir := v.hostname, v.paths, v.dir
	v.mu.Unlock()
	if hostname != "" {
		if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
			return fmt.Errorf("making a UTS namespace: %w", err)
		}
		if err := unix.Sethostname([]byte(hostname)); err != nil {
			return fmt.Errorf("setting the hostname %s: %w", hostname, err)
		}
	}
	for _, path := range paths {
		// A file cannot be mounted on what does not exist. That includes links into a /run that is another one now.
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			if err := cover(dir, filepath.Dir(path), paths); err != nil {
				return fmt.Errorf("covering %s, which has no %s: %w", filepath.Dir(path), filepath.Base(path), err)
			}
		}
	}
	for _, path := range paths {
		if err := unix.Mount(source(dir, path), path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", path, err)
		}
	}
	return nil
}

// cover mounts a directory over one of the machine that has the machine's files, and those of paths that belong
// there.
func cover(dir, covered string, paths []string) error {
	below := machine(dir, covered)
	// With what is mounted below: otherwise it is not allowed in a user namespace.
	if err := unix.Mount(covered, below, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", covered, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return err
	}
	for _, path := range paths {
		if filepath.Dir(path) != covered {
			continue
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(below)
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, to := filepath.Join(below, e.Name()), filepath.Join(covered, e.Name())
		if slices.Contains(paths, to) {
			continue
		}
		if e.Type()&os.ModeSymlink != 0 { // it may be relative to where it is
			if from, err = os.Readlink(from); err != nil {
				return err
			}
		}
		if err := os.Symlink(from, to); err != nil {
			return err
		}
	}
	return nil
}
