package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// runInit is the first process of the PID namespace: it sets up the namespaces,
// starts the program, forwards signals and reaps orphans. With its end the kernel
// kills everything inside.
func runInit(s stage) int {
	lifeline := inherit(lifelineFD, 1)[0]
	files := inherit(lifelineFD+1, s.files)
	// No byte: the outer process died before the parent-death signal was in force.
	if n, err := lifeline.Read(make([]byte, 1)); n == 0 || err != nil {
		return 1
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	if _, err := lifeline.Write([]byte{initListens}); err != nil {
		return 1
	}
	fail := func(err error) int {
		_, _ = lifeline.WriteString(err.Error())
		return 1
	}
	if err := s.check(); err != nil {
		return fail(err)
	}
	if err := setUp(); err != nil {
		return fail(err)
	}
	// Keep the main thread for this goroutine.
	runtime.LockOSThread()

	cmd := exec.Command("/proc/self/exe")
	cmd.Args = os.Args
	cmd.Env = append(os.Environ(), stageVariable+"="+stage{programStage, s.outerNet, s.files}.String())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = files
	if err := cmd.Start(); err != nil {
		return fail(fmt.Errorf("starting the program: %w", err))
	}
	for _, f := range files {
		_ = f.Close()
	}
	// The second guard, should the parent-death signal have been lost to a change
	// of credentials: the outer end closed.
	go func() {
		_, _ = lifeline.Read(make([]byte, 1))
		os.Exit(1)
	}()
	stop := make(chan struct{})
	defer close(stop)
	go forward(signals, nil, cmd.Process, stop)
	return reap(cmd.Process.Pid)
}

// reap waits for all children, adopted ones included, until the given one ends.
// It takes the place of cmd.Wait.
func reap(pid int) int {
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 1
		case got == pid && status.Signaled():
			return 128 + int(status.Signal())
		case got == pid && status.Exited():
			return status.ExitStatus()
		}
	}
}

// setUp prepares the new mount and network namespaces.
func setUp() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	// Fails where /proc is partly masked, as in most containers. The outer /proc then
	// stays; only its process IDs differ.
	_ = unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	_ = unix.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=64m"); err != nil {
		return fmt.Errorf("mounting a tmpfs at /run: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bringing lo up: %w", err)
	}
	return nil
}
