package cli

import (
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/exitcode"
	"github.com/nfqproxy/nfqproxy/datapath/paper/replay/capturetest"
)

var update = flag.Bool("update", false, "write the output that scripts compare with anew")

// TestScripts runs the commands as README.md and docs show them: testdata/script/*.txtar, each
// beside the cluster that the stories of package flow are about, the healthy one of package diagnose, and
// dumps/, those of package iptables.
//
// Their command nfqproxy runs in this process, where that makes no difference: see ownProcess. In one of its own nfqproxy is this
// test binary, made so by the environment: testscript's own way, a main for each command, would come between
// netnstest.Main and the namespaces it runs the tests in.
func TestScripts(t *testing.T) {
	path := nfqproxyPath(t)
	dumps, err := filepath.Abs("../../../datapath/paper/iptables/testdata")
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := os.ReadFile("../../../datapath/flow/testdata/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	healthy, err := os.ReadFile("../../../control/paper/diagnose/testdata/shop.yaml")
	if err != nil {
		t.Fatal(err)
	}
	clusters, err := filepath.Abs("../../../control/paper/diagnose/testdata/healthy")
	if err != nil {
		t.Fatal(err)
	}
	testscript.RunT(inOrder{t}, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       *update,
		Setup: func(env *testscript.Env) error {
			for _, variable := range e2etest.CommandEnv() {
				name, value, _ := strings.Cut(variable, "=")
				env.Setenv(name, value)
			}
			env.Setenv("PATH", path)
			for name, text := range map[string][]byte{"cluster.yaml": cluster, "healthy.yaml": healthy} {
				if err := os.WriteFile(filepath.Join(env.WorkDir, name), text, 0o644); err != nil {
					return err
				}
			}
			return errors.Join(os.Symlink(dumps, filepath.Join(env.WorkDir, "dumps")), os.Symlink(clusters, filepath.Join(env.WorkDir, "clusters")))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"nfqproxy": exits(0, exitcode.No), "fails": exits(exitcode.Error, -1), "refused": refused, "capture": capture, "packets": packets,
		},
	})
}

// capture writes a capture of packets that a file tells of in the language of package
// capturetest: capture packets.txt capture.pcap [FORMAT...].
func capture(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: capture TEXT CAPTURE [FORMAT...]")
	}
	format, err := capturetest.ParseFormat(args[2:])
	ts.Check(err)
	b, err := capturetest.Write(format, ts.ReadFile(args[0]))
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), b, 0o644))
}

// packets prints those of a capture, a line each, as gopacket reads them.
func packets(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: packets CAPTURE")
	}
	text, err := capturetest.Describe([]byte(ts.ReadFile(args[0])))
	ts.Check(err)
	_, err = io.WriteString(ts.Stdout(), text)
	ts.Check(err)
}

// inOrder is a test whose scripts run one after the other: the working directory and the environment are the process's.
type inOrder struct{ *testing.T }

func (t inOrder) Parallel()     {}
func (t inOrder) Verbose() bool { return testing.Verbose() }
func (t inOrder) Run(name string, script func(testscript.T)) {
	t.T.Run(name, func(t *testing.T) { script(inOrder{t}) })
}

// exits runs a command of a script, which is to end with an exit code; with the code no after "!".
func exits(yes, no int) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		want := yes
		if neg {
			want = no
		}
		if _, _, code := runInScript(ts, args); code != want {
			ts.Fatalf("exit code %d, want %d", code, want)
		}
	}
}

// runInScript returns what a command writes, and its exit code.
func runInScript(ts *testscript.TestScript, args []string) (stdout, stderr string, code int) {
	if ownProcess(ts, args) {
		err := ts.Exec("nfqproxy", args...)
		if exit, exited := errors.AsType[*exec.ExitError](err); exited {
			code = exit.ExitCode()
		} else {
			ts.Check(err)
		}
		return ts.ReadFile("stdout"), ts.ReadFile("stderr"), code
	}
	var out, messages strings.Builder
	c := call{dir: ts.MkAbs("."), environment: make(map[string]string), stdout: &out, stderr: &messages}
	for _, name := range []string{"HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "TMPDIR", configVariable, asksMadeUp} {
		c.environment[name] = ts.Getenv(name)
	}
	code, err := c.run(args)
	ts.Check(err)
	_, err = io.WriteString(ts.Stdout(), out.String())
	ts.Check(err)
	_, err = io.WriteString(ts.Stderr(), messages.String())
	ts.Check(err)
	return out.String(), messages.String(), code
}

// ownProcess reports whether a command starts processes or reads stdin, or whether the script set what a process reads
// once, at its start.
func ownProcess(ts *testscript.TestScript, args []string) bool {
	const home = "/no-home" // testscript's
	return len(args) > 0 && slices.Contains([]string{"run", "lab", "learn", "experiment"}, args[0]) || slices.Contains(args, "-") ||
		ts.Getenv("HOME") != home || ts.Getenv("KUBECONFIG") != "" || ts.Getenv("TZ") != ""
}

// refused runs nfqproxy with nonsense: it has to say so in one message on one line and
// nothing on stdout, with the exit code of errors. "stdin" goes before, "stderr" after it.
func refused(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("! in front of it is just nfqproxy")
	}
	out, message, code := runInScript(ts, args)
	if code != exitcode.Error {
		ts.Fatalf("want exit code %d, have %d", exitcode.Error, code)
	}
	if out != "" {
		ts.Fatalf("on stdout: %q", out)
	}
	program := "nfqproxy: "
	if args[0] == "run" && strings.HasPrefix(message, "nfqproxyd: ") { // found by the daemon
		program = "nfqproxyd: "
	}
	if !strings.HasPrefix(message, program) || strings.Count(message, "\n") != 1 || strings.Count(message, program) != 1 {
		ts.Fatalf("not one message on one line: %q", message)
	}
}
