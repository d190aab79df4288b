package survey

import (
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
)

// indexVerdicts finds the rules that may keep packets from kube-proxy's rules of nat: those that end
// the table's walk before, and those that have connection tracking ignore packets.
func (s *surveyor) indexVerdicts() {
	s.tables = make(map[*iptables.Rule]string)
	for _, d := range s.dumps {
		for _, t := range d.Tables {
			for _, r := range t.Rules {
				if r.Native && untracks(r) {
					s.tables[r] = t.Name
				}
				switch target := r.Target.(type) {
				case iptables.Notrack, iptables.TProxy:
					s.tables[r] = t.Name
				case iptables.CT:
					if target.NoTrack {
						s.tables[r] = t.Name
					}
				case iptables.Verdict:
					if target != iptables.Drop && s.isEarly(r, target, t.Name) {
						s.tables[r] = t.Name
					}
				}
			}
		}
	}
}

// isEarly reports whether an ACCEPT or RETURN ends the walk before a rule of kube-proxy translates.
func (s *surveyor) isEarly(r *iptables.Rule, target iptables.Verdict, table string) bool {
	switch {
	case r.Native:
		return strings.HasSuffix(table, " "+nftproxy.Table) && (r.Chain == nftproxy.Services || strings.HasPrefix(r.Chain, "nat-")) && !s.wrote(r)
	case table != "nat":
		return false
	case target == iptables.Return:
		return r.Chain == "PREROUTING" || r.Chain == "OUTPUT" || r.Chain == kubechains.Services && s.ipvs == nil
	}
	return target == iptables.Accept && r.Chain != "POSTROUTING" && r.Chain != "INPUT"
}

// untracks reports whether a rule has connection tracking ignore packets, or is one of the table raw.
func untracks(r *iptables.Rule) bool {
	if r == nil {
		return false
	}
	switch t := r.Target.(type) {
	case iptables.Notrack:
		return true
	case iptables.CT:
		return t.NoTrack
	}
	return hasEffect(r, "notrack")
}

// hasEffect reports whether a rule of nftables has an effect whose text begins so.
func hasEffect(r *iptables.Rule, begins string) bool {
	return slices.ContainsFunc(r.Matches, func(m iptables.Match) bool {
		n, ok := m.(iptables.NativeMatch)
		return ok && n.Effect() && strings.HasPrefix(n.Text(), begins)
	})
}

// isTProxy reports whether a rule gives packets to a transparent socket, whatever their destination is.
func isTProxy(r *iptables.Rule) bool { _, ok := r.Target.(iptables.TProxy); return ok }

// keeper is the rule that kept a packet from being translated; nil: none is to be seen.
func (s *surveyor) keeper(path []*iptables.Rule) (*iptables.Rule, string) {
	for _, r := range path {
		if table, ok := s.tables[r]; ok {
			return r, table
		}
	}
	return nil, ""
}
