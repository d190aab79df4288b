package daemon

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/live/proxyconfig"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostmasq/hostrules"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// hostSysctls is where the host's /proc/sys/net is mounted for a container that is not
// privileged (see deploy/kubernetes).
const hostSysctls = "/host"

// tune sets the kernel's connection tracking as configured, and route_localnet for node ports on
// loopback addresses. It runs last, when the configuration
// can cause no other error. node is that of the first table: "primary" among the node port
// addresses is resolved there.
func (p *process) tune(node *decision.Node) error {
	files := proxyconfig.KernelFiles{Host: hostSysctls}
	changes, err := p.cfg.Conntrack.Apply(files, proxyconfig.Cores())
	for _, c := range changes {
		p.log.Info("set " + c)
	}
	if err != nil {
		p.log.Warn("cannot configure connection tracking completely", "error", err)
	}
	if node.LocalhostNodePorts {
		return proxyconfig.EnsureRouteLocalnet(files)
	}
	return nil
}

// tuneOOM sets oom_score_adj. To lower it takes CAP_SYS_RESOURCE, so it comes before [process.confine].
// A container had better not have that capability: there the kubelet has lowered it already for a pod that is critical.
func (p *process) tuneOOM() {
	const file = "/proc/self/oom_score_adj"
	wanted := p.cfg.OOMScoreAdj
	err := os.WriteFile(file, []byte(strconv.Itoa(wanted)), 0)
	if err == nil {
		return
	}
	is, unreadable := proxyconfig.KernelFiles{}.Read(file)
	if unreadable == nil && is < 0 {
		p.log.Debug("oom_score_adj stays unchanged", "is", is, "wanted", wanted, "error", err)
		return
	}
	p.log.Warn("cannot set oom_score_adj: the kernel may kill this process when memory runs out", "is", is, "wanted", wanted, "error", err)
}

// markRulesNamed is how many rules an event names; the log names markRulesLogged.
const markRulesNamed, markRulesLogged = 3, 20

// checkMarks warns of rules of the host that use the same bits of marks.
func (p *process) checkMarks(t *decision.Table) {
	marks := rules.Marks{Packet: t.Node().Mark(), Connection: conntrack.DefaultMark | conntrack.CopyMark}
	uses, err := hostrules.MarkUses(marks)
	if err != nil {
		p.log.Debug("cannot compare the marks of the host's rules with ours", "error", err)
		return
	}
	if len(uses) == 0 {
		return
	}
	var named []string
	for i, u := range uses {
		if i == markRulesLogged {
			p.log.Warn("more rules of the host use the same mark bits", "rules", len(uses)-i)
			break
		}
		p.log.Warn("a rule of the host uses the same mark bit as nfqproxy", "table", u.Table, "rule", u.Rule, "why", u.Why)
		if i < markRulesNamed {
			named = append(named, u.String())
		}
	}
	p.events.Node(true, "MarkCollision", fmt.Sprintf(
		"Rules of this node (%d) use the packet mark 0x%x (--masquerade-bit changes it) or the connection marks 0x%x, as nfqproxy does: flows may be masqueraded, accepted or regarded as translated by mistake. %s",
		len(uses), marks.Packet, marks.Connection, strings.Join(named, "; ")))
}

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
