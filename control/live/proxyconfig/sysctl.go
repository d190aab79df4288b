package proxyconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Conntrack has the settings for the node's connection tracking. Zero leaves a
// setting as it is.
type Conntrack struct {
	// MaxPerCore is how many connections may be tracked for each core, and Min how many
	// at least. Without MaxPerCore, Min counts for nothing.
	MaxPerCore, Min int
	// How long an idle connection is remembered.
	TCPEstablishedTimeout, TCPCloseWaitTimeout, UDPTimeout, UDPStreamTimeout time.Duration
	// TCPBeLiberal keeps packets outside of the window from being called invalid.
	TCPBeLiberal bool
}

const (
	netfilterDir = "/proc/sys/net/netfilter/"
	maxFile      = netfilterDir + "nf_conntrack_max"
	// hashsizeFile is of the whole machine, also for network namespaces.
	hashsizeFile = "/sys/module/nf_conntrack/parameters/hashsize"
	// maxScaled bounds the value derived from cores alone (kube-proxy since 1.36).
	maxScaled = 1 << 20
)

// Max is the nf_conntrack_max for a machine with this many cores (kube-proxy:
// getConntrackMax); 0 means: leave it as it is.
func (c Conntrack) Max(cores int) int {
	if c.MaxPerCore <= 0 {
		return 0
	}
	scaled := int64(c.MaxPerCore) * int64(cores)
	if scaled > maxScaled {
		return maxScaled
	}
	return max(int(scaled), c.Min)
}

// Apply sets the sysctls, in the calling thread's network namespace, for a machine of so
// many cores (see [Cores]). It gives the changes in words, "nf_conntrack_max from 65536 to
// 131072", and an error that joins one for each setting that could not be made; the others
// are made nevertheless. Values that are already right are not written, so that a read-only
// /proc/sys is no error then.
//
// Unlike kube-proxy it never lowers nf_conntrack_max, which an administrator may have raised. And unlike kube-proxy's
// caller, ours should take an error for a warning: a container that is not privileged cannot write there.
//
// Call it from engine.Config.Prepare: connection tracking is loaded then, and the UDP timeouts
// have not been read yet.
func (c Conntrack) Apply(files Files, cores int) (changes []string, err error) {
	a := applier{files: files}
	if most := c.Max(cores); most > 0 && a.set(maxFile, most, true) {
		// Four entries to a bucket, as kube-proxy has it.
		a.set(hashsizeFile, most/4, true)
	}
	for _, t := range []struct {
		name    string
		timeout time.Duration
	}{
		{"nf_conntrack_tcp_timeout_established", c.TCPEstablishedTimeout},
		{"nf_conntrack_tcp_timeout_close_wait", c.TCPCloseWaitTimeout},
		{"nf_conntrack_udp_timeout", c.UDPTimeout},
		{"nf_conntrack_udp_timeout_stream", c.UDPStreamTimeout},
	} {
		if t.timeout > 0 {
			a.set(netfilterDir+t.name, int((t.timeout+time.Second-1)/time.Second), false)
		}
	}
	if c.TCPBeLiberal {
		a.set(netfilterDir+"nf_conntrack_tcp_be_liberal", 1, false)
	}
	return a.changes, errors.Join(a.errs...)
}

type applier struct {
	files   Files
	changes []string
	errs    []error
}

// set sets a file to the value or, with raise, to at least the value, and reports whether
// it succeeds.
func (a *applier) set(path string, value int, raise bool) bool {
	name := path[strings.LastIndexByte(path, '/')+1:]
	old, err := a.files.Read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("%s: cannot set it to %d: %s not found: the module nf_conntrack is not loaded, or this kernel lacks the setting", name, value, path)
	case err != nil:
		err = fmt.Errorf("%s: cannot set it to %d: %w; check it on the node: %s", name, value, err, path)
	case old == value, raise && old > value:
		return true
	default:
		if err = a.files.Write(path, value); err == nil {
			a.changes = append(a.changes, fmt.Sprintf("%s from %d to %d", name, old, value))
			return true
		}
		err = fmt.Errorf("%s is %d, want %d: %w; set it on the node: echo %d > %s", name, old, value, err, value, path)
	}
	a.errs = append(a.errs, err)
	return false
}

// Cores is how many cores are online, whatever share of them this process may use.
func Cores() int {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err == nil {
		if n := countRanges(strings.TrimSpace(string(text))); n > 0 {
			return n
		}
	}
	return runtime.NumCPU()
}

// countRanges counts the numbers of a list like "0-3,8"; 0 if it is not understood.
func countRanges(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		if err1 != nil || err2 != nil || first < 0 || last < first {
			return 0
		}
		n += last - first + 1
	}
	return n
}

// FlowAccounting enables packet and byte counters and timestamps of conntrack entries, in the
// calling thread's network namespace. Existing entries have none. The changes and the error are as
// those of [Conntrack.Apply]; the error also names the missing data.
func FlowAccounting(files Files) (changes []string, err error) {
	var errs []error
	for _, s := range []struct{ name, without string }{
		{"nf_conntrack_acct", "packets and bytes of flows are not counted"},
		{"nf_conntrack_timestamp", "durations of flows are not known"},
	} {
		a := applier{files: files}
		if !a.set(netfilterDir+s.name, 1, true) {
			errs = append(errs, fmt.Errorf("%s: %w", s.without, errors.Join(a.errs...)))
		}
		changes = append(changes, a.changes...)
	}
	return changes, errors.Join(errs...)
}

// Files reads and writes the small files of /proc/sys and /sys with one number in them.
// [KernelFiles] are the real ones.
type Files interface {
	Read(path string) (int, error)
	Write(path string, value int) error
}

// KernelFiles are the files of the running kernel.
type KernelFiles struct {
	// Host is put before the path of a file that is read-only: in a container that is
	// not privileged /proc/sys is, and no mount can be put over it, but the host's
	// /proc/sys/net can be mounted elsewhere. Empty: there is no such place.
	Host string
}

// Read reads a number.
func (KernelFiles) Read(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// Write writes a number to a file that is there.
func (k KernelFiles) Write(path string, value int) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if k.Host != "" && (errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrPermission)) {
		if host, hostErr := os.OpenFile(k.Host+path, os.O_WRONLY, 0); hostErr == nil {
			file, err = host, nil
		}
	}
	if err != nil {
		return err
	}
	_, err = file.WriteString(strconv.Itoa(value))
	return errors.Join(err, file.Close())
}

const routeLocalnet = "/proc/sys/net/ipv4/conf/all/route_localnet"

// EnsureRouteLocalnet sets the sysctl that node ports on 127.0.0.1 need
// (Config.Node.LocalhostNodePorts), as kube-proxy does in mode iptables. Without it the
// kernel takes the replies for martians. Call it before the rules are there (engine.Config.Prepare).
func EnsureRouteLocalnet(files Files) error {
	if now, err := files.Read(routeLocalnet); err == nil && now == 1 {
		return nil
	}
	if err := files.Write(routeLocalnet, 1); err != nil {
		return fmt.Errorf("node ports on 127.0.0.1 need route_localnet: %w; set it on the node (echo 1 > %s) or set iptables.localhostNodePorts to false", err, routeLocalnet)
	}
	return nil
}
