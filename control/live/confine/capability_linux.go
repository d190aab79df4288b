package confine

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// Apply confines all threads of the process, for good. What the kernel, the container's runtime or the
// process's rights do not permit is left out, with the reason in [observe.Confinement.Missing].
func Apply(c Config) observe.Confinement {
	var missing []string
	note := func(part string, err error) {
		if err != nil {
			missing = append(missing, part+": "+err.Error())
		}
	}
	// The last part forbids the system calls of the others.
	kept, err := c.capabilities()
	note("capabilities", err)
	note("no new privileges", setNoNewPrivs())
	abi, changes, err := c.restrictFiles()
	note("Landlock", err)
	note("capabilities", dropCapabilities(kept))
	calls, err := c.filterCalls()
	note("seccomp", err)

	s := inForce(kept)
	s.SystemCalls, s.LandlockABI, s.Changes, s.Missing = calls, abi, changes, missing
	if calls > 0 {
		s.Program = c.Program
	}
	return s
}

// Unconfined is the state of a process that does not call Apply: what whoever started it has put into
// force.
func Unconfined(why string) observe.Confinement {
	s := inForce(nil)
	s.Missing = []string{"confinement: " + why}
	return s
}

// inForce reads the process's status.
func inForce(kept []observe.Capability) (s observe.Confinement) {
	text, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return s
	}
	uses := make(map[string]string)
	for _, k := range kept {
		uses[k.Name] = cmp.Or(uses[k.Name], k.Use)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); name {
		case "CapEff":
			set, _ := strconv.ParseUint(value, 16, 64)
			for i := range 64 {
				if name := capabilityName(i); set&(1<<i) != 0 {
					s.Capabilities = append(s.Capabilities, observe.Capability{Name: name, Use: uses[name]})
				}
			}
		case "NoNewPrivs":
			s.NoNewPrivs = value == "1"
		}
	}
	return s
}

// capabilityNames are the capabilities by number (linux/capability.h).
var capabilityNames = [...]string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP",
	"CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER",
	"CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE",
	"CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL", "CAP_SETFCAP",
	"CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF",
	"CAP_CHECKPOINT_RESTORE",
}

func capabilityName(number int) string {
	if number < len(capabilityNames) {
		return capabilityNames[number]
	}
	return "CAP_" + strconv.Itoa(number)
}

// setOf is the set of capabilities with names, one bit for each.
func setOf(list []observe.Capability) (s uint64, err error) {
	for _, c := range list {
		i := slices.Index(capabilityNames[:], c.Name)
		if i < 0 {
			return 0, fmt.Errorf("%q is not a capability", c.Name)
		}
		s |= 1 << i
	}
	return s, nil
}

// threadSets are the permitted, effective and inheritable capabilities of a thread as capget(2) has them, in version 3: the
// first 32, and the others.
type threadSets [2]unix.CapUserData

func capabilityHeader() unix.CapUserHeader {
	return unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
}

// ownSets are the sets of the calling thread.
func ownSets() (t threadSets, err error) {
	header := capabilityHeader()
	if err := unix.Capget(&header, &t[0]); err != nil {
		return t, fmt.Errorf("capget: %w", err)
	}
	return t, nil
}

// dropCapabilities leaves every thread only what is in the list, and no way to get more.
func dropCapabilities(list []observe.Capability) error {
	keep, err := setOf(list)
	if err != nil {
		return err
	}
	own, err := ownSets()
	if err != nil {
		return err
	}
	// The bounding set first: changing it requires CAP_SETPCAP. Without that it stays as it is, and
	// no_new_privs keeps programs from getting anything out of it.
	for i := range 64 {
		in, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(i), 0, 0, 0)
		if err != nil {
			break // beyond the last one
		}
		if in == 0 || keep&(1<<i) != 0 {
			continue
		}
		if _, _, errno := psx.Syscall3(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(i), 0); errno == unix.EPERM {
			break
		} else if errno != 0 {
			return fmt.Errorf("remove %s from the bounding set: %w", capabilityName(i), errno)
		}
	}
	var errs []error
	if _, _, errno := psx.Syscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0); errno != 0 {
		errs = append(errs, fmt.Errorf("clear the ambient set: %w", errno))
	}
	var kept threadSets
	for i := range kept {
		kept[i].Permitted = own[i].Permitted & uint32(keep>>(32*i))
		kept[i].Effective = kept[i].Permitted
	}
	if own == kept {
		return errors.Join(errs...) // whoever started the process may have forbidden capset
	}
	header := capabilityHeader()
	if _, _, errno := psx.Syscall3(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&kept)), 0); errno != 0 {
		errs = append(errs, fmt.Errorf("capset: %w", errno))
	}
	return errors.Join(errs...)
}

func setNoNewPrivs() error {
	if _, _, errno := psx.Syscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("prctl: %w", errno)
	}
	return nil
}
