package netns

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMain(m *testing.M) { Main(m) }

func TestStage(t *testing.T) {
	want := stage{programStage, 4026531840, 2}
	got, err := parseStage(want.String())
	if err != nil || got != want {
		t.Errorf("parseStage(%q) = %v, %v; want %v", want.String(), got, err, want)
	}
	if got, err := parseStage(""); err != nil || got.name != outerStage {
		t.Errorf("parseStage of nothing = %v, %v; want the outer stage", got, err)
	}
	for _, text := range []string{"x", "init", "init,1", "init,x,0", "init,1,x", "init,1,-1", "init,1,1000", "inner,1,0", "init,1,0,0"} {
		if got, err := parseStage(text); err == nil || !strings.Contains(err.Error(), stageVariable) {
			t.Errorf("parseStage(%q) = %v, %v; want an error that names the variable", text, got, err)
		}
	}
}

// fakeT records how a test would have ended.
type fakeT struct{ skipped, failed bool }

func (f *fakeT) Name() string          { return "TestFake" }
func (f *fakeT) Helper()               {}
func (f *fakeT) Skipf(string, ...any)  { f.skipped = true }
func (f *fakeT) Fatalf(string, ...any) { f.failed = true }

func TestRequireTool(t *testing.T) {
	if Short() {
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
		RequireTool(&got, tc.tool)
		if got != tc.want {
			t.Errorf("CI=%q, tool %s: %+v, want %+v", tc.ci, tc.tool, got, tc.want)
		}
	}
}

// Programs of the administrator are found where an ordinary user's PATH leaves them out.
func TestRequireToolLooksWhereAdministratorsDo(t *testing.T) {
	if Short() {
		t.Skip("-short skips what these functions would")
	}
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	t.Setenv("CI", "true")
	var got fakeT
	RequireTool(&got, "sh")
	if !got.failed {
		t.Fatal("a program is found in an empty directory")
	}
	if want := dir + ":/usr/local/sbin:/usr/sbin:/sbin"; os.Getenv("PATH") != want {
		t.Errorf("PATH is %s, want %s", os.Getenv("PATH"), want)
	}
}

// TestSkipNamesTheGap: a skip names its test, and the subject that stays untested.
func TestSkipNamesTheGap(t *testing.T) {
	if Short() {
		t.Skip("-short skips what these functions would")
	}
	list := filepath.Join(t.TempDir(), "skipped")
	t.Setenv("CI", "")
	t.Setenv("NFQPROXY_SKIPPED", list)
	var got fakeT
	RequireTool(&got, "iptables-no-such")
	Missing(&got, "no luck")
	text, err := os.ReadFile(list)
	want := "netns: TestFake: iptables-no-such is not installed; not proven: reading, writing and evaluating rules of kube-proxy and of the host as the kernel and iptables do (Debian: apt install iptables)\n" +
		"netns: TestFake: no luck; not proven: the subject of TestFake\n"
	if err != nil || string(text) != want || !got.skipped {
		t.Errorf("%q, %v, want %q", text, err, want)
	}
}
