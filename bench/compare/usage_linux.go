package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tick is the unit of CPU times in /proc/stat (USER_HZ, which is 100 everywhere).
const tick = 10 * time.Millisecond

// usage is CPU time up to now.
type usage struct {
	process time.Duration // of a process, user and system, all threads
	machine time.Duration // of all CPUs, whatever it was for
}

func (u usage) since(before usage) usage {
	return usage{u.process - before.process, u.machine - before.machine}
}

// usageOf reads the clocks. pid 0: no process.
func usageOf(pid int) (u usage, err error) {
	if u.machine, err = machineTime(); err != nil || pid == 0 {
		return u, err
	}
	// The process's CPU clock (clock_getcpuclockid(3); CPUCLOCK_SCHED in the kernel's
	// posix-timers.h): /proc/PID/stat has 10 ms for the unit.
	const cpuClockSched = 2
	var t unix.Timespec
	if err := unix.ClockGettime(^int32(pid)<<3|cpuClockSched, &t); err != nil {
		return u, fmt.Errorf("CPU clock of process %d: %w", pid, err)
	}
	u.process = time.Duration(t.Nano())
	return u, nil
}

// machineTime is the sum of user, nice, system, irq and softirq in /proc/stat.
func machineTime() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	f := strings.Fields(strings.SplitN(string(text), "\n", 2)[0])
	if len(f) < 8 {
		return 0, errors.New("/proc/stat: first line is too short")
	}
	return ticks(f[1], f[2], f[3], f[6], f[7])
}

func ticks(fields ...string) (d time.Duration, err error) {
	for _, f := range fields {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		d += time.Duration(n) * tick
	}
	return d, nil
}

// residentMiB is a process's memory (VmRSS).
func residentMiB(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status: no VmRSS", pid)
}

// checkProc makes sure that /proc shows the processes of this PID namespace, so that
// numbers mean the same.
func checkProc() error {
	self, err := os.Readlink("/proc/self")
	if err == nil && self != strconv.Itoa(os.Getpid()) {
		err = errors.New("/proc shows another PID namespace (in a container it may be masked): CPU times cannot be measured; run this as root, outside of containers")
	}
	return err
}
