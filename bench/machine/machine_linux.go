// Package machine describes the machine that a benchmark runs on.
package machine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Version is the first line that a program prints, or the error.
func Version(program string, args ...string) string {
	out, err := exec.Command(program, args...).Output()
	if err != nil {
		return "unknown (" + err.Error() + ")"
	}
	return strings.TrimSpace(strings.SplitN(string(out), "\n", 2)[0])
}

// Kernel is its name, release and architecture.
func Kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err.Error()
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
}

// FirstLine is the first line of a file, or the error.
func FirstLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(strings.SplitN(string(text), "\n", 2)[0])
}

// Load are the load averages.
func Load() string {
	fields := strings.Fields(FirstLine("/proc/loadavg"))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

// Hardware is the number of CPUs, what they are, and the memory.
func Hardware() string {
	_, memory, _ := strings.Cut(FirstLine("/proc/meminfo"), ":")
	return fmt.Sprintf("%d CPUs (%s, %s), %s of memory", runtime.NumCPU(), cpuModel(), lastLevelCache(), strings.TrimSpace(memory))
}

func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.TrimSpace(strings.TrimLeft(name, "\t :"))
		}
	}
	return runtime.GOARCH
}

// lastLevelCache is the size of the first CPU's largest cache. The cost of kube-proxy's
// iptables mode with many services depends on it.
func lastLevelCache() string {
	for index := 4; index >= 0; index-- { // in the order of levels
		size, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu0/cache/index%d/size", index))
		if err == nil {
			return "last-level cache " + strings.TrimSpace(string(size)) + "B"
		}
	}
	return "last-level cache unknown"
}

// ProcessTime is the CPU time of a process, user and system, of all its threads.
func ProcessTime(pid int) (time.Duration, error) {
	// The process's CPU clock (clock_getcpuclockid(3); CPUCLOCK_SCHED in the kernel's
	// posix-timers.h): /proc/PID/stat has 10 ms for the unit.
	const cpuClockSched = 2
	var t unix.Timespec
	if err := unix.ClockGettime(^int32(pid)<<3|cpuClockSched, &t); err != nil {
		return 0, fmt.Errorf("CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// Time is the time of all CPUs, whatever it was for: user, nice, system, irq and softirq in
// /proc/stat.
func Time() (d time.Duration, err error) {
	const tick = 10 * time.Millisecond // USER_HZ, which is 100 everywhere
	f := strings.Fields(FirstLine("/proc/stat"))
	if len(f) < 8 {
		return 0, errors.New("/proc/stat: first line is too short")
	}
	for _, ticks := range []string{f[1], f[2], f[3], f[6], f[7]} {
		n, err := strconv.ParseInt(ticks, 10, 64)
		if err != nil {
			return 0, err
		}
		d += time.Duration(n) * tick
	}
	return d, nil
}

// Memory is a process's resident memory now and at most, in MiB (VmRSS and VmHWM).
func Memory(pid int) (resident, peak float64, err error) {
	path := fmt.Sprintf("/proc/%d/status", pid)
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		to := map[string]*float64{"VmRSS": &resident, "VmHWM": &peak}[name]
		if to == nil {
			continue
		}
		if _, err := fmt.Sscanf(value, "%f kB", to); err != nil {
			return 0, 0, fmt.Errorf("%s: %s: %w", path, name, err)
		}
		*to /= 1 << 10
	}
	if resident == 0 {
		return 0, 0, fmt.Errorf("%s: no VmRSS", path)
	}
	return resident, peak, nil
}

// CheckProc makes sure that /proc shows the processes of this PID namespace, so that numbers mean
// the same.
func CheckProc() error {
	self, err := os.Readlink("/proc/self")
	if err == nil && self != strconv.Itoa(os.Getpid()) {
		err = errors.New("/proc shows another PID namespace (in a container it may be masked): CPU times cannot be measured; run this as root, outside of containers")
	}
	return err
}
