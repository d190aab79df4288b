// Package machine describes the machine that a benchmark runs on.
package machine

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

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
