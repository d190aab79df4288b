package netnstest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// fakeT records how a test would have ended.
type fakeT struct {
	testing.TB
	skipped, failed bool
}

func (f *fakeT) Name() string          { return "TestFake" }
func (f *fakeT) Helper()               {}
func (f *fakeT) Skipf(string, ...any)  { f.skipped = true }
func (f *fakeT) Fatalf(string, ...any) { f.failed = true }

func TestRequireTool(t *testing.T) {
	if testing.Short() {
		t.Skip("-short skips what these functions would")
	}
	for _, tc := range []struct {
		ci   string
		tool string
		want fakeT
	}{
		{"", "sh", fakeT{}},
		{"true", "sh", fakeT{}},
		{"", "no-such-tool", fakeT{skipped: true}},
		{"true", "no-such-tool", fakeT{failed: true}},
	} {
		t.Setenv("CI", tc.ci)
		t.Setenv("NFQPROXY_SKIPPED", "")
		var got fakeT
		netnstest.RequireTool(&got, tc.tool)
		if got != tc.want {
			t.Errorf("CI=%q, tool %s: %+v, want %+v", tc.ci, tc.tool, got, tc.want)
		}
	}
}

// Programs of the administrator are found where an ordinary user's PATH leaves them out.
func TestRequireToolLooksWhereAdministratorsDo(t *testing.T) {
	if testing.Short() {
		t.Skip("-short skips what these functions would")
	}
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	t.Setenv("CI", "true")
	var got fakeT
	netnstest.RequireTool(&got, "sh")
	if !got.failed {
		t.Fatal("a program is found in an empty directory")
	}
	if want := dir + ":/usr/local/sbin:/usr/sbin:/sbin"; os.Getenv("PATH") != want {
		t.Errorf("PATH is %s, want %s", os.Getenv("PATH"), want)
	}
}

// TestSkipNamesTheGap: a skip names its test, and the subject that stays untested.
func TestSkipNamesTheGap(t *testing.T) {
	if testing.Short() {
		t.Skip("-short skips what these functions would")
	}
	list := filepath.Join(t.TempDir(), "skipped")
	t.Setenv("CI", "")
	t.Setenv("NFQPROXY_SKIPPED", list)
	var got fakeT
	netnstest.RequireTool(&got, "iptables-no-such")
	netnstest.Missing(&got, "ip6tables-no-such is not installed")
	netnstest.Missing(&got, "/somewhere/bench/peers/bin/etcd is not installed")
	netnstest.Missing(&got, "no luck")
	text, err := os.ReadFile(list)
	want := "iptables-no-such is not installed; not proven: reading, writing and evaluating rules of kube-proxy and of the host as the kernel and iptables do (Debian: apt install iptables)\tnetnstest TestFake\n" +
		"ip6tables-no-such is not installed; not proven: reading, writing and evaluating rules of kube-proxy and of the host as the kernel and iptables do (Debian: apt install iptables)\tnetnstest TestFake\n" +
		"etcd is not installed; not proven: operation with a real API server and etcd (make peers)\tnetnstest TestFake\n" +
		"no luck; not proven: the subject of TestFake\tnetnstest TestFake\n"
	if err != nil || string(text) != want || !got.skipped {
		t.Errorf("%q, %v, want %q", text, err, want)
	}
}
