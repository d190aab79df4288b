package hostrules

import (
	"errors"
	"fmt"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
)

// kubeProxyTable is the nftables table of kube-proxy's mode nftables, of both families.
const kubeProxyTable = "kube-proxy"

// MarkUses finds the rules of other programs that set or test one of the bits, in all tables of
// iptables' back ends and of nftables in the calling thread's network namespace. It leaves out the
// rules of kube-proxy and nfqproxy, and those whose bits are not fixed. It needs CAP_NET_ADMIN.
func MarkUses(m Marks) ([]MarkUse, error) {
	legacy, err1 := legacyMarkUses(m)
	native, err2 := nftMarkUses(m)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("look for marks in the host's rules: %w", err)
	}
	return append(legacy, native...), nil
}

func legacyMarkUses(m Marks) (uses []MarkUse, err error) {
	for _, f := range families {
		names, err := xtables.Names(f)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			table := xtables.Place{Backend: xtables.Legacy, Family: f, Table: name}.String()
			t, err := xtables.Read(f, name)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", table, err)
			}
			rules, err := legacyRules(t, xtables.SetNames)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", table, err)
			}
			for _, r := range rules.Rules {
				if why := m.uses(r); why != "" {
					uses = append(uses, MarkUse{table, r.String(), why})
				}
			}
		}
	}
	return uses, nil
}

func nftMarkUses(m Marks) (uses []MarkUse, err error) {
	all, err := nftTables()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	device := deviceNames()
	for _, t := range all {
		if t.families() == nil || isOwn(t.Family, t.Name) || t.Name == kubeProxyTable {
			continue
		}
		if err := t.readContents(); err != nil {
			return nil, fmt.Errorf("nftables table %s: %w", t, err)
		}
		k := &kernel{sets: t.sets, ipset: xtables.SetNames, device: device}
		for _, r := range t.rules {
			if use, found := m.usesOf(t, r, k); found {
				uses = append(uses, use)
			}
		}
	}
	return uses, nil
}

// usesOf examines a rule of nftables, for each of its families.
func (m Marks) usesOf(t *nftTable, r *nft.Rule, k *kernel) (use MarkUse, found bool) {
	if markOwners[r.Chain] {
		return use, false
	}
	for _, f := range t.families() {
		tr := &translator{family: f, kernel: k}
		for _, made := range tr.translate(r) {
			if why := m.uses(made); why != "" {
				made.Chain = r.Chain // and not one that only exists for the translation
				return MarkUse{t.described(), made.String(), why}, true
			}
		}
	}
	return use, false
}

// described names the table as one of iptables, if it may be one.
func (t *nftTable) described() string {
	if fs := t.families(); len(fs) == 1 && iptablesTable[t.Name] {
		return xtables.Place{Backend: xtables.NFT, Family: fs[0], Table: t.Name}.String()
	}
	return "nftables table " + t.String()
}

var iptablesTable = map[string]bool{"raw": true, "mangle": true, "nat": true, "filter": true, "security": true}
