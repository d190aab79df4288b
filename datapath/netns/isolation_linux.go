package netns

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Files of the init process: the lifeline first, then the passed ones.
const (
	lifelineFD = 3
	firstFile  = 3 // in the program
)

// forwarded are the signals that the outer process forwards. The inner processes have a
// process group of their own, so that a Ctrl-C reaches them once.
var forwarded = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGCONT,
}

// Run isolates the program and returns the exit code of Main; 128 plus the signal's
// number if a signal ended it. The error is a failure before Main began. Run returns
// in the outer process only: inside, it exits with the exit code of Main.
func (i Isolation) Run() (code int, err error) {
	s, err := parseStage(os.Getenv(stageVariable))
	if err != nil {
		return 1, err
	}
	if err := os.Unsetenv(stageVariable); err != nil {
		return 1, err
	}
	switch s.name {
	case initStage:
		os.Exit(runInit(s))
	case programStage:
		if err := s.check(); err != nil {
			return 1, err
		}
		os.Exit(i.Main(inherit(firstFile, s.files)))
	}
	return i.runOuter()
}

// check returns an error in the network namespace of the outer process.
func (s stage) check() error {
	id, err := networkID()
	if err != nil {
		return err
	}
	if id == s.outerNet {
		return fmt.Errorf("environment variable %s is set, but this is the outer network namespace: unset it", stageVariable)
	}
	return nil
}

// networkID identifies the network namespace of the calling thread.
func networkID() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return 0, fmt.Errorf("reading the own network namespace: %w", err)
	}
	return st.Ino, nil
}

// inherit returns the files that the parent process passed.
func inherit(first, n int) []*os.File {
	files := make([]*os.File, n)
	for i := range files {
		unix.CloseOnExec(first + i)
		files[i] = os.NewFile(uintptr(first+i), fmt.Sprintf("inherited-%d", i))
	}
	return files
}

// runOuter starts the init process and waits for it.
func (i Isolation) runOuter() (code int, err error) {
	id, err := networkID()
	if err != nil {
		return 1, err
	}
	// From here on signals are forwarded to the inner process; until here they end this one,
	// unless the program handles them. No signal is lost in between.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, forwarded...)
	defer signal.Stop(signals)

	var files []*os.File
	if i.Prepare != nil {
		if files, err = i.Prepare(); err != nil {
			return 1, err
		}
		defer func() {
			for _, f := range files {
				_ = f.Close()
			}
		}()
	}
	ours, theirs, err := lifeline()
	if err != nil {
		return 1, err
	}
	defer ours.Close()

	// The parent-death signal belongs to the thread that started the child, not
	// to the process: keep the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	foreground := i.Foreground && term.IsTerminal(terminalFD)
	if foreground {
		defer restoreForeground()
	}
	cmd, err := startInit(stage{initStage, id, len(files)}, theirs, files, foreground)
	_ = theirs.Close()
	if err != nil {
		return 1, err
	}
	// Exec has happened, so the parent-death signal is set: from here on the child
	// cannot survive this process. It waits for this byte, or would have ended.
	if _, err := ours.Write([]byte{1}); err != nil && !errors.Is(err, unix.EPIPE) {
		return 1, err
	}
	listening, report := make(chan struct{}), make(chan string, 1)
	go func() {
		first := make([]byte, 1)
		if n, _ := ours.Read(first); n == 1 && first[0] == initListens {
			close(listening)
			first = nil
		} else {
			first = first[:n]
		}
		text, _ := io.ReadAll(io.LimitReader(ours, 4096))
		report <- string(first) + string(text)
	}()
	stop := make(chan struct{})
	defer close(stop)
	go forward(signals, listening, cmd.Process, stop)

	waitErr := cmd.Wait()
	// Only the init process had the other end.
	if text := <-report; text != "" {
		return 1, &Error{Doing: "setting up the namespaces", Err: errors.New(text), Remedy: remedy()}
	}
	return exitCode(waitErr)
}

// lifeline is a pair of connected sockets. The outer process's end closes when the process
// ends, however that happens.
func lifeline() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "lifeline"), os.NewFile(uintptr(fds[1]), "lifeline"), nil
}

// startInit starts the init process: without a user namespace for root, with one for other
// users.
func startInit(s stage, lifeline *os.File, files []*os.File, foreground bool) (*exec.Cmd, error) {
	const namespaces = unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID
	command := func(flags uintptr) *exec.Cmd {
		cmd := exec.Command("/proc/self/exe")
		cmd.Args = os.Args
		cmd.Env = append(os.Environ(), stageVariable+"="+s.String())
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.ExtraFiles = append([]*os.File{lifeline}, files...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: unix.SIGKILL, Setpgid: true, Foreground: foreground, Ctty: terminalFD}
		return cmd
	}
	if os.Geteuid() == 0 {
		cmd := command(namespaces)
		err := cmd.Start()
		if err == nil {
			return cmd, nil
		}
		// Root in a container often lacks CAP_SYS_ADMIN: continue as an ordinary user.
		if !errors.Is(err, unix.EPERM) {
			return nil, &Error{Doing: "making network, mount and PID namespaces", Err: err, Remedy: remedy()}
		}
	}
	cmd := command(namespaces | unix.CLONE_NEWUSER)
	cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
	cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	if err := cmd.Start(); err != nil {
		return nil, &Error{Doing: "making a user namespace", Err: err, Remedy: remedy()}
	}
	return cmd, nil
}

// terminalFD is the terminal of a process in the foreground: standard input.
const terminalFD = 0

// restoreForeground puts this process's group in the foreground again. A terminal that is gone needs nothing.
func restoreForeground() {
	// The kernel would stop a process in the background that does this (tty_check_change in drivers/tty/tty_jobctrl.c).
	signal.Ignore(unix.SIGTTOU)
	defer signal.Reset(unix.SIGTTOU)
	_ = unix.IoctlSetPointerInt(terminalFD, unix.TIOCSPGRP, unix.Getpgrp())
}

// remedy finds the setting that forbids namespaces and describes what to do.
func remedy() string {
	return remedyFrom(func(path string) string {
		text, _ := os.ReadFile(path)
		return strings.TrimSpace(string(text))
	}, os.Geteuid() == 0)
}

func remedyFrom(read func(path string) string, root bool) string {
	var lines []string
	for _, r := range []struct{ path, forbids, allow string }{
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"},
		{"/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=10000"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"},
	} {
		if read(r.path) == r.forbids {
			name := strings.ReplaceAll(strings.TrimPrefix(r.path, "/proc/sys/"), "/", ".")
			lines = append(lines, fmt.Sprintf("%s is %s, which forbids user namespaces to ordinary users; to allow them: sudo %s", name, r.forbids, r.allow))
		}
	}
	if root {
		return strings.Join(append(lines, "Root lacks CAP_SYS_ADMIN, as in a container: add that capability (docker run --privileged), or run as an ordinary user where user namespaces are allowed."), "\n")
	}
	if len(lines) == 0 {
		lines = append(lines, "No sysctl forbids user namespaces. A container runtime, a seccomp filter or a security module may forbid them, or the kernel lacks CONFIG_USER_NS.")
	}
	return strings.Join(append(lines, "Or run as root: sudo nfqproxy lab ..."), "\n")
}

// initListens is the byte that the init process sends once it handles signals. The kernel
// drops earlier ones: it ignores signals without a handler for the first process of a PID
// namespace (SIGNAL_UNKILLABLE, sig_task_ignored in kernel/signal.c).
const initListens = 0

// forward forwards signals until stopped. Signals that arrive before the other process handles
// them are sent as soon as it does. A nil channel: it does already, or a signal that it does
// not handle may end it.
func forward(signals <-chan os.Signal, listening <-chan struct{}, to *os.Process, stop <-chan struct{}) {
	var early []os.Signal
	for {
		select {
		case s := <-signals:
			if listening == nil {
				_ = to.Signal(s)
			} else if !slices.Contains(early, s) {
				early = append(early, s)
			}
		case <-listening:
			listening = nil
			for _, s := range early {
				_ = to.Signal(s)
			}
		case <-stop:
			return
		}
	}
}

// exitCode returns the exit code that a shell would, from the error of Wait.
func exitCode(waitErr error) (int, error) {
	var exit *exec.ExitError
	switch {
	case waitErr == nil:
		return 0, nil
	case errors.As(waitErr, &exit):
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 1, waitErr
}
