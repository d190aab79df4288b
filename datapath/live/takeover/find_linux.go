package takeover

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
)

// ipvsDevice is the interface with the services' addresses in mode ipvs.
const ipvsDevice = "kube-ipvs0"

// Find looks for kube-proxy's rules in the calling thread's network namespace. It changes nothing
// and loads no kernel module. It needs CAP_NET_ADMIN.
func Find() (*Rules, error) {
	l := new(Rules)
	err := errors.Join(l.findNFT(), l.findLegacy())
	if err != nil {
		return nil, fmt.Errorf("look for kube-proxy's rules: %w", err)
	}
	if _, err := net.InterfaceByName(ipvsDevice); err == nil {
		l.notes = append(l.notes, "IPVS: interface "+ipvsDevice+" with the services' addresses, the virtual servers and the ipsets stay: "+
			"remove them with kube-proxy's own --cleanup, or reboot the node")
	}
	return l, nil
}

// findNFT reads nftables: kube-proxy's own tables, and those of iptables' nft back end, which are
// ordinary tables with iptables' names.
//
// Package nft reads and writes the messages, not google/nftables, for two reasons: rules of
// other programs may have expressions that it does not support, and with tens of thousands of
// chains its acknowledgement for each message overflows the socket.
func (l *Rules) findNFT() error {
	for _, f := range families {
		tables, err := nft.Tables(nft.Dump, nft.Family(f))
		if err != nil {
			return fmt.Errorf("nftables, family %s: %w", f, err)
		}
		byName := make(map[string]*nft.Table)
		for _, t := range tables {
			byName[t.Name] = t
		}
		if t := byName[ownTableName]; t != nil {
			serves := slices.ContainsFunc(t.Chains, func(c *nft.Chain) bool { return strings.Contains(c.Name, ownServiceChain) })
			l.tables = append(l.tables, ownTable{f, t.String(), len(t.Chains), serves})
		}
		for _, name := range tableNames {
			t := byName[name]
			if t == nil || !slices.ContainsFunc(t.Chains, func(c *nft.Chain) bool { return !c.Base && owned(name, c.Name) }) {
				continue
			}
			rules, err := t.Rules(nft.Dump)
			if err != nil {
				return fmt.Errorf("nftables table %s: %w", t, err)
			}
			l.add(nftTable(f, t, rules))
		}
	}
	return nil
}

// nftTable returns the parts of a table of iptables' nft back end that plan uses.
func nftTable(f decision.Family, of *nft.Table, rules []*nft.Rule) *table {
	t := &table{Place: xtables.Place{Backend: xtables.NFT, Family: f, Table: of.Name}, chains: make(map[string]*chain)}
	for _, c := range of.Chains {
		t.chains[c.Name] = &chain{base: c.Base}
	}
	for _, r := range rules {
		c := t.chains[r.Chain]
		if c == nil {
			continue
		}
		jumps := rule{id: r.Handle}
		for _, e := range r.Expressions {
			if to := e.Jump(); to != "" {
				jumps.targets = append(jumps.targets, to)
			}
		}
		c.rules = append(c.rules, jumps)
	}
	return t
}

// findLegacy reads the tables of the legacy back end. Reading a table makes the kernel load it, so
// only loaded ones are read.
func (l *Rules) findLegacy() error {
	for _, f := range families {
		for _, name := range tableNames {
			at := xtables.Place{Backend: xtables.Legacy, Family: f, Table: name}
			chains, err := xtables.Chains(f, name)
			if err != nil {
				return fmt.Errorf("%s: %w", at, err)
			}
			l.add(legacyTable(at, chains))
		}
	}
	return nil
}

// maxAttempts is how often Remove reads a table again if another program changes it.
const maxAttempts = 5

// Remove removes the rules that were found: each table of the kernel in one transaction, all or
// nothing. If a table has changed in between, it reads the table again and removes what it finds
// then; missing rules are no error. It works on the calling thread's network namespace, which must
// be the one of Find, and needs CAP_NET_ADMIN. Afterwards Lines still lists what has been removed.
func (l *Rules) Remove() error {
	var err error
	current := l
	for range maxAttempts {
		if err = current.remove(); !nft.IsChanged(err) {
			break
		}
		var again error
		if current, again = Find(); again != nil {
			return again
		}
	}
	if nft.IsChanged(err) {
		err = fmt.Errorf("%w (%w)", err, errChanged)
	}
	if err != nil {
		return fmt.Errorf("remove kube-proxy's rules: %w", err)
	}
	return nil
}

// errChanged explains that a table changed since it was read.
var errChanged = errors.New("the rules changed meanwhile, or rules of other programs use them; is kube-proxy still running?")

func (l *Rules) remove() error {
	var errs []error
	for _, t := range l.tables {
		var tr nft.Transaction
		tr.Add(nft.Family(t.family), unix.NFT_MSG_DELTABLE, 0, nft.NamedTable(ownTableName))
		if err := tr.Run(); err != nil {
			errs = append(errs, fmt.Errorf("nftables table %s: %w", t.name, err))
		}
	}
	for _, r := range l.removals {
		remove := r.removeNFT
		if r.table.Backend == xtables.Legacy {
			remove = r.removeLegacy
		}
		if err := remove(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r.table, err))
		}
	}
	return errors.Join(errs...)
}

// removeNFT removes the jumps first, then the rules of the chains, which refer to other
// chains, and then the chains.
func (r *removal) removeNFT() error {
	var t nft.Transaction
	family, table := nft.Family(r.table.Family), r.table.Table
	for _, j := range r.jumps {
		t.Add(family, unix.NFT_MSG_DELRULE, 0, nft.NumberedRule(table, j.chain, j.id))
	}
	for _, name := range r.chains {
		t.Add(family, unix.NFT_MSG_DELRULE, 0, nft.RulesOf(table, name))
	}
	for _, name := range r.chains {
		t.Add(family, unix.NFT_MSG_DELCHAIN, 0, nft.NamedChain(table, name))
	}
	return t.Run()
}

// removeLegacy replaces the table by one without what is to be removed from it now: it may have changed.
func (r *removal) removeLegacy() error {
	return xtables.Edit(r.table.Family, r.table.Table, func(d *xtables.Draft) (changed bool) {
		now, _ := legacyTable(r.table.Place, d.Chains).plan()
		now.cut(d)
		return len(now.chains) > 0
	})
}
