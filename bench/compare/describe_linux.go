package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
)

// describe lists what was measured with what, in Markdown.
func describe(p *plan) string {
	var out strings.Builder
	item := func(name, format string, args ...any) {
		fmt.Fprintf(&out, "- %s: %s\n", name, fmt.Sprintf(format, args...))
	}
	out.WriteString("# nfqproxy beside kube-proxy and the queue's floor\n\n")
	item("when", "%s; load average before: %s", time.Now().UTC().Format(time.DateTime), firstFields("/proc/loadavg", 3))
	item("machine", "%d CPUs (%s, %s), %s of memory", runtime.NumCPU(), cpuModel(), lastLevelCache(), strings.Join(strings.Fields(firstLine("/proc/meminfo"))[1:], " "))
	item("kernel", "%s", release())
	item("Go", "%s", runtime.Version())
	item("nfqproxy", "%s", version(p.nfqproxy[0], "--version"))
	if path, err := cluster.Binary(cluster.KubeProxy); err == nil {
		item("kube-proxy", "%s", version(path, "--version"))
	}
	item("iptables", "%s; %s", version("xtables-nft-multi", "iptables", "--version"), version("xtables-legacy-multi", "iptables", "--version"))
	item("nft", "%s", version("nft", "--version"))
	item("connection tracking", "nf_conntrack_max %s", firstLine("/proc/sys/net/netfilter/nf_conntrack_max"))
	item("objects", "services with %d endpoints each, all of which answer; connections go to all of them in turn; one service in %d has a UDP port, too", p.endpoints, udpEvery)
	for _, t := range p.timeouts {
		item(t.name, "nf_conntrack_tcp_timeout_time_wait %d s, _close %d s", t.timeWait, t.close)
	}
	item("source ports", "with short timeouts, all are fresh; with the default ones each has been used before and its old entry is in TIME_WAIT")
	item("each", "%d visits, taking turns in random order; loads of %v, streams of %v, %d changes a visit", p.rounds, p.time, p.stream, p.changes)
	return out.String()
}

// version is the first line that a program prints, or what went wrong.
func version(program string, args ...string) string {
	out, err := exec.Command(program, args...).Output()
	if err != nil {
		return "unknown (" + err.Error() + ")"
	}
	return strings.TrimSpace(strings.SplitN(string(out), "\n", 2)[0])
}

func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err.Error()
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
}

func firstLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(strings.SplitN(string(text), "\n", 2)[0])
}

func firstFields(path string, n int) string {
	fields := strings.Fields(firstLine(path))
	return strings.Join(fields[:min(n, len(fields))], " ")
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

// lastLevelCache says how large the first CPU's largest cache is. What kube-proxy's iptables
// mode costs with many services depends on it.
func lastLevelCache() string {
	for index := 4; index >= 0; index-- { // in the order of levels
		size, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu0/cache/index%d/size", index))
		if err == nil {
			return "last-level cache " + strings.TrimSpace(string(size)) + "B"
		}
	}
	return "last-level cache unknown"
}
