package datapath

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// lockNamespace makes sure that this is the only datapath of the calling thread's
// network namespace: two would replace and remove each other's rules. The lock is an
// abstract unix socket, whose name belongs to the network namespace and is free
// again when the process is gone, however it ended.
func lockNamespace() (io.Closer, error) {
	const name = "@nfqproxy-datapath"
	l, err := net.Listen("unix", name)
	if !errors.Is(err, syscall.EADDRINUSE) {
		if err != nil {
			return nil, fmt.Errorf("lock the network namespace: %w", err)
		}
		return l, nil
	}
	return nil, fmt.Errorf("another nfqproxy%s serves this network namespace: stop it first", holder(name))
}

// holder names the process that holds the lock, as far as it can be told.
func holder(name string) string {
	c, err := net.Dial("unix", name)
	if err != nil {
		return ""
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return ""
	}
	text := ""
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil && cred.Pid > 0 {
			text = fmt.Sprintf(" (process %d)", cred.Pid)
		}
	})
	return text
}
