package daemon

import (
	"bytes"
	"fmt"
	"os"
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

// prepare changes the kernel's state that the datapath's own rules depend on.
func (p *process) prepare(node *decision.Node) error {
	p.filter.Sync()
	return p.tune(node)
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
	text, _ := os.ReadFile(file)
	is, unreadable := strconv.Atoi(string(bytes.TrimSpace(text)))
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
