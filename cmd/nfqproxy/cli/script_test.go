package cli

import (
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/replay/capturetest"
)

var update = flag.Bool("update", false, "write the output that scripts compare with anew")

// TestScripts runs the commands as README.md and docs show them: testdata/script/*.txtar, each
// beside the cluster that the stories of package flow are about, the healthy one of package diagnose, and
// dumps/, those of package iptables.
//
// nfqproxy is this test binary, made so by the environment: testscript's own way, a main for each
// command, would come between netnstest.Main and the namespaces it runs the tests in.
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
	testscript.Run(t, testscript.Params{
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
			"refused": refused(1), "troubled": refused(exitTrouble), "capture": capture, "packets": packets,
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

// refused runs nfqproxy with nonsense: it has to say so in one message on one line and
// nothing on stdout, with the exit code. "stdin" goes before, "stderr" after it.
func refused(code int) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		if neg {
			ts.Fatalf("! in front of it is just exec")
		}
		err := ts.Exec("nfqproxy", args...)
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != code {
			ts.Fatalf("want exit code %d, have %v", code, err)
		}
		if out := ts.ReadFile("stdout"); out != "" {
			ts.Fatalf("on stdout: %q", out)
		}
		message := ts.ReadFile("stderr")
		program := "nfqproxy: "
		if args[0] == "run" && strings.HasPrefix(message, "nfqproxyd: ") { // found by the daemon
			program = "nfqproxyd: "
		}
		if !strings.HasPrefix(message, program) || strings.Count(message, "\n") != 1 || strings.Count(message, program) != 1 {
			ts.Fatalf("not one message on one line: %q", message)
		}
	}
}
