package survey

import (
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
)

// keepsSource reports whether a connection keeps its source that has to be masqueraded: its reply would not come back
// through this node's translation. That is so for one from elsewhere under policy Cluster if the endpoint may be on another
// node, for an endpoint's to itself, and for one from a loopback address.
func (s *surveyor) keepsSource(c *connection, w *netfilter.Way) bool {
	if w.Verdict != netfilter.Sent || w.Entry != nil && w.Entry.SNAT || s.isIncomplete() {
		return false
	}
	switch c.from.Kind {
	case Outside, OtherPod:
		return c.entry != decision.EntryNone && c.policy() == decision.Cluster && !s.isLocal(c, w.Packet.Destination)
	case Itself:
		return w.Packet.Destination.Addr() == w.Packet.Source.Addr()
	case Pod:
		if s.one != nil && w.Packet.Destination.Addr() == w.Packet.Source.Addr() {
			return true
		}
	}
	return w.Packet.Source.Addr().IsLoopback()
}

// foreignSource is the rule that gives packets to another node a source that is known to be no address of this host; nil: there is none.
func (s *surveyor) foreignSource(c *connection, w *netfilter.Way) *iptables.Rule {
	if w.Verdict != netfilter.Sent || w.Entry == nil || !w.Entry.SNAT || !s.host.Complete() || s.isLocal(c, w.Packet.Destination) {
		return nil
	}
	if r := s.machine.Route(w.Packet.Source.Addr()); r.Type != netfilter.Unicast || r.Interface != w.Out {
		return nil
	}
	for _, r := range slices.Backward(w.Path) {
		if _, ok := r.Target.(iptables.SNAT); ok {
			return r
		}
	}
	return nil
}

// unmarkingRule is the rule that takes kube-proxy's mark from a packet, or accepts it before kube-proxy masquerades; nil: there
// is none.
func (s *surveyor) unmarkingRule(path []*iptables.Rule) (found *iptables.Rule) {
	bit := s.proxy().MasqueradeMark
	marked, mark := false, uint32(0)
	for _, r := range path {
		set, sets := r.Target.(iptables.SetMark)
		before := mark
		if sets {
			mark = set.Apply(mark)
		}
		if sets && strings.HasPrefix(r.Chain, "KUBE-") || r.Chain == kubechains.Postrouting || r.Native && s.wrote(r) {
			marked = true
			continue
		}
		switch target := r.Target.(type) {
		case iptables.SetMark:
			if marked && before&bit != 0 && mark&bit == 0 {
				found = r
			}
		case iptables.Verdict:
			if marked && (target == iptables.Accept || target == iptables.Return && r.Chain == "POSTROUTING") && s.tableOf(r) == "nat" {
				found = r
			}
		}
		if mark&bit != 0 && copiesMark(r) {
			found, mark = r, mark&^bit
		}
	}
	return found
}

// copiesMark reports whether a rule gives packets a mark that depends on others, such as that of the connection.
func copiesMark(r *iptables.Rule) bool {
	if t, ok := r.Target.(iptables.SetConnmark); ok {
		return t.Mode == iptables.ConnmarkRestore
	}
	return hasEffect(r, "meta mark set")
}

// isIncomplete reports whether the dumps may lack rules of nat at postrouting.
func (s *surveyor) isIncomplete() bool {
	return !slices.ContainsFunc(s.dumps, func(d *iptables.Dump) bool {
		return d.Ruleset != nil && !s.lacksMasquerading(d) || d.Table("nat") != nil && d.Lists("nat", "POSTROUTING")
	})
}

// lacksMasquerading reports whether kube-proxy's table of nftables is there without its base chain at postrouting, or the one that
// masquerades: as nft list chain prints a few.
func (s *surveyor) lacksMasquerading(d *iptables.Dump) bool {
	for _, t := range d.Tables {
		if strings.HasSuffix(t.Name, " "+nftproxy.Table) {
			return t.Chain(nftproxy.Masquerading) == nil || !slices.ContainsFunc(t.Chains, func(c *iptables.Chain) bool { return c.Base != nil && c.Base.Hook == "postrouting" })
		}
	}
	return false
}
