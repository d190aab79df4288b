// Package confine takes from the running process what it does not need after its start: capabilities,
// new privileges, system calls (seccomp), and changes of files (Landlock).
package confine

import (
	"github.com/nfqproxy/nfqproxy/control/observe"
)

// Config lists what the process does after its start. Files that it has opened before stay usable.
type Config struct {
	// Capabilities that stay, if the process has them.
	Capabilities []observe.Capability
	// Reads are files, and directories with files, that the process opens for reading. They select
	// CAP_DAC_READ_SEARCH, where a file is not readable without it; other files stay readable.
	Reads []string
	// Writes are files that exist, and directories of such files, that the process writes.
	Writes []string
	// Locks are directories in which the process makes empty files.
	Locks []string
	// Files are directories in which the process makes, writes, renames and removes files.
	Files []string
	// Sockets are directories in which the process makes and removes Unix sockets.
	Sockets []string
	// Program is a program that the process starts; empty: none. A program may write any file and needs
	// system calls of its own, so with one there is no Landlock, and only dangerous calls are forbidden.
	Program string
}

// Measured are the system calls of the daemon after Apply, in alphabetical order: those that the kernel recorded of the
// daemons in all end-to-end tests (the static program, amd64, Go 1.26, Linux 6.18), as events raw_syscalls/sys_enter in a
// tracing instance, with a filter on the name of the threads, which Apply set instead of the filter of system calls.
// Read only.
var Measured = []string{
	"accept4", "bind", "clone", "close", "connect", "epoll_ctl", "epoll_pwait", "exit", "exit_group", "fchmodat", "fcntl", "flock", "fstat", "futex",
	"getdents64", "getpeername", "getpid", "getrandom", "getrlimit", "getsockname", "getsockopt", "gettid", "inotify_add_watch", "inotify_init1",
	"listen", "madvise", "mmap", "nanosleep", "newfstatat", "openat", "pread64", "read", "recvfrom", "recvmmsg", "recvmsg", "restart_syscall",
	"rt_sigprocmask", "rt_sigreturn", "sched_getattr", "sched_setaffinity", "sched_setattr", "sched_yield", "sendmsg", "sendto", "setsockopt",
	"sigaltstack", "socket", "statfs", "tgkill", "uname", "unlinkat", "write",
}

// Reserve are further calls that the filter allows, which the tests did not make: of other versions of Go and of the C library (the race
// detector's builds use it), of Go's packages for files, sockets and timers, and of profiling. None of them
// starts a program, changes the identity of the process, or reaches another process or the system.
var Reserve = []string{
	// Memory.
	"brk", "mprotect", "mremap", "munmap", "mincore", "membarrier", "mseal", "map_shadow_stack",
	// Threads and their scheduling.
	"arch_prctl", "futex_requeue", "futex_wait", "futex_waitv", "futex_wake", "get_robust_list", "getcpu", "prctl", "rseq",
	"sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity", "sched_getscheduler", "set_robust_list", "set_tid_address",
	// Signals; kill and tgkill end the process by its own fault, and preempt goroutines.
	"kill", "rt_sigaction", "rt_sigpending", "rt_sigsuspend", "rt_sigtimedwait", "tkill",
	// Time and timers.
	"clock_getres", "clock_gettime", "clock_nanosleep", "gettimeofday", "setitimer", "time", "timer_create", "timer_delete", "timer_settime",
	"times",
	// The process and the system, reading.
	"capget", "getegid", "geteuid", "getgid", "getgroups", "getpgid", "getpgrp", "getppid", "getpriority", "getresgid", "getresuid",
	"getrusage", "getsid", "getuid", "prlimit64", "sysinfo", "umask",
	// Files; Landlock restricts changes. Of ioctl only the requests in ioctls; fstatat is newfstatat on arm64.
	"access", "chdir", "chmod", "chown", "close_range", "copy_file_range", "dup", "dup2", "dup3", "faccessat", "faccessat2", "fadvise64",
	"fallocate", "fchdir", "fchmod", "fchmodat2", "fchown", "fchownat", "fdatasync", "fstatat", "fstatfs", "fsync", "ftruncate", "getcwd", "ioctl", "getdents",
	"linkat", "lseek", "lstat", "mkdir", "mkdirat", "open", "openat2", "pipe", "pipe2", "preadv", "preadv2", "pwrite64", "pwritev",
	"pwritev2", "readlink", "readlinkat", "readv", "rename", "renameat", "renameat2", "rmdir", "sendfile", "splice", "stat", "statx",
	"symlinkat", "truncate", "unlink", "utimensat", "writev",
	// Waiting for files.
	"epoll_create1", "epoll_pwait2", "epoll_wait", "eventfd2", "inotify_rm_watch", "poll", "ppoll", "pselect6", "select",
	// Sockets.
	"accept", "sendmmsg", "shutdown", "socketpair",
}

// dangerous are calls that gain rights, reach other processes, or change the system: they stay forbidden to a process that
// starts a program.
var dangerous = []string{
	"acct", "add_key", "adjtimex", "bpf", "chroot", "clock_adjtime", "clock_settime", "delete_module", "finit_module", "fsconfig", "fsmount",
	"fsopen", "fspick", "init_module", "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kcmp", "kexec_file_load",
	"kexec_load", "keyctl", "lookup_dcookie", "mount", "mount_setattr", "move_mount", "name_to_handle_at", "open_by_handle_at", "open_tree",
	"perf_event_open", "personality", "pidfd_getfd", "pivot_root", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace",
	"quotactl", "quotactl_fd", "reboot", "request_key", "setdomainname", "sethostname", "setns", "settimeofday", "swapoff", "swapon",
	"syslog", "umount2", "unshare", "userfaultfd", "vhangup",
}
