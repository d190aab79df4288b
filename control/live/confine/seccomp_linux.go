package confine

import (
	"runtime"
	"slices"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// filterCalls installs the filters of system calls in all threads. calls is how many they allow.
func (c *Config) filterCalls() (calls int, err error) {
	table, err := arch.GetInfo("")
	if err != nil {
		return 0, err
	}
	policies := strict(table)
	calls = len(policies[len(policies)-1].Syscalls[0].Names)
	if c.Program != "" {
		policies = []seccomp.Policy{lenient(table)}
		calls = len(table.SyscallNames) - len(policies[0].Syscalls[0].Names)
	}
	// no_new_privs is a thread's own, which the kernel requires of the calling one.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, p := range policies {
		if err := seccomp.LoadFilter(seccomp.Filter{NoNewPrivs: true, Flag: seccomp.FilterFlagTSync, Policy: p}); err != nil {
			return 0, err
		}
	}
	return calls, nil
}

// strict allows the listed system calls; any other one kills the process. All policies apply to a call,
// and the most severe result counts. The last policy forbids the installation of others.
//
// A call with conditions has a policy of its own: where a condition does not hold, the library (v1.6.0)
// goes on to compare the argument, as if it were the number of the call.
func strict(table *arch.Info) []seccomp.Policy {
	return []seccomp.Policy{
		// Threads, no processes, and no namespaces.
		exception(seccomp.ActionKillProcess, "clone",
			seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.BitsNotSet, Value: unix.CLONE_THREAD}},
			seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.BitsSet, Value: namespaces}}),
		exception(errno(unix.EAFNOSUPPORT), "socket", none(0, socketFamilies)),
		exception(errno(unix.ENOTTY), "ioctl", none(1, ioctls)),
		{
			DefaultAction: seccomp.ActionKillProcess,
			Syscalls: []seccomp.SyscallGroup{
				{Action: seccomp.ActionAllow, Names: known(table, slices.Concat(Measured, Reserve))},
				// The C library goes on with clone; a filter cannot read clone3's flags.
				{Action: errno(unix.ENOSYS), Names: known(table, []string{"clone3"})},
			},
		},
	}
}

// lenient forbids dangerous system calls to the process and the program that it starts.
func lenient(table *arch.Info) seccomp.Policy {
	return seccomp.Policy{
		DefaultAction: seccomp.ActionAllow,
		Syscalls:      []seccomp.SyscallGroup{{Action: errno(unix.EPERM), Names: known(table, dangerous)}},
	}
}

// namespaces are the flags of clone(2) that make namespaces (linux/sched.h).
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

var (
	socketFamilies = []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}
	// ioctls are the requests of Go's packages and libraries, to terminals and interfaces. Those that type
	// into a terminal (TIOCSTI, TIOCLINUX) are not among them.
	ioctls = []uint64{unix.TCGETS, unix.TIOCGWINSZ, unix.TIOCGPGRP, unix.TIOCINQ, fionbio, unix.SIOCGIFNAME, unix.SIOCGIFINDEX, unix.SIOCETHTOOL}
)

// fionbio is FIONBIO (asm-generic/ioctls.h).
const fionbio = 0x5421

// exception is the policy for one system call: the action if one of the conditions holds.
func exception(action seccomp.Action, name string, conditions ...seccomp.ArgumentConditions) seccomp.Policy {
	var list []seccomp.NameWithConditions
	for _, c := range conditions {
		list = append(list, seccomp.NameWithConditions{Name: name, Conditions: c})
	}
	return seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: []seccomp.SyscallGroup{{Action: action, NamesWithCondtions: list}}}
}

// none is the condition that an argument has none of the values.
func none(argument uint32, values []uint64) (c seccomp.ArgumentConditions) {
	for _, v := range values {
		c = append(c, seccomp.Condition{Argument: argument, Operation: seccomp.NotEqual, Value: v})
	}
	return c
}

// errno makes a system call fail.
func errno(e unix.Errno) seccomp.Action { return seccomp.ActionErrno | seccomp.Action(e) }

// known leaves out the names that an architecture does not have.
func known(table *arch.Info, names []string) (list []string) {
	for _, n := range names {
		if _, ok := table.SyscallNames[n]; ok {
			list = append(list, n)
		}
	}
	return list
}
