package hostrules

import (
	"fmt"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// Marks are bits of the packet mark and of the connection mark.
type Marks struct {
	Packet, Connection uint32
}

// MarkUse is a rule that sets or tests bits of a mark.
type MarkUse struct {
	Table string // "iptables (nft), IPv4, table mangle", "nftables table inet firewall"
	Rule  string // as iptables would print it
	Why   string // "it tests the packet mark 0x4000"
}

// String is one line.
func (u *MarkUse) String() string { return fmt.Sprintf("%s: %q: %s", u.Table, u.Rule, u.Why) }

// markOwners are the chains of kube-proxy, kubelet and nfqproxy for their own marks.
var markOwners = map[string]bool{"KUBE-MARK-MASQ": true, "KUBE-POSTROUTING": true, "KUBE-FORWARD": true, "NFQPROXY-FORWARD": true}

// uses describes what the rule does to the bits; empty: it neither sets nor tests them.
func (m Marks) uses(r *iptables.Rule) string {
	if markOwners[r.Chain] {
		return ""
	}
	var all []string
	note := func(verb, mark string, bits uint32) {
		if bits != 0 {
			all = append(all, fmt.Sprintf("%s the %s mark 0x%x", verb, mark, bits))
		}
	}
	for _, match := range r.Matches {
		switch match := match.(type) {
		case iptables.Mark:
			note("tests", "packet", match.Mark.Mask&m.Packet)
		case iptables.Connmark:
			note("tests", "connection", match.Mark.Mask&m.Connection)
		}
	}
	switch t := r.Target.(type) {
	case iptables.SetMark:
		note("changes", "packet", (t.Mark.Mask|t.Mark.Value)&m.Packet)
	case iptables.SetConnmark:
		switch t.Mode {
		case iptables.ConnmarkSet:
			note("changes", "connection", (t.Mark.Mask|t.Mark.Value)&m.Connection)
		case iptables.ConnmarkSave: // xt_connmark.c, connmark_tg_shift
			note("copies", "packet", t.PacketMask&m.Packet)
			note("changes", "connection", (t.ConnectionMask|shifted(t.PacketMask, t.Shift))&m.Connection)
		case iptables.ConnmarkRestore:
			note("copies", "connection", t.ConnectionMask&m.Connection)
			note("changes", "packet", (t.PacketMask|shifted(t.ConnectionMask, t.Shift))&m.Packet)
		}
	}
	if len(all) == 0 {
		return ""
	}
	return "it " + strings.Join(all, " and ")
}

// shifted moves a mask as the option of CONNMARK does.
func shifted(mask uint32, by int8) uint32 {
	if by < 0 {
		return mask >> -by
	}
	return mask << by
}
