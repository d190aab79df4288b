package netns

import (
	"strings"
	"testing"
)

func TestRemedy(t *testing.T) {
	const (
		clone    = "/proc/sys/kernel/unprivileged_userns_clone"
		limit    = "/proc/sys/user/max_user_namespaces"
		apparmor = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
	)
	for _, tc := range []struct {
		name  string
		files map[string]string
		root  bool
		want  []string
	}{
		{"debian", map[string]string{clone: "0", limit: "1000"}, false, []string{"kernel.unprivileged_userns_clone is 0", "sudo sysctl -w kernel.unprivileged_userns_clone=1", "sudo nfqproxy lab"}},
		{"limit", map[string]string{clone: "1", limit: "0"}, false, []string{"user.max_user_namespaces is 0", "sudo nfqproxy lab"}},
		{"ubuntu", map[string]string{apparmor: "1"}, false, []string{"kernel.apparmor_restrict_unprivileged_userns is 1", "sudo nfqproxy lab"}},
		{"unknown", nil, false, []string{"seccomp", "sudo nfqproxy lab"}},
		{"root", nil, true, []string{"CAP_SYS_ADMIN"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := remedyFrom(func(path string) string { return tc.files[path] }, tc.root)
			for _, w := range tc.want {
				if !strings.Contains(got, w) {
					t.Errorf("%q does not say %q", got, w)
				}
			}
			if tc.root && strings.Contains(got, "sudo nfqproxy") {
				t.Errorf("%q sends root to sudo", got)
			}
		})
	}
}
