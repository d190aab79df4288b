package netns_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// stageVariable is the environment variable with the stage of an isolated process.
const stageVariable = "NFQPROXY_NETNS_STAGE"

// The tests below start this test binary again, isolated once more, as one of
// these programs.
const programVariable = "NETNS_TEST_PROGRAM"

var programs = map[string]func(files []*os.File) int{
	"exit": func([]*os.File) int { return 7 },
	"kill": func([]*os.File) int {
		_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
		select {}
	},
	"look": func(files []*os.File) int {
		passed, _ := io.ReadAll(files[0])
		host, _ := os.ReadDir("/run")
		links, _ := net.Interfaces()
		sys, _ := os.ReadDir("/sys/class/net")
		fmt.Printf("uid %d, parent %d, run %d, links %d %s, sys %d, stage %q, file %q\n", os.Getuid(), os.Getppid(), len(host),
			len(links), links[0].Flags&net.FlagUp, len(sys), os.Getenv(stageVariable), passed)
		return 0
	},
	"signal": func([]*os.File) int {
		c := make(chan os.Signal, 1)
		signal.Notify(c, unix.SIGTERM)
		fmt.Println("waiting")
		<-c
		return 42
	},
	// users starts a program that changes users, inside a namespace.
	"users": func([]*os.File) int {
		n, err := netns.New("a")
		if err != nil {
			fmt.Println(err)
			return 1
		}
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), dropVariable+"=1")
		cmd.Stdout = os.Stdout
		if err := errors.Join(n.Start(cmd), cmd.Wait()); err != nil {
			return 1
		}
		return 0
	},
	// orphan leaves a grandchild that outlives its parent, all holding stdout.
	"orphan": func([]*os.File) int {
		cmd := exec.Command("sh", "-c", "sleep 1000 & echo started")
		cmd.Stdout = os.Stdout
		_ = cmd.Run()
		select {}
	},
}

// dropVariable makes a program that gives up root, as tcpdump does.
const dropVariable = "NETNS_TEST_DROP"

func init() {
	if os.Getenv(dropVariable) != "" {
		fmt.Println(syscall.Setgroups([]int{104}), syscall.Setgid(105), syscall.Setuid(102))
		os.Exit(0)
	}
	// Before TestMain, which would isolate this process as a test binary.
	name := os.Getenv(programVariable)
	if name == "" {
		return
	}
	code, err := netns.Isolation{
		Prepare: func() ([]*os.File, error) {
			r, w, err := os.Pipe()
			if err != nil {
				return nil, err
			}
			_, err = w.WriteString("hello")
			return []*os.File{r}, errors.Join(err, w.Close())
		},
		Main: programs[name],
	}.Run()
	if err != nil {
		fmt.Println(err)
	}
	os.Exit(code)
}

// program is the command for one of the programs.
func program(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	netnstest.Require(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), programVariable+"="+name)
	return cmd
}

// asOrdinaryUser runs the command as an ordinary user.
func asOrdinaryUser(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if ids, err := os.ReadFile("/proc/self/uid_map"); err != nil || !strings.Contains(string(ids), "4294967295") {
		netnstest.Missing(t, "another user: there is only one here, because this is not really root")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

func TestExitCode(t *testing.T) {
	for name, want := range map[string]int{"exit": 7, "kill": 128 + int(unix.SIGKILL)} {
		err := program(t, name).Run()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != want {
			t.Errorf("%s: %v, want exit code %d", name, err, want)
		}
	}
}

func TestInside(t *testing.T) {
	const want = "uid 0, parent 1, run 0, links 1 up, sys 1, stage \"\", file \"hello\"\n"
	cmd := program(t, "look")
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != want {
		t.Errorf("as root: %v, %s, want %s", err, out, want)
	}
	cmd = program(t, "look")
	asOrdinaryUser(t, cmd)
	out, err = cmd.CombinedOutput()
	if err != nil || string(out) != want {
		t.Errorf("as an ordinary user: %v, %s, want %s", err, out, want)
	}
}

// Where there is one user only, giving up root is pretended.
func TestOneUser(t *testing.T) {
	cmd := program(t, "users")
	asOrdinaryUser(t, cmd)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "<nil> <nil> <nil>\n" {
		t.Errorf("%v, %s", err, out)
	}
}

func TestSignalsAreForwarded(t *testing.T) {
	cmd := program(t, "signal")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "waiting\n" {
		t.Fatalf("printed %q, %v", line, err)
	}
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 42 {
		t.Errorf("%v, want exit code 42", err)
	}
}

// Everything inside holds the pipe: its end is the end of the last process.
func TestNothingSurvivesSIGKILL(t *testing.T) {
	for _, user := range []string{"root", "ordinary user"} {
		t.Run(user, func(t *testing.T) {
			cmd := program(t, "orphan")
			if user != "root" {
				asOrdinaryUser(t, cmd)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			r := bufio.NewReader(out)
			if line, err := r.ReadString('\n'); line != "started\n" {
				t.Fatalf("printed %q, %v", line, err)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
				t.Errorf("then: %q, %v", rest, err)
			}
			_ = cmd.Wait()
		})
	}
}

// A stage variable in the environment of an outer process is not believed.
func TestStageIsChecked(t *testing.T) {
	id, err := networkID()
	if err != nil {
		t.Fatal(err)
	}
	cmd := program(t, "exit")
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=program,%d,0", stageVariable, id))
	out, err := cmd.CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte(stageVariable)) {
		t.Errorf("%v, %s: want an error that names the variable", err, out)
	}
}
