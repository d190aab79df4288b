package node

import (
	"slices"
	"testing"
)

func TestParseHierarchies(t *testing.T) {
	for _, tc := range []struct {
		name, text, group string
		want              []hierarchy
	}{
		{"version 2", "0::/user.slice/session-1.scope\n", "e2e/node1", []hierarchy{{"", "/user.slice/session-1.scope"}}},
		{"version 1", "9:name=systemd:/\n4:cpu,cpuacct:/a:b\n0::/\n", "e2e/node1", []hierarchy{{"name=systemd", "/"}, {"cpu,cpuacct", "/a:b"}}},
		{"none", "", "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := parseHierarchies(tc.text); !slices.Equal(got, tc.want) {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestGroup(t *testing.T) {
	for h, want := range map[hierarchy][2]string{
		{"", "/user.slice"}:     {"e2e/node1", ""},
		{"name=systemd", "/"}:   {"/e2e/node1", "systemd"},
		{"cpu,cpuacct", "/a/b"}: {"/a/b/e2e/node1", "cpu,cpuacct"},
	} {
		if got := [2]string{h.group("e2e/node1"), h.dir()}; got != want {
			t.Errorf("%+v: %q, want %q", h, got, want)
		}
	}
}
