package hostrules

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// MarkUse is a rule that sets or tests bits of a mark.
type MarkUse struct {
	Table string // "iptables (nft), IPv4, table mangle", "nftables table inet firewall"
	Rule  string // as iptables or nft would print it
	Why   string // "it tests the packet mark 0x4000"
}

// String is one line.
func (u *MarkUse) String() string { return fmt.Sprintf("%s: %q: %s", u.Table, u.Rule, u.Why) }

// markOwners are the chains of kube-proxy, kubelet and nfqproxy for their own marks.
var markOwners = map[string]bool{"KUBE-MARK-MASQ": true, "KUBE-POSTROUTING": true, "KUBE-FORWARD": true, "NFQPROXY-FORWARD": true}

// uses describes what the rule does to the bits; empty: it neither sets nor tests them.
func uses(m rules.Marks, r *rules.Rule) string {
	if markOwners[r.Chain] {
		return ""
	}
	u := r.MarkUse()
	var all []string
	note := func(verb, mark string, bits uint32) {
		if bits != 0 {
			all = append(all, fmt.Sprintf("%s the %s mark 0x%x", verb, mark, bits))
		}
	}
	note("tests", "packet", u.Tests.Packet&m.Packet)
	note("tests", "connection", u.Tests.Connection&m.Connection)
	note("copies", "packet", u.Copies.Packet&m.Packet)
	note("changes", "connection", u.Changes.Connection&m.Connection)
	note("copies", "connection", u.Copies.Connection&m.Connection)
	note("changes", "packet", u.Changes.Packet&m.Packet)
	if len(all) == 0 {
		return ""
	}
	return "it " + strings.Join(all, " and ")
}

// kubeProxyTable is the nftables table of kube-proxy's mode nftables, of both families.
const kubeProxyTable = "kube-proxy"

// MarkUses finds the rules of other programs that set or test one of the bits, in all tables of
// iptables' back ends and of nftables in the calling thread's network namespace. It leaves out the
// rules of kube-proxy and nfqproxy, and those whose bits are not fixed. It needs CAP_NET_ADMIN.
func MarkUses(m rules.Marks) ([]MarkUse, error) {
	legacy, err1 := legacyMarkUses(m)
	native, err2 := nftMarkUses(m)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("look for marks in the host's rules: %w", err)
	}
	return append(legacy, native...), nil
}

func legacyMarkUses(m rules.Marks) (found []MarkUse, err error) {
	for _, f := range families {
		names, err := xtables.Names(f)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			table := xtables.Place{Backend: xtables.Legacy, Family: f, Table: name}.String()
			chains, err := loadedChains(f, name)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", table, err)
			}
			for _, c := range chains {
				for _, r := range c.Rules {
					if why := uses(m, r); why != "" {
						found = append(found, MarkUse{table, r.String(), why})
					}
				}
			}
		}
	}
	return found, nil
}

func nftMarkUses(m rules.Marks) (found []MarkUse, err error) {
	all, err := nft.Tables(nft.DumpOnce, unix.NFPROTO_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	for _, listed := range all {
		t := &nftTable{Table: listed}
		if t.families() == nil || isOwn(t.Family, t.Name) || t.Name == kubeProxyTable {
			continue
		}
		if err := t.readContents(); err != nil {
			return nil, fmt.Errorf("nftables table %s: %w", t, err)
		}
		tr := t.translator(t.families()[0])
		tr.native = t.described() == "nftables table "+t.String()
		for _, r := range t.rules {
			made := tr.translate(r)
			if why := uses(m, made); why != "" {
				found = append(found, MarkUse{t.described(), made.String(), why})
			}
		}
	}
	return found, nil
}

// described names the table as one of iptables, if it may be one.
func (t *nftTable) described() string {
	if fs := t.families(); len(fs) == 1 && iptablesTable[t.Name] {
		return xtables.Place{Backend: xtables.NFT, Family: fs[0], Table: t.Name}.String()
	}
	return "nftables table " + t.String()
}

var iptablesTable = map[string]bool{"raw": true, "mangle": true, "nat": true, "filter": true, "security": true}
