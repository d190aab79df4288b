package node

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"

	"golang.org/x/sys/unix"
)

// Socket is the name of a socket in Config.Dir, by which processes in other process namespaces
// find the node's first process.
const Socket = "socket"

// Listen opens a socket that [Find] finds. Its file stays after Close.
func Listen(path string) (net.Listener, error) {
	_ = os.Remove(path)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("%w (a path may have 107 bytes)", err)
	}
	l.SetUnlinkOnClose(false)
	return l, nil
}

// Find returns the number, in the process namespace of the caller, of the process that listens
// at a socket: the kernel translates it (SO_PEERCRED in unix(7)).
func Find(path string) (pid int, err error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	if controlErr := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); controlErr != nil {
		return 0, controlErr
	}
	if err != nil {
		return 0, os.NewSyscallError("getsockopt", err)
	}
	return int(peer.Pid), nil
}

// Command is a program in the namespaces of the process that listens at a socket. Its working
// directory is the root there, or dir, which is opened here.
func Command(socket, dir, program string, args ...string) (*exec.Cmd, error) {
	pid, err := Find(socket)
	if err != nil {
		return nil, err
	}
	enter := []string{"--target=" + strconv.Itoa(pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"}
	if dir != "" {
		enter = append(enter, "--wd="+dir)
	}
	return exec.Command("nsenter", append(append(enter, program), args...)...), nil
}
