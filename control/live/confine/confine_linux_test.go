package confine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// scenarioVariable names the scenario that a test binary runs instead of the tests.
const scenarioVariable, argumentVariable = "NFQPROXY_TEST_SCENARIO", "NFQPROXY_TEST_ARGUMENT"

func TestMain(m *testing.M) {
	if name := os.Getenv(scenarioVariable); name != "" {
		if err := scenarios[name](os.Getenv(argumentVariable)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	netnstest.Main(m)
}

// scenarios run in processes of their own, because confinement is for good.
var scenarios = map[string]func(argument string) error{
	"call":      makeCall,
	"work":      work,
	"threads":   threads,
	"files":     files,
	"private":   private,
	"program":   program,
	"unconfine": func(string) error { return printJSON(Unconfined("a test")) },
}

// run runs a scenario, and returns its output.
func run(t *testing.T, name, argument string) (stdout, stderr string, status syscall.WaitStatus) {
	t.Helper()
	netnstest.Require(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), scenarioVariable+"="+name, argumentVariable+"="+argument, "GORACE=atexit_sleep_ms=0")
	var out, messages strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &messages
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return out.String(), messages.String(), cmd.ProcessState.Sys().(syscall.WaitStatus)
}

// succeed runs a scenario that has to succeed.
func succeed(t *testing.T, name, argument string) (stdout string) {
	t.Helper()
	stdout, stderr, status := run(t, name, argument)
	if !status.Exited() || status.ExitStatus() != 0 {
		t.Fatalf("%s: %v: %s", name, status, stderr)
	}
	return stdout
}

func printJSON(value any) error { return json.NewEncoder(os.Stdout).Encode(value) }

var netAdmin = []observe.Capability{{Name: "CAP_NET_ADMIN", Use: "the test"}}

// calls are system calls with arguments that do nothing where they are allowed.
var calls = map[string]func() error{
	"mount":       func() error { return unix.Mount("", "/none", "", 0, "") },
	"execve":      func() error { return unix.Exec("/none", []string{"none"}, nil) },
	"fork":        func() error { _, err := os.StartProcess("/none", nil, &os.ProcAttr{}); return err },
	"ptrace":      func() error { return unix.PtraceAttach(1 << 30) },
	"setns":       func() error { return unix.Setns(-1, unix.CLONE_NEWNET) },
	"unshare":     func() error { return unix.Unshare(0) },
	"bpf":         func() error { return number(unix.Syscall(unix.SYS_BPF, 1<<30, 0, 0)) },
	"init_module": func() error { return unix.InitModule(nil, "") },
	"io_uring":    func() error { return number(unix.Syscall(unix.SYS_IO_URING_SETUP, 0, 0, 0)) },
	"seccomp":     func() error { return number(unix.Syscall(unix.SYS_SECCOMP, 1<<30, 0, 0)) },
	"setuid":      func() error { return number(unix.Syscall(unix.SYS_SETUID, uintptr(os.Getuid()), 0, 0)) },
	"clone user":  func() error { return number(unix.Syscall(unix.SYS_CLONE, unix.CLONE_THREAD|unix.CLONE_NEWUSER, 0, 0)) },

	"clone3":        func() error { return number(unix.Syscall(unix.SYS_CLONE3, 0, 0, 0)) },
	"packet socket": func() error { _, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0); return err },
	"vsock socket":  func() error { _, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0); return err },
	"terminal input": func() error {
		return number(unix.Syscall(unix.SYS_IOCTL, 0, unix.TIOCSTI, 0))
	},
	// The kernel ignores the upper half of the request.
	"terminal input, disguised": func() error {
		return number(unix.Syscall(unix.SYS_IOCTL, 0, unix.TIOCSTI|1<<32, 0))
	},
}

func number(_, _ uintptr, errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

func makeCall(name string) error {
	if s := Apply(Config{Capabilities: netAdmin}); s.SystemCalls == 0 {
		return fmt.Errorf("%s", s)
	}
	err := calls[name]()
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		_, err := fmt.Println(unix.ErrnoName(errno))
		return err
	}
	_, err = fmt.Println("allowed:", err)
	return err
}

// TestForbiddenCalls: a forbidden system call ends the process; some fail instead.
func TestForbiddenCalls(t *testing.T) {
	fail := map[string]string{
		"clone3": "ENOSYS\n", "packet socket": "EAFNOSUPPORT\n", "vsock socket": "EAFNOSUPPORT\n", "terminal input": "ENOTTY\n", "terminal input, disguised": "ENOTTY\n",
	}
	for name := range calls {
		stdout, stderr, status := run(t, "call", name)
		if want := fail[name]; want != "" {
			if stdout != want || status.ExitStatus() != 0 {
				t.Errorf("%s: %q, %v, want %q: %s", name, stdout, status, want, stderr)
			}
		} else if !status.Signaled() || status.Signal() != unix.SIGSYS {
			t.Errorf("%s: %q, %v, want SIGSYS: %s", name, stdout, status, stderr)
		}
	}
}

// work does, confined, what a daemon does all day.
func work(dir string) error {
	s := Apply(Config{Capabilities: netAdmin})
	if len(s.Missing) > 0 {
		return fmt.Errorf("%s", s)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer server.Close()
	var group sync.WaitGroup
	errs := make([]error, 50)
	for i := range errs {
		group.Go(func() {
			runtime.LockOSThread() // new threads
			r, err := http.Get(server.URL + "/file")
			if err == nil {
				_, err = io.Copy(io.Discard, r.Body)
				_ = r.Body.Close()
			}
			errs[i] = err
		})
	}
	group.Wait()
	runtime.GC()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	const route = 0
	conn, err := netlink.Dial(route, nil)
	if err != nil {
		return err
	}
	dump := netlink.Message{Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Request | netlink.Dump}, Data: make([]byte, unix.SizeofIfInfomsg)}
	if _, err := conn.Execute(dump); err != nil {
		return err
	}
	if _, err := net.Interfaces(); err != nil {
		return err
	}
	if _, err := net.Dial("tcp", "localhost:1"); !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("a closed port: %w", err)
	}
	if err := resolve(); err != nil {
		return err
	}
	if _, err := os.ReadDir(dir); err != nil {
		return err
	}
	time.Sleep(time.Millisecond)
	return conn.Close()
}

// resolve looks a name up, at a server of its own.
func resolve() error {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer server.Close()
	go func() {
		b := make([]byte, 1500)
		for {
			n, from, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			var question dnsmessage.Message
			if err := question.Unpack(b[:n]); err != nil || len(question.Questions) != 1 {
				continue
			}
			q := question.Questions[0]
			response := dnsmessage.Message{Header: dnsmessage.Header{ID: question.ID, Response: true}, Questions: question.Questions}
			if q.Type == dnsmessage.TypeA {
				header := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
				response.Answers = []dnsmessage.Resource{{Header: header, Body: &dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}}}}
			}
			packed, err := response.Pack()
			if err == nil {
				_, _ = server.WriteTo(packed, from)
			}
		}
	}()
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", server.LocalAddr().String())
	}}
	addresses, err := resolver.LookupHost(context.Background(), "collector.test.")
	if err == nil && !slices.Equal(addresses, []string{"192.0.2.1"}) {
		err = fmt.Errorf("collector.test is %q", addresses)
	}
	return err
}

// TestWork: the filter allows what a daemon does.
func TestWork(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	succeed(t, "work", dir)
}

// threads prints the state, and the status of each thread.
func threads(string) error {
	// Threads from before, in system calls and idle.
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	var running, done sync.WaitGroup
	for range 8 {
		running.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			running.Done()
			_, _ = unix.Read(int(r.Fd()), make([]byte, 1)) // Fd makes it blocking
		})
	}
	running.Wait()
	s := Apply(Config{Capabilities: netAdmin})
	tasks, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil {
		return err
	}
	if err := printJSON(s); err != nil {
		return err
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		} else if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			if strings.HasPrefix(name, "Cap") || name == "NoNewPrivs" || name == "Seccomp" {
				fmt.Printf("%s %s ", name, strings.TrimSpace(value))
			}
		}
		fmt.Println()
	}
	return w.Close()
}

// TestThreads: each thread has one capability, no way to get others, and the filter.
func TestThreads(t *testing.T) {
	first, rest, _ := strings.Cut(succeed(t, "threads", ""), "\n")
	const admin, none = "0000000000001000", "0000000000000000"
	want := fmt.Sprintf("CapInh %s CapPrm %s CapEff %s CapBnd %s CapAmb %s NoNewPrivs 1 Seccomp 2 ", none, admin, admin, admin, none)
	n := 0
	for line := range strings.Lines(rest) {
		n++
		if line = strings.TrimSuffix(line, "\n"); line != want {
			t.Errorf("a thread has %s\nwant %s", line, want)
		}
	}
	if n < 9 {
		t.Errorf("%d threads", n)
	}
	var s observe.Confinement
	if err := json.Unmarshal([]byte(first), &s); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(s.Capabilities, netAdmin) || !s.NoNewPrivs || s.SystemCalls == 0 || s.LandlockABI == 0 || s.Program != "" || len(s.Missing) > 0 {
		t.Errorf("state %+v", s)
	}
}

// files changes files of a directory, in ways that are allowed and that are not.
func files(dir string) error {
	in := func(name string) string { return filepath.Join(dir, name) }
	open, err := os.OpenFile(in("log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	s := Apply(Config{Capabilities: netAdmin, Writes: []string{in("writable"), "/proc/sys/net", in("absent")}, Locks: []string{in("locks")}, Files: []string{in("files")}, Sockets: []string{in("sockets")}})
	if err := printJSON(s); err != nil {
		return err
	}
	create := func(name string, flags int) error {
		f, err := os.OpenFile(in(name), flags, 0o644)
		if err == nil {
			err = f.Close()
		}
		return err
	}
	socket := func(name string) error {
		l, err := net.Listen("unix", in(name))
		if err == nil {
			err = l.Close() // removes it
		}
		return err
	}
	_, e := open.WriteString("x")
	for _, c := range []struct {
		what    string
		allowed bool
		err     error
	}{
		{"writing to an open file", true, e},
		{"reading", true, create("other/file", os.O_RDONLY)},
		{"writing where it is allowed", true, create("writable/file", os.O_WRONLY)},
		{"a lock", true, create("locks/lock", os.O_CREATE|os.O_RDONLY)},
		{"a socket", true, socket("sockets/socket")},
		{"a file where files are allowed", true, errors.Join(os.WriteFile(in("files/new"), []byte("x"), 0o600), os.Rename(in("files/new"), in("files/file")), os.Remove(in("files/file")))},
		{"a sysctl", true, os.WriteFile("/proc/sys/net/ipv4/conf/lo/forwarding", []byte("1"), 0)},

		{"writing", false, create("other/file", os.O_WRONLY)},
		{"creating", false, create("other/new", os.O_CREATE|os.O_WRONLY)},
		{"creating where writing is allowed", false, create("writable/new", os.O_CREATE|os.O_WRONLY)},
		{"a directory where files are allowed", false, os.Mkdir(in("files/directory"), 0o755)},
		{"writing where locks are allowed", false, create("locks/written", os.O_CREATE|os.O_WRONLY)},
		{"removing", false, os.Remove(in("other/file"))},
		{"renaming", false, os.Rename(in("other/file"), in("other/renamed"))},
		{"linking", false, os.Symlink("file", in("other/link"))},
		{"a directory", false, os.Mkdir(in("other/directory"), 0o755)},
		{"a socket elsewhere", false, socket("other/socket")},
		{"truncating", false, os.Truncate(in("other/file"), 0)},
		{"another sysctl", false, os.WriteFile("/proc/sys/kernel/core_pattern", []byte("core"), 0)},
	} {
		if c.allowed && c.err != nil || !c.allowed && !errors.Is(c.err, fs.ErrPermission) {
			return fmt.Errorf("%s: error %w, allowed: %v", c.what, c.err, c.allowed)
		}
	}
	return nil
}

// TestFiles: Landlock denies changes of files except for the configured ones.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"writable", "locks", "files", "sockets", "other"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"writable/file", "other/file"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var s observe.Confinement
	if err := json.Unmarshal([]byte(succeed(t, "files", dir)), &s); err != nil {
		t.Fatal(err)
	}
	want := []string{"write " + dir + "/writable", "write /proc/sys/net", "empty files in " + dir + "/locks", "files in " + dir + "/files", "sockets in " + dir + "/sockets"}
	if !slices.Equal(s.Changes, want) {
		t.Errorf("changes %q, want %q", s.Changes, want)
	}
}

// private reads what only another user may read.
func private(dir string) error {
	s := Apply(Config{Capabilities: netAdmin, Reads: []string{filepath.Join(dir, "public"), filepath.Join(dir, "manifests")}})
	if err := printJSON(s); err != nil {
		return err
	}
	_, err := os.ReadFile(filepath.Join(dir, "manifests", "private"))
	return err
}

// TestPrivateFiles: root keeps a capability for files of other users that it cannot read without.
func TestPrivateFiles(t *testing.T) {
	netnstest.Require(t)
	dir := t.TempDir()
	manifests := filepath.Join(dir, "manifests")
	file := filepath.Join(manifests, "private")
	for _, err := range []error{os.Mkdir(manifests, 0o755), os.WriteFile(file, []byte("x"), 0o600), os.WriteFile(filepath.Join(dir, "public"), []byte("x"), 0o644)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	state := func() (s observe.Confinement) {
		t.Helper()
		if err := json.Unmarshal([]byte(succeed(t, "private", dir)), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := state(); !slices.Equal(s.Capabilities, netAdmin) {
		t.Errorf("for own files: %v", s.Capabilities)
	}
	// In a user namespace there is only this user; then no right to the own file stands for another's.
	const other = 1000
	if err := os.Chown(file, other, other); errors.Is(err, unix.EINVAL) {
		if err := os.Chmod(file, 0); err != nil {
			t.Fatal(err)
		}
	} else if err != nil {
		t.Fatal(err)
	}
	if s, want := state(), []observe.Capability{{Name: "CAP_DAC_READ_SEARCH", Use: "reading " + manifests}, netAdmin[0]}; !slices.Equal(s.Capabilities, want) {
		t.Errorf("for another user's file: %v, want %v", s.Capabilities, want)
	}
}

// program starts a program.
func program(path string) error {
	s := Apply(Config{Capabilities: netAdmin, Program: path})
	if err := printJSON(s); err != nil {
		return err
	}
	if err := calls["unshare"](); !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("unshare: %w", err)
	}
	return exec.Command(path).Run()
}

// TestProgram: where a program is to be started, it can be, and the state is the reason for the rest.
func TestProgram(t *testing.T) {
	netnstest.RequireTool(t, "true")
	path, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	var s observe.Confinement
	if err := json.Unmarshal([]byte(succeed(t, "program", path)), &s); err != nil {
		t.Fatal(err)
	}
	if s.Program != path || s.LandlockABI != 0 || s.SystemCalls == 0 || len(s.Missing) != 1 || !strings.HasPrefix(s.Missing[0], "Landlock: ") {
		t.Errorf("state %+v", s)
	}
}

func TestUnconfined(t *testing.T) {
	var s observe.Confinement
	if err := json.Unmarshal([]byte(succeed(t, "unconfine", "")), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Capabilities) < 2 || s.SystemCalls != 0 || s.LandlockABI != 0 || !slices.Equal(s.Missing, []string{"confinement: a test"}) {
		t.Errorf("state %+v", s)
	}
}
