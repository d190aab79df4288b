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
)

// Files of the init process: the lifeline first, then those passed on.
const (
	lifelineFD = 3
	firstFile  = 3 // in the program
)

// forwarded are the signals that are passed inwards. The inner processes have a
// process group of their own, so that a Ctrl-C reaches them once, by this way.
var forwarded = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGCONT,
}

// Run isolates the program and gives the exit code of what ran inside; 128 and
// the signal's number where a signal ended it. The error is for what went wrong
// before Main began. Run returns in the outer process only: inside, it exits
// with the code Main gave.
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

// check makes sure that the process is not where the outer one is.
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
		return 0, fmt.Errorf("looking at the own network namespace: %w", err)
	}
	return st.Ino, nil
}

// inherit takes over files from the process before.
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
	// From here on signals are kept for the inside; until here they end the process, as long as
	// the program has not taken them. Nothing is lost between.
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

	cmd, err := startInit(stage{initStage, id, len(files)}, theirs, files)
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
	// The init process was the only one with the other end.
	if text := <-report; text != "" {
		return 1, &Error{Doing: "setting up the namespaces", Err: errors.New(text), Remedy: remedy()}
	}
	return exitCode(waitErr)
}

// lifeline is a pair of connected sockets. The outer process's end closes when
// it dies, in whatever way.
func lifeline() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "lifeline"), os.NewFile(uintptr(fds[1]), "lifeline"), nil
}

// startInit starts the init process: without a user namespace for who may do
// that (root), with one for everyone else.
func startInit(s stage, lifeline *os.File, files []*os.File) (*exec.Cmd, error) {
	const namespaces = unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID
	command := func(flags uintptr) *exec.Cmd {
		cmd := exec.Command("/proc/self/exe")
		cmd.Args = os.Args
		cmd.Env = append(os.Environ(), stageVariable+"="+s.String())
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.ExtraFiles = append([]*os.File{lifeline}, files...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: unix.SIGKILL, Setpgid: true}
		return cmd
	}
	if os.Geteuid() == 0 {
		cmd := command(namespaces)
		err := cmd.Start()
		if err == nil {
			return cmd, nil
		}
		// Root in a container often lacks CAP_SYS_ADMIN: go on as anyone would.
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

// remedy looks for the setting that forbids namespaces and says how to go on.
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
			lines = append(lines, fmt.Sprintf("%s is %s, which forbids it to ordinary users; to allow it: sudo %s", name, r.forbids, r.allow))
		}
	}
	if root {
		return strings.Join(append(lines, "Root without CAP_SYS_ADMIN (in a container, say) cannot do this: give it that capability (docker run --privileged), or run as an ordinary user where user namespaces are allowed."), "\n")
	}
	if len(lines) == 0 {
		lines = append(lines, "No sysctl forbids it; a container runtime, a seccomp filter or a security module may (or the kernel lacks CONFIG_USER_NS).")
	}
	return strings.Join(append(lines, "Or run it as root: sudo nfqproxy lab ..."), "\n")
}

// initListens is the byte by which the init process says that it takes signals. The kernel
// drops those that come earlier: it does so for the first process of a PID namespace and
// signals it has no handler for (SIGNAL_UNKILLABLE, sig_task_ignored in kernel/signal.c).
const initListens = 0

// forward passes signals on until stopped; those that come before the other process listens,
// as soon as it does. A nil channel: it listens, or a signal that it does not take ends it.
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

// exitCode gives the exit code that a shell would give, from what Wait said.
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
