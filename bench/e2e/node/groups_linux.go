package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// hierarchy is one hierarchy of control groups: the only one of version 2, or one of several of
// version 1.
type hierarchy struct {
	controllers string // of version 1: "memory", "cpu,cpuacct" or "name=systemd"; empty: version 2
	own         string // the group of this process, from the root of the hierarchy
}

// parseHierarchies parses /proc/self/cgroup. Where version 1 is in use, a hierarchy of version 2 beside
// it has no controllers and is left out.
func parseHierarchies(text string) (all []hierarchy) {
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 {
			all = append(all, hierarchy{f[1], f[2]})
		}
	}
	if len(all) > 1 {
		all = slices.DeleteFunc(all, func(h hierarchy) bool { return h.controllers == "" })
	}
	return all
}

func hierarchies() ([]hierarchy, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	all := parseHierarchies(string(text))
	if len(all) == 0 {
		return nil, errors.New("this kernel has no control groups, which kubelet requires")
	}
	return all, nil
}

func (h hierarchy) unified() bool { return h.controllers == "" }

// dir is where systemd, kubelet and container runtimes want the hierarchy, below /sys/fs/cgroup.
func (h hierarchy) dir() string { return strings.TrimPrefix(h.controllers, "name=") }

// group is the path of a group of ours. In version 2 it is below the root: the group of this
// process may have no other groups, because it has processes.
func (h hierarchy) group(name string) string {
	if h.unified() {
		return name
	}
	return filepath.Join(h.own, name)
}

// mount mounts the hierarchy; in a cgroup namespace, from its root downwards.
func (h hierarchy) mount(at string) error {
	kind, options := "cgroup", h.controllers
	switch {
	case h.unified():
		kind = "cgroup2"
	case strings.HasPrefix(h.controllers, "name="):
		options = "none," + h.controllers
	}
	if err := unix.Mount("cgroup", at, kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
		return fmt.Errorf("mount control groups %q at %s: %w", h.controllers, at, err)
	}
	return nil
}

// join makes a group in each hierarchy and moves this process there. work is an empty directory.
func join(name, work string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		if err := h.mount(work); err != nil {
			return err
		}
		err := h.join(work, name)
		if err := errors.Join(err, unix.Unmount(work, unix.MNT_DETACH)); err != nil {
			return fmt.Errorf("join control group %s of %q: %w", name, h.controllers, err)
		}
	}
	return nil
}

func (h hierarchy) join(root, name string) error {
	group := h.group(name)
	if err := os.MkdirAll(filepath.Join(root, group), 0o755); err != nil {
		return err
	}
	// From the highest group that is ours downwards.
	dir, rest := root, group
	if !h.unified() {
		dir, rest = filepath.Join(root, h.own), name
	}
	for part := range strings.SplitSeq(rest, "/") {
		if err := h.enable(dir, filepath.Join(dir, part)); err != nil {
			return err
		}
		dir = filepath.Join(dir, part)
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
}

// enable makes the controllers of a group usable in the group below it.
func (h hierarchy) enable(group, below string) error {
	switch {
	case h.unified():
		text, err := os.ReadFile(filepath.Join(group, "cgroup.controllers"))
		if err != nil {
			return err
		}
		for controller := range strings.FieldsSeq(string(text)) {
			if err := os.WriteFile(filepath.Join(group, "cgroup.subtree_control"), []byte("+"+controller), 0); err != nil {
				return fmt.Errorf("enable controller %s: %w (the root group may have no processes: not possible in a container)", controller, err)
			}
		}
	case strings.Contains(","+h.controllers+",", ",cpuset,"):
		// A group without these takes no process.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			text, err := os.ReadFile(filepath.Join(group, file))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(below, file), text, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// RemoveGroups removes the control groups of nodes, which have ended: those below the group. It
// is for the process that started all, outside of their namespaces.
func RemoveGroups(name string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range all {
		errs = append(errs, removeTree(filepath.Join("/sys/fs/cgroup", h.dir(), h.group(name))))
	}
	return errors.Join(errs...)
}

// removeTree removes a group and those below it, the lowest first.
func removeTree(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, dir := range slices.Backward(dirs) {
		// Not os.Remove: it would report that of unlink(2).
		if rmdirErr := unix.Rmdir(dir); rmdirErr != nil {
			err = errors.Join(err, &fs.PathError{Op: "rmdir", Path: dir, Err: rmdirErr})
		}
	}
	return err
}
