package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// programsDir is where the node has Config.Programs.
const programsDir = "/opt/e2e/bin"

// ImagesDir is where the node has Config.Images.
const ImagesDir = "/opt/e2e/images"

// overSettings are settings of the whole machine, which kubelet wants to change. It finds the
// wanted values in files that are mounted over them.
var overSettings = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// mount is one mount below the node's root.
type mount struct {
	source, at, kind string
	flags            uintptr
	options          string
}

// makeRoot makes the node's root directory and enters it.
func (c *Config) makeRoot() error {
	if err := privateMounts(); err != nil {
		return err
	}
	// What the node writes is in memory, except for images and containers.
	const layers = "/run/layers"
	if err := os.MkdirAll(layers, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", layers, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	upper, work, root := layers+"/upper", layers+"/work", layers+"/root"
	for _, dir := range []string{upper, work, root} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("overlay", root, "overlay", 0, "lowerdir=/,upperdir="+upper+",workdir="+work); err != nil {
		return fmt.Errorf("mount the node's root, an overlay file system: %w", err)
	}
	containers := filepath.Join(c.Dir, "containers")
	if err := os.MkdirAll(containers, 0o700); err != nil {
		return err
	}
	logs := filepath.Join(c.Dir, "log")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	const safe = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	for _, m := range []mount{
		{"proc", "/proc", "proc", safe, ""},
		{"sysfs", "/sys", "sysfs", safe, ""},
		{"tmpfs", "/sys/fs/cgroup", "tmpfs", safe, "mode=0755"},
		{"/dev", "/dev", "", unix.MS_BIND | unix.MS_REC, ""},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
		{"tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		// An overlay file system is no place for those of containers.
		{containers, "/var/lib/containerd", "", unix.MS_BIND, ""},
		{logs, "/var/log", "", unix.MS_BIND, ""},
	} {
		if err := m.mount(root); err != nil {
			return err
		}
	}
	if err := c.bindPrograms(root); err != nil {
		return err
	}
	if err := mountGroups(root + "/sys/fs/cgroup"); err != nil {
		return err
	}
	for _, link := range [][2]string{{"/run", "/var/run"}, {"/run/lock", "/var/lock"}} {
		if err := os.Symlink(link[0], root+link[1]); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	// Files of the machine that are to be in the node have been opened or bound: from here
	// on there is no way back to its root.
	if err := c.copyFiles(root); err != nil {
		return err
	}
	if err := changeRoot(root); err != nil {
		return err
	}
	return hideSettings()
}

func (m mount) mount(root string) error {
	at := filepath.Join(root, m.at)
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(m.source, at, m.kind, m.flags, m.options); err != nil {
		return fmt.Errorf("mount %s at %s: %w", m.source, m.at, err)
	}
	return nil
}

// bindPrograms makes the programs and the images available, wherever on the machine they are.
func (c *Config) bindPrograms(root string) error {
	for _, program := range c.Programs {
		if err := bindFile(program, filepath.Join(root, programsDir, filepath.Base(program))); err != nil {
			return err
		}
	}
	for _, file := range c.Images {
		if err := bindFile(file, filepath.Join(root, ImagesDir, filepath.Base(file))); err != nil {
			return err
		}
	}
	return nil
}

func bindFile(file, at string) error {
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(at, nil, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(file, at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", file, err)
	}
	return nil
}

// mountGroups mounts the control groups of the node. In version 2 its processes are in a group
// of their own, because kubelet makes groups beside it.
func mountGroups(at string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		dir := filepath.Join(at, h.dir())
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := h.mount(dir); err != nil {
			return err
		}
		if h.unified() {
			if err := os.Mkdir(filepath.Join(dir, "init"), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, "init", "cgroup.procs"), []byte("0"), 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// changeRoot makes a directory the root and unmounts all else. Mounts that are made from now on
// are shared: kubelet and containers propagate them.
func changeRoot(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	// With "." twice the old root lies over the new one, see pivot_root(2).
	if err := unix.PivotRoot(".", "."); err != nil {
		return os.NewSyscallError("pivot_root", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return os.NewSyscallError("umount2", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return os.NewSyscallError("mount", unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""))
}

func hideSettings() error {
	for name, value := range overSettings {
		file := "/run/sysctl-" + strings.ReplaceAll(name, "/", "-")
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		err := unix.Mount(file, "/proc/sys/"+name, "", unix.MS_BIND, "")
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("mount over /proc/sys/%s: %w", name, err)
		}
	}
	return nil
}

// privateMounts keeps mounts that are made in this namespace to it.
func privateMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	return nil
}
