package results

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const junit = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites>
  <testsuite name="e2e">
    <testcase name="[SynchronizedBeforeSuite]" status="passed" time="1"></testcase>
    <testcase name="[It] [sig-network] Services should serve [Conformance] [sig-network, Conformance]" status="passed" time="14.6"></testcase>
    <testcase name="[It] [sig-network] Services should fail [sig-network]" status="failed" time="3.2"><failure message="no"></failure></testcase>
    <testcase name="[It] [sig-network] Services should be interrupted [sig-network]" status="timedout" time="1"></testcase>
    <testcase name="[It] [sig-network] Services on six nodes [sig-network]" status="skipped" time="0.4"><skipped message="skipped - not enough&#xA;nodes"></skipped></testcase>
    <testcase name="[It] [sig-network] Services not chosen [sig-network]" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
  </testsuite>
</testsuites>
`

var want = List{
	{"[sig-network] Services should serve [Conformance]", Passed, 15, ""},
	{"[sig-network] Services should be interrupted", Failed, 1, ""},
	{"[sig-network] Services should fail", Failed, 3, ""},
	{"[sig-network] Services on six nodes", Skipped, 0, "not enough nodes"},
}

func TestReadJUnit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "junit.xml")
	if err := os.WriteFile(path, []byte(junit), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := ReadJUnit(path)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if s := got.Summary(); s != "1 passed, 2 failed, 1 skipped" {
		t.Errorf("summary %q", s)
	}
	if err := os.WriteFile(path, []byte("<testsuites></testsuites>"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadJUnit(path); err == nil {
		t.Errorf("a report without tests: %+v, want an error", got)
	}
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), File)
	run := Run{About: []string{"nfqproxy", "Kubernetes v1.36.3"}, List: want}
	if err := run.Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil || !slices.Equal(got.About, run.About) || !slices.Equal(got.List, want) {
		t.Errorf("%+v, %v; want %+v", got, err, run)
	}
	for text, message := range map[string]string{
		"passed\ta\t1\n":                   "4 fields",
		"lost\ta\t1\t\n":                   "state",
		"passed\ta\tx\t\n":                 "seconds",
		"passed\ta\t1\t\nfailed\ta\t1\t\n": "second result",
		"":                                 "no result",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := Read(path); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%q: %+v, %v; want an error with %q", text, got, err, message)
		}
	}
}

func TestMerge(t *testing.T) {
	first := Run{[]string{"v1", "3 nodes"}, List{{"a", Failed, 1, ""}, {"b", Passed, 1, ""}, {"c", Skipped, 0, "nodes"}}}
	second := Run{[]string{"v1", "6 nodes"}, List{{"a", Passed, 2, ""}, {"b", Skipped, 0, "nodes"}, {"c", Skipped, 0, "more nodes"}, {"d", Failed, 1, ""}}}
	want := Run{[]string{"v1", "3 nodes", "6 nodes"}, List{{"a", Passed, 2, ""}, {"b", Passed, 1, ""}, {"d", Failed, 1, ""}, {"c", Skipped, 0, "more nodes"}}}
	if got := Merge(first, second); !slices.Equal(got.List, want.List) || !slices.Equal(got.About, want.About) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestCompare(t *testing.T) {
	control := List{{"both", Passed, 1, ""}, {"fails", Passed, 1, ""}, {"skips", Passed, 1, ""}, {"misses", Passed, 1, ""}, {"gains", Failed, 1, ""}, {"neither", Failed, 1, ""}}
	other := List{{"both", Passed, 1, ""}, {"fails", Failed, 1, ""}, {"skips", Skipped, 0, "mode"}, {"gains", Passed, 1, ""}, {"neither", Failed, 1, ""}, {"new", Passed, 1, ""}}
	lost, gained := Compare(control, other)
	if want := []Difference{{"fails", Passed, Failed, ""}, {"misses", Passed, "", ""}, {"skips", Passed, Skipped, "mode"}}; !slices.Equal(lost, want) {
		t.Errorf("lost %+v, want %+v", lost, want)
	}
	if want := []Difference{{"gains", Failed, Passed, ""}, {"new", "", Passed, ""}}; !slices.Equal(gained, want) {
		t.Errorf("gained %+v, want %+v", gained, want)
	}
}

func TestSubject(t *testing.T) {
	for name, want := range map[string]string{
		"[sig-network] Services should serve":                                                    "Services",
		"[sig-network] Service endpoints latency should not be very high":                        "Service endpoints latency",
		"[sig-network] Networking Granular Checks: Pods should function":                         "Networking Granular Checks",
		"[sig-network] LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] should": "LoadBalancers",
		"[sig-network] [Feature:IPv6DualStack] should":                                           "[Feature:IPv6DualStack]",
		"[sig-network] Ingress API should":                                                       "",
		"[sig-storage] Services should":                                                          "",
	} {
		if got := Subject(name); got != want {
			t.Errorf("%s: subject %q, want %q", name, got, want)
		}
	}
}
