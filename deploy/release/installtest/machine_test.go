//go:build release

package installtest

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const source = "../../.."

// release is the directory of the release, and its version.
func release(t *testing.T) (dir, version string) {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join(source, "bin/release"))
	if err != nil {
		t.Fatal(err)
	}
	const prefix, suffix = "nfqproxy-", "-image.tar"
	files, err := filepath.Glob(filepath.Join(dir, prefix+"v*"+suffix))
	if err != nil || len(files) != 1 {
		t.Fatalf("%s has %d images (%v): run make release first", dir, len(files), err)
	}
	return dir, strings.TrimSuffix(strings.TrimPrefix(filepath.Base(files[0]), prefix), suffix)
}

// machine is this machine's root file system, with changes in memory only, and a network, processes and mounts
// of its own. /mnt is the release.
type machine struct {
	t    *testing.T
	pid  string // of its first process
	root string // the root file system, in the mounts of that process
}

// setup makes the root file system below $1, with the release in $2, and stays.
const setup = `set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/changes" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/changes,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount --bind "$2" mnt
ip link set lo up
echo ready
exec sleep infinity`

// newMachine starts a machine, which ends with the test. It has the programs that the test needs.
func newMachine(t *testing.T, programs ...string) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("the packages are installed by root: run make release-test as root")
	}
	for _, p := range append(programs, "nsenter", "ip", "chroot") {
		if _, err := exec.LookPath(p); err != nil {
			t.Fatalf("%s is not installed (Debian: apt install bash-completion containerd curl iproute2 man-db nftables rpm runc systemd)", p)
		}
	}
	dir, _ := release(t)
	place := t.TempDir()
	cmd := exec.Command("sh", "-c", setup, "setup", place, dir)
	// The signal comes when the thread ends that started the process.
	runtime.LockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		runtime.UnlockOSThread()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the machine does not start: %q, %v", line, err)
	}
	return &machine{t, strconv.Itoa(cmd.Process.Pid), filepath.Join(place, "root")}
}

func (m *machine) command(script string) *exec.Cmd {
	cmd := exec.Command("nsenter", "--target", m.pid, "--mount", "--net", "--pid", "chroot", m.root, "bash", "-c", script)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	return cmd
}

// run runs a script, which succeeds, and gives its output.
func (m *machine) run(script string) string {
	m.t.Helper()
	out, err := m.command(script).CombinedOutput()
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// start runs a script beside the test, and logs its output if the test fails.
func (m *machine) start(script string) {
	m.t.Helper()
	// A file: a pipe would be open as long as any process of the machine.
	log, err := os.Create(filepath.Join(m.t.TempDir(), "log"))
	if err != nil {
		m.t.Fatal(err)
	}
	cmd := m.command(script)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if m.t.Failed() {
			text, _ := os.ReadFile(log.Name())
			m.t.Logf("%s:\n%s", script, text)
		}
		_ = log.Close()
	})
}

// eventually repeats a script until it succeeds.
func (m *machine) eventually(script string) {
	m.t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		out, err := m.command(script).CombinedOutput()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			m.t.Fatalf("%s: %v\n%s", script, err, out)
		}
	}
}

func (m *machine) expect(script, pattern string) {
	m.t.Helper()
	if out := m.run(script); !regexp.MustCompile(pattern).MatchString(out) {
		m.t.Errorf("%s prints\n%s\nand not %s", script, out, pattern)
	}
}
