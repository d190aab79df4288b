// Package netnstest runs the tests of a package in namespaces of their own, and ends tests that lack
// something: namespaces, or a program.
package netnstest

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/programs"
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

// addAdminPath adds [programs.AdminPath] to PATH, at its end.
func addAdminPath() {
	path := os.Getenv("PATH")
	for _, dir := range programs.AdminPath {
		if !slices.Contains(filepath.SplitList(path), dir) {
			path = strings.TrimPrefix(path+string(filepath.ListSeparator)+dir, string(filepath.ListSeparator))
		}
	}
	_ = os.Setenv("PATH", path)
}

// proofs describe what tests with a program prove, by a word in the reason of a skip. The more special words come first.
var proofs = []struct{ word, shown, install string }{
	{"newest-nft", "the rules with the newest nft", makePeers},
	{"helm", "the Helm chart, as Helm itself reads it", makePeers},
	{"hubble", "the Hubble API, with Hubble's own programs", makePeers},
	{"otelcol", "the export to a real OpenTelemetry collector", makePeers},
	{"promql", "the alerts, as Prometheus evaluates them", makePeers},
	{"portforward", "connections through an API server, as kubectl port-forward makes them", makePeers},
	{"kube-proxy", "the behaviour of kube-proxy", makePeers},
	{"bench/peers", "operation with a real API server and etcd", makePeers},
	{"iptables", ofIPTables, ""},
	{"ip6tables", ofIPTables, ""},
	{"nft", "the nftables rules in the kernel", ""},
	{"chromium", "the web page in a browser", ""},
	{"tmux", "nfqproxy top on a terminal", ""},
	{"tcpdump", "replaying captures with the daemon's decisions", ""},
	{"conntrack", "what the conntrack program shows of the entries", ""},
	{"curl", "the record of a flow of curl", ""},
	{"dig", "names of a lab, with real DNS queries", ""},
	{"ping", "units and checks that ping a host", ""},
	{"setpriv", "operation with CAP_NET_ADMIN as the only capability", ""},
	{"systemd-analyze", "the exposure of the systemd unit", ""},
	{"isolation", "everything that needs a kernel: the datapath, labs, every end-to-end test", "allow user namespaces, or run the tests as root"},
}

const (
	makePeers  = "make peers"
	ofIPTables = "reading, writing and evaluating rules of kube-proxy and of the host as the kernel and iptables do"
)

// unproven describes what is not proven without the test.
func unproven(t testing.TB, why string) string {
	for _, p := range proofs {
		if !strings.Contains(why, p.word) {
			continue
		}
		program, _, _ := strings.Cut(why, " ")
		install := cmp.Or(p.install, programs.Install(program), programs.Install(p.word), "not in Debian")
		return fmt.Sprintf("not proven: %s (%s)", p.shown, install)
	}
	if program, _, _ := strings.Cut(why, " "); programs.Install(program) != "" {
		return fmt.Sprintf("not proven: the subject of %s (%s)", t.Name(), programs.Install(program))
	}
	return "not proven: the subject of " + t.Name()
}

// All reports whether all cases are to be tested, as "make test-all" does, or a selection of them: enough to find what a change
// breaks.
func All() bool { return os.Getenv("NFQPROXY_TEST") == "all" }

// Cases is how many of many cases are to be tested, or the stride through them.
func Cases(all, selected int) int {
	if All() {
		return all
	}
	return selected
}

// Selected reports whether the case with this name is to be tested: all are with [All], otherwise those of the selection.
func Selected(name string, selection ...string) bool {
	return All() || slices.Contains(selection, name)
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
		proof := unproven(t, why)
		// One line each, of all packages, which "make test" groups by what is in front of the tab, and prints at the end.
		// Where a program is on this machine does not matter.
		why := why
		if program, rest, found := strings.Cut(why, " "); found {
			why = filepath.Base(program) + " " + rest
		}
		if f, err := os.OpenFile(list, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err == nil {
			_, _ = fmt.Fprintf(f, "%s; %s\t%s %s\n", why, proof, strings.TrimSuffix(filepath.Base(os.Args[0]), ".test"), t.Name())
			_ = f.Close()
		}
	}
	t.Skipf("%s", why)
}
