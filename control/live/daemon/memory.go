package daemon

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// limitMemory sets Go's memory limit, so that the garbage collector works harder before the
// kernel kills the process when its control group's memory is nearly used up. The limit is
// nine tenths of the group's: the rest is for memory that Go does not count, mainly socket
// buffers.
// GOMEMLIMIT in the environment has precedence.
func (p *process) limitMemory() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	bytes, ok := cgroupMemory(os.DirFS("/"))
	if !ok {
		return
	}
	debug.SetMemoryLimit(bytes / 10 * 9)
	p.log.Debug("the memory limit follows that of the control group", "limit", bytes/10*9, "group", bytes)
}

// cgroupMemory is the memory limit in bytes of the process's control group and those above
// it; false: there is none. In a container the paths of /proc/self/cgroup may be the host's,
// while the container's own group is mounted as the root: so missing paths are skipped, and
// the root counts, too.
func cgroupMemory(root fs.FS) (bytes int64, ok bool) {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	bytes = math.MaxInt64
	for line := range strings.Lines(string(text)) {
		// hierarchy:controllers:path; see cgroups(7).
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		switch controllers := strings.Split(fields[1], ","); {
		case fields[0] == "0" && fields[1] == "":
			// Where both versions are mounted, that of version 2 is beneath.
			for _, mount := range []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"} {
				bytes = min(bytes, smallest(root, mount, fields[2], "memory.max"))
			}
		case slices.Contains(controllers, "memory"):
			bytes = min(bytes, smallest(root, "sys/fs/cgroup/memory", fields[2], "memory.limit_in_bytes"))
		}
	}
	// In version 1 the greatest multiple of the page size means "no limit".
	return bytes, bytes < 1<<62
}

// smallest is the smallest limit of a group and those above it.
func smallest(root fs.FS, mount, group, file string) int64 {
	least := int64(math.MaxInt64)
	for group = path.Clean("/" + group); ; group = path.Dir(group) {
		text, err := fs.ReadFile(root, path.Join(mount, group, file))
		if n, wrong := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && wrong == nil && n > 0 { // else it is "max"
			least = min(least, n)
		}
		if group == "/" {
			return least
		}
	}
}
