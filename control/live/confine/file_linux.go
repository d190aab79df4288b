package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// capabilities returns the ones to keep: those in the configuration, and those without which the process cannot open the
// configuration's files: root without them has no access to other users' private files.
func (c *Config) capabilities() (kept []observe.Capability, err error) {
	const dac = 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	kept = slices.Clone(c.Capabilities)
	own, err := ownSets()
	if err != nil || own[0].Effective&dac == 0 {
		return kept, err
	}
	without := own
	without[0].Effective &^= dac
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
	header := capabilityHeader()
	if err := unix.Capset(&header, &sets[0]); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("capset: %w", err)
	}
	f()
	if err := unix.Capset(&header, &own[0]); err != nil {
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

// handled are the rights that Landlock takes away: everything but reading. What a process reads later
// may be anywhere, behind links that change (projected volumes), so a list of it would break.
const handled landlock.AccessFSSet = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
	unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_REFER |
	unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
	unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV

// scopes are what the process cannot reach outside: other processes by signals, and abstract Unix sockets.
const scopes landlock.ScopedSet = unix.LANDLOCK_SCOPE_SIGNAL | unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET

var errProgram = errors.New("a program that the process starts may change any file")

// restrictFiles forbids changes to files, except to those in the configuration. abi is 0 if it does not.
func (c *Config) restrictFiles() (abi int, changes []string, err error) {
	if c.Program != "" {
		return 0, nil, errProgram
	}
	if abi, err = landlockABI(); err != nil {
		return 0, nil, err
	}
	var rules []landlock.Rule
	for _, r := range []struct {
		paths  []string
		rights landlock.AccessFSSet
		what   string
	}{
		{c.Writes, unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE, "write "},
		{c.Locks, unix.LANDLOCK_ACCESS_FS_MAKE_REG, "empty files in "},
		{c.Files, unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE, "files in "},
		{c.Sockets, unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE, "sockets in "},
	} {
		for _, path := range r.paths {
			if pin(path) {
				rules = append(rules, landlock.PathAccess(r.rights, path))
				changes = append(changes, r.what+path)
			}
		}
	}
	config, err := landlock.NewConfig(handled, scopes)
	if err == nil {
		err = config.BestEffort().Restrict(rules...)
	}
	if err != nil {
		return 0, nil, err
	}
	return abi, changes, nil
}

// pin keeps a directory of /proc/sys in memory, and reports whether the path exists. A rule applies to an
// inode, and procfs makes another one when a directory that was forgotten is looked up again.
func pin(path string) bool {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	var s unix.Statfs_t
	if unix.Fstatfs(fd, &s) != nil || s.Type != unix.PROC_SUPER_MAGIC {
		_ = unix.Close(fd)
	}
	return true
}

// landlockABI is the kernel's version of Landlock.
func landlockABI() (int, error) {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	switch errno {
	case 0:
		return int(abi), nil
	case unix.ENOSYS:
		return 0, errors.New("the kernel does not have it (CONFIG_SECURITY_LANDLOCK)")
	case unix.EOPNOTSUPP:
		return 0, errors.New("it is off (boot parameter lsm=)")
	}
	return 0, fmt.Errorf("the kernel's version: %w", os.NewSyscallError("landlock_create_ruleset", errno))
}
