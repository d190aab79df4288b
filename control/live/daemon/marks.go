package daemon

import (
	"fmt"
	"strings"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostmasq/hostrules"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

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
