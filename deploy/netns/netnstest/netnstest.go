// Package netnstest runs the tests of a package in namespaces of their own, and ends tests that lack
// something: namespaces, or a program.
package netnstest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/deploy/netns"
)

// isolation is the state of a test binary; set by Main before any test runs.
var isolation = struct {
	done        bool
	unavailable error // the reason if not done
}{unavailable: errors.New("TestMain has to call netnstest.Main")}

// Tests are a package's tests: a [testing.M].
type Tests interface{ Run() int }

// Main runs the tests of a package in namespaces of their own and exits. Call it
// from TestMain:
//
//	func TestMain(m *testing.M) { netnstest.Main(m) }
//
// If that is impossible, the tests run without isolation; those that begin with
// [Require] are then skipped, or fail with CI=true in the environment.
func Main(m Tests) {
	addAdminPath()
	flag.Parse()
	switch worker := flag.Lookup("test.fuzzworker"); {
	case testing.Short():
		isolation.unavailable = errors.New("-short")
	case worker != nil && worker.Value.String() == "true":
		// Its coordinator uses file descriptors that a restart would close; fuzzing needs
		// no kernel.
		isolation.unavailable = errors.New("this is a fuzz worker")
	default:
		code, err := netns.Isolation{Main: func([]*os.File) int {
			isolation.done = true
			return m.Run()
		}}.Run()
		if err == nil {
			os.Exit(code)
		}
		isolation.unavailable = err
	}
	os.Exit(m.Run())
}

// Require ends a test that needs namespaces of its own and does not have them: a
// skip with the reason, or a failure with CI=true in the environment. With -short it is
// always a skip.
func Require(t testing.TB) {
	t.Helper()
	if !isolation.done {
		Missing(t, fmt.Sprintf("no isolation: %v", isolation.unavailable))
	}
}

// RequireTool ends a test that needs a program which is not installed; see
// [Require].
func RequireTool(t testing.TB, name string) {
	t.Helper()
	if testing.Short() {
		Missing(t, name)
	}
	addAdminPath()
	if _, err := exec.LookPath(name); err != nil {
		Missing(t, name+" is not installed")
	}
}

// addAdminPath adds the directories of the administrator's programs to PATH, at its end:
// Debian leaves them out for ordinary users, and iptables and nft are there.
func addAdminPath() {
	path := os.Getenv("PATH")
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if !slices.Contains(filepath.SplitList(path), dir) {
			path = strings.TrimPrefix(path+string(filepath.ListSeparator)+dir, string(filepath.ListSeparator))
		}
	}
	_ = os.Setenv("PATH", path)
}

// proofs describe what tests with a program prove, by a word in the reason of a skip.
var proofs = []struct{ word, shown, install string }{
	{"bench/peers", "the behaviour of kube-proxy, with a real API server and etcd", "make peers"},
	{"iptables", "reading, writing and evaluating rules of kube-proxy and of the host as the kernel and iptables do", "Debian: apt install iptables"},
	{"nft", "the nftables rules in the kernel", "Debian: apt install nftables"},
	{"chromium", "the web page in a browser", "Debian: apt install chromium"},
	{"tmux", "nfqproxy top on a terminal", "Debian: apt install tmux"},
	{"tcpdump", "replaying captures with the daemon's decisions", "Debian: apt install tcpdump"},
	{"curl", "the record of a flow of curl", "Debian: apt install curl"},
	{"setpriv", "operation with CAP_NET_ADMIN as the only capability", "Debian: apt install util-linux"},
	{"systemd-analyze", "the exposure of the systemd unit", "Debian: apt install systemd"},
	{"isolation", "everything that needs a kernel: the datapath, labs, every end-to-end test", "allow user namespaces, or run the tests as root"},
}

// unproven describes what is not proven without the test.
func unproven(t testing.TB, why string) string {
	for _, p := range proofs {
		if strings.Contains(why, p.word) {
			return fmt.Sprintf("not proven: %s (%s)", p.shown, p.install)
		}
	}
	return "not proven: the subject of " + t.Name()
}

// Missing ends a test that lacks something else; see [Require].
func Missing(t testing.TB, why string) {
	t.Helper()
	if testing.Short() {
		t.Skipf("-short: %s", why)
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s (CI=true: not skipped)", why)
		return
	}
	if list := os.Getenv("NFQPROXY_SKIPPED"); list != "" {
		// One line each, of all packages, which "make test" prints at the end.
		if f, err := os.OpenFile(list, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err == nil {
			_, _ = fmt.Fprintf(f, "%s: %s: %s; %s\n", strings.TrimSuffix(filepath.Base(os.Args[0]), ".test"), t.Name(), why, unproven(t, why))
			_ = f.Close()
		}
	}
	t.Skipf("%s", why)
}
