package netns

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// namedDir is where ip(8) keeps the network namespaces that have names: each is mounted on a file.
const namedDir = "/run/netns"

// shareNamed prepares a directory for the named network namespaces of a host: what one of its processes mounts there
// is seen by all others. Each of them has a mount namespace of its own.
func shareNamed(dir string) error {
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.MkdirAll(namedDir, 0o755)); err != nil {
		return err
	}
	// Propagation is between mounts of the same directory (mount_namespaces(7), shared subtrees).
	err := unix.Mount(dir, dir, "", unix.MS_BIND, "")
	if err == nil {
		err = unix.Mount("", dir, "", unix.MS_SHARED, "")
	}
	if err != nil {
		return fmt.Errorf("sharing %s: %w", dir, err)
	}
	return nil
}

// openNamed opens a copy of the mount of shareNamed, for mountNamed; -1: the kernel is older than 5.2, or forbids it, and
// each process has its own names.
func openNamed(dir string) (fd int, err error) {
	fd, err = unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return -1, nil
	}
	return fd, os.NewSyscallError("open_tree", err)
}

// mountNamed mounts the copy in the calling thread's mount namespace, and closes it.
func mountNamed(fd int) error {
	defer unix.Close(fd)
	return os.NewSyscallError("move_mount", unix.MoveMount(fd, "", unix.AT_FDCWD, namedDir, unix.MOVE_MOUNT_F_EMPTY_PATH))
}
