package lab

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/control/executable"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) {
	if self, err := os.Executable(); err == nil { // else there is no lab either
		_ = os.Setenv(executable.Variable, self)
	}
	netnstest.Main(m)
}

// fakeDaemonVariable runs this test binary as a daemon. Its value is the
// daemon's behaviour.
const fakeDaemonVariable = "LAB_TEST_DAEMON"

func init() {
	// Before TestMain, which would take the process for a test binary.
	if how := os.Getenv(fakeDaemonVariable); how != "" && filepath.Base(os.Args[0]) == executable.Daemon {
		os.Exit(fakeDaemon(how))
	}
	if name := os.Getenv(commandVariable); name != "" {
		os.Exit(runCommand(name, os.Args[1:]))
	}
}

func fakeDaemon(how string) int {
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, unix.SIGTERM)
	fmt.Fprintln(os.Stderr, "level=INFO msg=hello")
	switch how {
	case "dies":
		fmt.Fprintln(os.Stderr, "level=ERROR msg=\"no such kernel feature\"")
		return 3
	case "silent":
		select {}
	case "stubborn":
		signal.Ignore(unix.SIGTERM)
	}
	ready := os.NewFile(3, "ready")
	fmt.Fprintln(ready, "ready")
	ready.Close()
	fmt.Println(strings.Join(os.Args[1:], " "))
	<-terminate
	if how == "bad end" {
		return 4
	}
	return 0
}

// upWith brings a built-in lab up with fake daemons.
func upWith(t *testing.T, name, daemon string, change func(*Spec, *Options)) (*Lab, error) {
	t.Helper()
	netnstest.Require(t)
	f, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Env: []string{fakeDaemonVariable + "=" + daemon}, NoDaemons: daemon == ""}
	if change != nil {
		change(f.Spec, &o)
	}
	l, err := Up(t.Context(), f, o)
	if err == nil {
		t.Cleanup(func() { _ = l.Close() })
	}
	return l, err
}

func mustUp(t *testing.T, name, daemon string) *Lab {
	t.Helper()
	l, err := upWith(t, name, daemon, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
