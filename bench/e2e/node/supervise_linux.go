package node

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// startTimeout is the time that containerd has until it serves.
const startTimeout = 2 * time.Minute

// KubeletPID is the file with the number of kubelet's process, on the node.
const KubeletPID = "/run/kubelet.pid"

// supervise runs containerd and kubelet, and waits for all processes of the node. If kubelet
// ends it is started again, as a service manager would; the end of containerd is an error.
func supervise() error {
	path := "PATH=" + programsDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	containerd, err := start(path, "/var/log/containerd.log", "/usr/bin/containerd", "--config="+containerdConfig, "--log-level=warn")
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(50 * time.Millisecond) {
		conn, err := net.Dial("unix", containerdSocket)
		if err == nil {
			_ = conn.Close()
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("containerd does not serve: %w (see log/containerd.log)", err)
		}
	}
	flags, err := os.ReadFile(kubeletFlags)
	if err != nil {
		return err
	}
	kubelet := 0
	for {
		if kubelet == 0 {
			if kubelet, err = start(path, "/var/log/kubelet.log", programsDir+"/kubelet", strings.Fields(string(flags))...); err != nil {
				return err
			}
			if err := os.WriteFile(KubeletPID, fmt.Appendln(nil, kubelet), 0o644); err != nil {
				return err
			}
		}
		var status unix.WaitStatus
		switch ended, err := unix.Wait4(-1, &status, 0, nil); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return os.NewSyscallError("wait4", err)
		case ended == containerd:
			return fmt.Errorf("containerd ended: %v (see log/containerd.log)", status)
		case ended == kubelet:
			fmt.Fprintf(os.Stderr, "%s kubelet ended: %v\n", time.Now().Format(time.TimeOnly), status)
			kubelet = 0
			time.Sleep(time.Second) // as systemd's RestartSec: kubelet may fail at once
		}
	}
}

// start starts a program without os/exec, which would wait for it: this process waits for all.
func start(environment, log, program string, args ...string) (pid int, err error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	p, err := os.StartProcess(program, append([]string{program}, args...), &os.ProcAttr{
		Dir: "/", Env: []string{environment}, Files: []*os.File{null, file, file},
	})
	if err != nil {
		return 0, err
	}
	return p.Pid, nil
}

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
