package netns

import (
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An ordinary user's user namespace has one user, who is root in it. Programs that drop
// root to become another user (tcpdump does) would fail there: no other user is mapped,
// and setgroups is forbidden (user_namespaces(7)). For them a seccomp filter lets these
// system calls succeed without effect: no privileges are kept, because root is that user.

// oneUser reports whether this process is in a user namespace with one user.
func oneUser() bool {
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	f := strings.Fields(string(ids)) // inside, outside, count
	return len(f) == 3 && f[2] == "1"
}

// pretended are the system calls that change users and groups.
var pretended = []uint32{
	unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID,
	unix.SYS_SETRESUID, unix.SYS_SETRESGID, unix.SYS_SETGROUPS,
}

// auditArch are the values of seccomp_data.arch (AUDIT_ARCH_*, linux/audit.h) for
// which the numbers above are right.
var auditArch = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// pretendUsers makes the calls succeed and do nothing, for the calling thread and
// all processes it starts from now on.
func pretendUsers() error {
	arch, ok := auditArch[runtime.GOARCH]
	if !ok {
		return nil
	}
	program := userFilter(arch)
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	// No PR_SET_NO_NEW_PRIVS: CAP_SYS_ADMIN in the own user namespace will do.
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}

// userFilter is a classic BPF program over struct seccomp_data (linux/seccomp.h).
func userFilter(arch uint32) []unix.SockFilter {
	const (
		offsetNumber = 0
		offsetArch   = 4
		load         = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		jumpEqual    = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		give         = unix.BPF_RET | unix.BPF_K
	)
	n := uint8(len(pretended))
	program := []unix.SockFilter{
		{Code: load, K: offsetArch},
		{Code: jumpEqual, K: arch, Jf: n + 1}, // another: allow
		{Code: load, K: offsetNumber},
	}
	for i, number := range pretended {
		// Over the other comparisons and the allowing return.
		program = append(program, unix.SockFilter{Code: jumpEqual, K: number, Jt: n - uint8(i)})
	}
	return append(program,
		unix.SockFilter{Code: give, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: give, K: unix.SECCOMP_RET_ERRNO}, // errno 0: success
	)
}
