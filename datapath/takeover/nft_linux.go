package takeover

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/nft"
	"github.com/nfqproxy/nfqproxy/datapath/xtables"
)

// findNFT reads nftables: kube-proxy's own tables, and those of iptables' nft back end, which are
// ordinary tables with iptables' names.
//
// The messages are read and written here, not with google/nftables, for two reasons: rules of
// other programs may have expressions that it does not support, and with tens of thousands of
// chains its acknowledgement for each message overflows the socket.
func (l *Rules) findNFT() error {
	for _, f := range families {
		tables, err := nftTables(f)
		if err != nil {
			return fmt.Errorf("nftables, family %s: %w", nftName(f), err)
		}
		if t := tables[ownTableName]; t != nil {
			l.tables = append(l.tables, ownTable{f, len(t.chains)})
		}
		for _, name := range tableNames {
			t := tables[name]
			if t == nil || !slices.ContainsFunc(slices.Collect(maps.Keys(t.chains)), t.isOwn) {
				continue
			}
			if err := t.readRules(); err != nil {
				return fmt.Errorf("nftables table %s %s: %w", nftName(f), name, err)
			}
			l.add(t)
		}
	}
	return nil
}

// nftTables lists the tables of a family with their chains, without rules.
func nftTables(f decision.Family) (map[string]*table, error) {
	tables := make(map[string]*table)
	of := func(name string) *table {
		if tables[name] == nil {
			tables[name] = &table{Place: xtables.Place{Backend: xtables.NFT, Family: f, Table: name}, chains: make(map[string]*chain)}
		}
		return tables[name]
	}
	err := dump(f, unix.NFT_MSG_GETTABLE, nil, func(a nft.Attributes) { of(a.Text(unix.NFTA_TABLE_NAME)) })
	if err != nil {
		return nil, err
	}
	err = dump(f, unix.NFT_MSG_GETCHAIN, nil, func(a nft.Attributes) {
		c := nft.ChainOf(a)
		of(c.Table).chains[c.Name] = &chain{base: c.Base}
	})
	return tables, err
}

// readRules fills in the rules of all chains.
func (t *table) readRules() error {
	for _, c := range t.chains {
		c.rules = nil
	}
	return dump(t.Family, unix.NFT_MSG_GETRULE, nft.RulesOf(t.Table, ""), func(a nft.Attributes) {
		r := nft.RuleOf(a)
		// Kernels without the filter return the rules of all tables.
		if c := t.chains[r.Chain]; c != nil && r.Table == t.Table {
			c.rules = append(c.rules, rule{r.Handle, targets(r)})
		}
	})
}

// targets are the chains that a rule jumps or goes to: by immediate values for the verdict register.
func targets(r nft.Rule) (chains []string) {
	for _, e := range r.Expressions {
		if e.Name != "immediate" {
			continue
		}
		verdict := nft.Parse(e.Data).Nested(unix.NFTA_IMMEDIATE_DATA).Nested(unix.NFTA_DATA_VERDICT)
		if verdict.Has(unix.NFTA_VERDICT_CHAIN) {
			chains = append(chains, verdict.Text(unix.NFTA_VERDICT_CHAIN))
		}
	}
	return chains
}

// dump reads all objects of a kind and passes on their attributes.
func dump(f decision.Family, kind int, filter nft.Encode, each func(nft.Attributes)) error {
	err := nft.Dump(nft.Family(f), kind, filter, func(_ uint8, a nft.Attributes) { each(a) })
	if errors.Is(err, nft.ErrChanged) {
		return errChanged
	}
	return err
}
