package lab

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// These tests start this test binary again as the commands of nfqproxy lab, with
// fake daemons.
const commandVariable = "LAB_TEST_COMMAND"

// runCommand is what main would do for a command line.
func runCommand(name string, args []string) int {
	var code int
	var err error
	switch name {
	case "up":
		code, err = RunUp(RunOptions{Lab: args[0], Stdout: os.Stdout, Stderr: os.Stderr, All: true, Logs: true})
	case "exec":
		code, err = Exec(args[0], args[1], args[2:])
	case "status":
		var s *Status
		if s, err = StatusOf(args[0]); err == nil {
			err = s.WriteText(os.Stdout)
		}
	case "down":
		err = Down(args[0])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

func command(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	netnstest.Require(t)
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), commandVariable+"="+name, fakeDaemonVariable+"=well")
	return cmd
}

// output runs a command and gives what it wrote and its exit code.
func output(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

// startUp starts "lab up" and waits until the lab can be used. What else it writes
// goes to rest, which ends with the last process that holds it.
func startUp(t *testing.T, name string) (cmd *exec.Cmd, rest io.Reader) {
	t.Helper()
	cmd = command(t, "up", name)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_, _ = io.Copy(io.Discard, r)
		_ = r.Close()
	})
	b := bufio.NewReader(r)
	var printed strings.Builder
	for {
		line, err := b.ReadString('\n')
		printed.WriteString(line)
		if err != nil {
			t.Fatalf("lab up %s ended: %s", name, printed.String())
		}
		if strings.HasPrefix(line, "Decisions") {
			return cmd, b
		}
	}
}

func TestExec(t *testing.T) {
	startUp(t, "kind")
	const shell = "shell"
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte{0, 1, 2, 3}, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		command []string
		stdin   string
		stdout  string
		stderr  string // part of it
		code    int
	}{
		{"exit code", []string{"sh", "-c", "exit 7"}, "", "", "", 7},
		{"killed", []string{"sh", "-c", "kill -9 $$"}, "", "", "", 137},
		{"streams", []string{"sh", "-c", "cat; echo err >&2"}, "in", "in", "err\n", 0},
		{"environment", []string{"sh", "-c", "echo $NFQPROXY_LAB/$NFQPROXY_LAB_HOST/$LAB_TEST_EXTRA"}, "", "kind/shell/extra\n", "", 0},
		{"address", []string{"sh", "-c", "ip -br address show eth0 | grep -o 10.244.1.9/32"}, "", "10.244.1.9/32\n", "", 0},
		{"devices in /sys", []string{"ls", "/sys/class/net"}, "", "eth0\nlo\n", "", 0},
		// As from a shell.
		{"no such command", []string{"no-such-command"}, "", "", "no-such-command: program not found", 127},
		{"no such path", []string{"./no-such-command"}, "", "", "./no-such-command: program not found", 127},
		{"below a file", []string{"/etc/passwd/x"}, "", "", "/etc/passwd/x: program not found", 127},
		{"not executable", []string{"/etc/passwd"}, "", "", "/etc/passwd: permission denied", 126},
		{"a directory", []string{"/etc"}, "", "", "/etc: is a directory", 126},
		{"no program", []string{garbage}, "", "", "exec format error", 126},
		// Output of programs is not ours to change.
		{"escape sequences", []string{"printf", `\033[31mred\033[0m`}, "", "\x1b[31mred\x1b[0m", "", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.name == "address" {
				netnstest.RequireTool(t, "ip")
			}
			cmd := command(t, "exec", append([]string{"kind", shell}, tc.command...)...)
			cmd.Stdin = strings.NewReader(tc.stdin)
			cmd.Env = append(cmd.Env, "LAB_TEST_EXTRA=extra")
			stdout, stderr, code := output(t, cmd)
			if stdout != tc.stdout || !strings.Contains(stderr, tc.stderr) || code != tc.code {
				t.Errorf("stdout %q, stderr %q, exit code %d; want %q, %q, %d", stdout, stderr, code, tc.stdout, tc.stderr, tc.code)
			}
		})
	}
	cmd := command(t, "exec", "", shell, "pwd") // the only lab needs no name
	cmd.Dir = "/usr"
	if stdout, stderr, _ := output(t, cmd); stdout != "/usr\n" {
		t.Errorf("directory %q, %s", stdout, stderr)
	}
	_, stderr, code := output(t, command(t, "exec", "kind", "nobody", "true"))
	if code != 1 || !strings.Contains(stderr, `no host "nobody" in this lab`) || !strings.Contains(stderr, "kind-worker2") {
		t.Errorf("unknown host: %d, %s", code, stderr)
	}
}

// A directory of PATH that cannot be searched does not hide that there is no such program.
func TestLookPath(t *testing.T) {
	dir := t.TempDir()
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "text"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := lookPath("no-such-program", dir, []string{"PATH=" + loop}); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("no such program: %v", err)
	}
	if _, err := lookPath("text", dir, []string{"PATH=" + dir + ":" + loop}); !errors.Is(err, unix.EACCES) {
		t.Errorf("not executable: %v", err)
	}
	if p, err := lookPath("sh", dir, []string{"PATH=" + loop + ":/bin"}); err != nil || p != "/bin/sh" {
		t.Errorf("sh: %q, %v", p, err)
	}
}

// A signal for lab exec is one for the command, and its end is the command's.
func TestExecSignals(t *testing.T) {
	startUp(t, "kind")
	start := func(script string) (*exec.Cmd, *bufio.Reader) {
		cmd := command(t, "exec", "kind", "kind-worker", "sh", "-c", script)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout = w
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = w.Close()
		b := bufio.NewReader(r)
		if line, err := b.ReadString('\n'); line != "on\n" {
			t.Fatalf("printed %q, %v", line, err)
		}
		return cmd, b
	}
	cmd, _ := start("trap 'exit 9' TERM; echo on; while :; do sleep 0.01; done")
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 9 {
		t.Errorf("after SIGTERM: exit code %d, want 9", code)
	}
	cmd, rest := start("echo on; sleep 1000")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	// Ends when the command and its children have let go of it.
	if b, err := io.ReadAll(rest); err != nil || len(b) > 0 {
		t.Errorf("after the end of lab exec: %q, %v", b, err)
	}
}

// On a terminal the command has a terminal of its own, of the same size.
func TestExecTerminal(t *testing.T) {
	startUp(t, "kind")
	run := func(input, script string) (string, int) {
		cmd := command(t, "exec", "kind", "shell", "sh", "-c", script)
		terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 33, Cols: 77})
		if err != nil {
			t.Fatal(err)
		}
		defer terminal.Close()
		b := bufio.NewReader(terminal)
		var printed strings.Builder
		for {
			line, err := b.ReadString('\n')
			printed.WriteString(line)
			if strings.Contains(line, "ready") {
				_, _ = io.WriteString(terminal, input)
			}
			if err != nil { // EIO: the other end is closed
				break
			}
		}
		_ = cmd.Wait()
		return printed.String(), cmd.ProcessState.ExitCode()
	}
	out, code := run("", "tty; stty size; exit 5")
	if !strings.Contains(out, "/dev/pts/") || !strings.Contains(out, "33 77") || code != 5 {
		t.Errorf("terminal: %q, exit code %d", out, code)
	}
	// Ctrl-C goes to the command, which goes on.
	out, code = run("\x03", "trap 'echo interrupted; exit 6' INT; echo ready; while :; do sleep 0.01; done")
	if !strings.Contains(out, "interrupted") || code != 6 {
		t.Errorf("Ctrl-C: %q, exit code %d", out, code)
	}
	out, code = run("typed\n", "echo ready; read line; echo got $line")
	if !strings.Contains(out, "got typed") || code != 0 {
		t.Errorf("typing: %q, exit code %d", out, code)
	}
}

// inShell starts a command as "$0" "$@" of a script of bash, on a terminal.
func inShell(t *testing.T, script string, cmd *exec.Cmd) *os.File {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	shell, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Path, cmd.Args = shell, append([]string{"bash", "-mc", script, self}, cmd.Args[1:]...)
	terminal, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = terminal.Close(); _ = cmd.Wait() })
	return terminal
}

// A background job of a shell runs without the terminal's input, and is not stopped.
func TestExecInBackground(t *testing.T) {
	startUp(t, "kind")
	terminal := inShell(t, `"$0" "$@" & wait $!; echo code $?`, command(t, "exec", "kind", "shell", "sh", "-c", "read line; echo got [$line]; exit 5"))
	out, _ := io.ReadAll(terminal) // EIO: the other end is closed
	if !strings.Contains(string(out), "got []") || !strings.Contains(string(out), "code 5") {
		t.Errorf("printed %q", out)
	}
}

// In a pipeline the terminal stays as it is for the next program.
func TestExecInPipeline(t *testing.T) {
	startUp(t, "kind")
	terminal := inShell(t, `"$0" "$@" | while read line; do echo next $line; done`, command(t, "exec", "kind", "shell", "sh", "-c", "echo ready; read line; echo got $line"))
	b := bufio.NewReader(terminal)
	if line, err := b.ReadString('\n'); line != "next ready\r\n" {
		t.Fatalf("printed %q, %v", line, err)
	}
	if _, err := io.WriteString(terminal, "typed\n"); err != nil {
		t.Fatal(err)
	}
	out, _ := io.ReadAll(b)
	if !strings.Contains(string(out), "next got typed\r\n") {
		t.Errorf("printed %q", out)
	}
}

func TestStatusAndDown(t *testing.T) {
	up, rest := startUp(t, "kind")
	stdout, stderr, code := output(t, command(t, "status", "kind"))
	for _, want := range []string{"lab kind, up since", "kind-worker2        172.20.0.3  10.244.2.0/24  ready", "default/shell          10.244.1.9  kind-worker", "outside  192.0.2.10"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("status does not print %q: %s%s", want, stdout, stderr)
		}
	}
	if code != 0 {
		t.Errorf("status: exit code %d", code)
	}
	if _, stderr, code := output(t, command(t, "up", "kind")); code != 1 || !strings.Contains(stderr, "lab kind is already running") {
		t.Errorf("a second one: %d, %s", code, stderr)
	}
	startUp(t, "dual-stack")
	if _, stderr, code := output(t, command(t, "status", "")); code != 1 || !strings.Contains(stderr, "choose one with --lab: dual-stack, kind") {
		t.Errorf("which one: %d, %s", code, stderr)
	}
	if _, stderr, code := output(t, command(t, "down", "dual-stack")); code != 0 {
		t.Errorf("down: %d, %s", code, stderr)
	}
	if _, stderr, code := output(t, command(t, "down", "kind")); code != 0 {
		t.Errorf("down: %d, %s", code, stderr)
	}
	// It is gone, before anyone waited for it.
	if _, stderr, _ := output(t, command(t, "status", "kind")); !strings.Contains(stderr, "lab kind is not running") {
		t.Errorf("after down: %s", stderr)
	}
	printed, _ := io.ReadAll(rest)
	if err := up.Wait(); err != nil || !strings.Contains(string(printed), "stopping lab") {
		t.Errorf("lab up ended with %v: %s", err, printed)
	}
	if _, stderr, code := output(t, command(t, "down", "")); code != 1 || !strings.Contains(stderr, "no lab is running") {
		t.Errorf("down again: %d, %s", code, stderr)
	}
}

// processes are the processes there are, but for zombies.
func processes(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(dirs, func(dir string) bool {
		stat, err := os.ReadFile(dir + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ") || strings.Contains(string(stat), ") X ")
	})
}

// waitForEnd waits for a process that the kernel is taking down: its files are
// closed before it is gone.
func waitForEnd(t *testing.T, dir string) {
	t.Helper()
	pid, err := strconv.Atoi(filepath.Base(dir))
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const timeout = 60_000 // milliseconds
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, timeout)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n != 1 || err != nil {
			t.Errorf("process %d is still there: %v", pid, err)
		}
		return
	}
}

// sockets are the names of labs.
func sockets(t *testing.T) []string {
	t.Helper()
	own, _, err := running()
	if err != nil {
		t.Fatal(err)
	}
	return own
}

// temporary are the files of labs among the temporary ones.
func temporary(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(os.TempDir(), "nfqproxy-lab-*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// However a lab ends, nothing is left.
func TestNothingIsLeft(t *testing.T) {
	files := temporary(t)
	for name, s := range map[string]unix.Signal{"Ctrl-C": unix.SIGINT, "SIGTERM": unix.SIGTERM, "SIGKILL": unix.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			netnstest.Require(t)
			before := processes(t)
			run, err := os.ReadDir("/run")
			if err != nil {
				t.Fatal(err)
			}
			up, rest := startUp(t, "kind")
			// Something that was started inside and left alone.
			if _, stderr, code := output(t, command(t, "exec", "kind", "shell", "sh", "-c", "sleep 1000 >/dev/null 2>&1 &")); code != 0 {
				t.Fatal(stderr)
			}
			if during := processes(t); len(during) < len(before)+6 {
				t.Fatalf("only %d processes with a lab, %d without", len(during), len(before))
			}
			if err := up.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			_, _ = io.ReadAll(rest) // ends with the last process that holds it
			err = up.Wait()
			if s != unix.SIGKILL && err != nil {
				t.Errorf("lab up ended with %v", err)
			}
			for _, dir := range processes(t) {
				if s == unix.SIGKILL && !slices.Contains(before, dir) {
					waitForEnd(t, dir)
				}
			}
			if after := processes(t); len(after) > len(before) {
				t.Errorf("processes before: %v, after: %v", before, after)
			}
			if left := sockets(t); len(left) > 0 {
				t.Errorf("still to be found: %v", left)
			}
			if after, err := os.ReadDir("/run"); err != nil || len(after) != len(run) {
				t.Errorf("/run before: %v, after: %v, %v", run, after, err)
			}
			if after := temporary(t); len(after) > len(files) {
				t.Errorf("temporary files before: %v, after: %v", files, after)
			}
		})
	}
}

// TestAFaultySaveIsShown saves a file that a running lab is made of.
func TestAFaultySaveIsShown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lab.yaml")
	if err := os.WriteFile(path, []byte(watched), 0o644); err != nil {
		t.Fatal(err)
	}
	_, rest := startUp(t, path)
	if err := os.WriteFile(path, []byte(strings.Replace(watched, "  - port: 80", "  - port: 0", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	want := path + ":17: document 2: Service default/web: spec.ports[0].port: 0 is not a port number"
	lines := bufio.NewScanner(rest)
	shown := false
	for !shown && lines.Scan() {
		shown = strings.Contains(lines.Text(), want)
	}
	if !shown {
		t.Errorf("lab up ended without %q", want)
	}
	stdout, stderr, code := output(t, command(t, "status", "watched"))
	if code != 0 || !strings.Contains(stdout, want) || !strings.Contains(stdout, "the last good state stays in force") {
		t.Errorf("status: %d, %s%s", code, stdout, stderr)
	}
	if _, stderr, code := output(t, command(t, "down", "watched")); code != 0 {
		t.Error(stderr)
	}
}

// TestInterruptedEarly: however early a signal comes, the lab ends, and nothing is left. The
// pauses are no waits but the case itself: they are spread over the start.
func TestInterruptedEarly(t *testing.T) {
	netnstest.Require(t)
	before, files := processes(t), temporary(t)
	times := netnstest.Cases(24, 8)
	began := time.Now()
	startUp(t, "dual-stack") // how long a start takes here
	longest := time.Since(began)
	if _, stderr, code := output(t, command(t, "down", "dual-stack")); code != 0 {
		t.Fatal(stderr)
	}
	codes := make(map[int]int)
	for i := range times {
		s := []unix.Signal{unix.SIGINT, unix.SIGTERM}[i%2]
		cmd := command(t, "up", "kind")
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = w, w
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = w.Close()
		time.Sleep(longest * time.Duration(i) / time.Duration(times))
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		// Ends with the last process that holds it. A lab that goes on would hold it for ever.
		_ = r.SetReadDeadline(time.Now().Add(time.Minute))
		printed, err := io.ReadAll(r)
		_ = r.Close()
		if err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			t.Fatalf("%s %s after the start is lost: %v: %s", s, longest*time.Duration(i)/time.Duration(times), err, printed)
		}
		_ = cmd.Wait()
		code := cmd.ProcessState.ExitCode() // -1: it was the signal that ended it
		wanted := false
		switch status := cmd.ProcessState.Sys().(syscall.WaitStatus); {
		case status.Signaled() || code == 128+int(s): // before the command, or the lab's process, handles signals
			wanted = len(printed) == 0 && (!status.Signaled() || status.Signal() == s)
		case code == 2:
			wanted = string(printed) == "nfqproxy: interrupted before lab kind was up\n"
		case code == 0:
			wanted = strings.Contains(string(printed), "\nDecisions")
		}
		if !wanted {
			t.Errorf("%s %s after the start: exit code %d, %s", s, longest*time.Duration(i)/time.Duration(times), code, printed)
		}
		codes[code]++
	}
	t.Logf("exit codes, and how often: %v", codes)
	for _, dir := range processes(t) {
		if !slices.Contains(before, dir) {
			waitForEnd(t, dir)
		}
	}
	if left := sockets(t); len(left) > 0 {
		t.Errorf("still to be found: %v", left)
	}
	if after := temporary(t); len(after) > len(files) {
		t.Errorf("temporary files before: %v, after: %v", files, after)
	}
}
