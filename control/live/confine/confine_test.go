package confine

import (
	"slices"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

func TestStateInWords(t *testing.T) {
	for want, s := range map[string]observe.Confinement{
		"capabilities: none": {},
		"capabilities: CAP_NET_ADMIN CAP_NET_BIND_SERVICE (listening on :80); no new privileges; system calls: 150; changes of files (Landlock 7): write /proc/sys/net, empty files in /run": {
			Capabilities: []observe.Capability{{Name: "CAP_NET_ADMIN"}, {Name: "CAP_NET_BIND_SERVICE", Use: "listening on :80"}}, NoNewPrivs: true, SystemCalls: 150,
			LandlockABI: 7, Changes: []string{"write /proc/sys/net", "empty files in /run"},
		},
		"capabilities: none; changes of files (Landlock 1): none":                                {LandlockABI: 1},
		"capabilities: none; system calls: 300; may start aws; not in force: Landlock: a reason": {SystemCalls: 300, Program: "aws", Missing: []string{"Landlock: a reason"}},
	} {
		if got := s.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestLists: each name is a system call, stands in one list, and no dangerous one is allowed.
func TestLists(t *testing.T) {
	seen := make(map[string]string)
	for list, names := range map[string][]string{"measured": Measured, "reserve": Reserve, "dangerous": dangerous} {
		for _, n := range names {
			_, amd64 := arch.X86_64.SyscallNames[n]
			_, arm64 := arch.AARCH64.SyscallNames[n]
			if !amd64 && !arm64 {
				t.Errorf("%s: %q is no system call", list, n)
			}
			if seen[n] != "" {
				t.Errorf("%s is %s and %s", n, seen[n], list)
			}
			seen[n] = list
		}
	}
	// Some that start programs, and the filter's own.
	for _, n := range []string{"execve", "execveat", "fork", "vfork", "clone3", "seccomp", "capset", "setuid", "setns", "landlock_restrict_self"} {
		if seen[n] == "measured" || seen[n] == "reserve" {
			t.Errorf("%s is allowed", n)
		}
	}
	if !slices.IsSorted(Measured) {
		t.Error("the measured calls are not sorted")
	}
}

// TestOtherArchitecture: what Go's runtime calls on arm64 is allowed there.
func TestOtherArchitecture(t *testing.T) {
	allowed := append(Measured, Reserve...)
	for _, n := range []string{
		"clone", "futex", "mmap", "munmap", "madvise", "mincore", "mprotect", "brk", "exit", "exit_group", "read", "write", "openat", "close", "pipe2", "epoll_create1", "epoll_ctl", "epoll_pwait",
		"eventfd2", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "tgkill", "kill", "gettid", "getpid", "nanosleep", "sched_yield", "sched_getaffinity", "setitimer",
		"timer_create", "timer_settime", "timer_delete", "getrandom", "prctl", "fcntl", "fstatat", "fstat", "getdents64", "accept4", "socket", "prlimit64",
	} {
		if _, ok := arch.AARCH64.SyscallNames[n]; !ok || !slices.Contains(allowed, n) {
			t.Errorf("%s: known on arm64: %v", n, ok)
		}
	}
}
