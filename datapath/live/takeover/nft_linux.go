package takeover

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
)

// findNFT reads nftables: kube-proxy's own tables, and those of iptables' nft back end, which are
// ordinary tables with iptables' names.
//
// The messages are read and written here, not with google/nftables, for two reasons: rules of
// other programs may have expressions that it does not support, and with tens of thousands of
// chains its acknowledgement for each message overflows the socket.
func (l *Rules) findNFT() error {
	for _, f := range families {
		tables, err := nft.Tables(nft.Dump, nft.Family(f))
		if err != nil {
			return fmt.Errorf("nftables, family %s: %w", nftName(f), changedOr(err))
		}
		byName := make(map[string]*nft.Table)
		for _, t := range tables {
			byName[t.Name] = t
		}
		if t := byName[ownTableName]; t != nil {
			serves := slices.ContainsFunc(t.Chains, func(c *nft.Chain) bool { return strings.Contains(c.Name, ownServiceChain) })
			l.tables = append(l.tables, ownTable{f, len(t.Chains), serves})
		}
		for _, name := range tableNames {
			t := byName[name]
			if t == nil || !slices.ContainsFunc(t.Chains, func(c *nft.Chain) bool { return !c.Base && owned(name, c.Name) }) {
				continue
			}
			rules, err := t.Rules(nft.Dump)
			if err != nil {
				return fmt.Errorf("nftables table %s: %w", t, changedOr(err))
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
		if c := t.chains[r.Chain]; c != nil {
			c.rules = append(c.rules, rule{r.Handle, targets(r)})
		}
	}
	return t
}

// targets are the chains that a rule jumps or goes to: by immediate values for the verdict register.
func targets(r *nft.Rule) (chains []string) {
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

// changedOr is errChanged for an error that means this, or else the error.
func changedOr(err error) error {
	if errors.Is(err, nft.ErrChanged) || errors.Is(err, xtables.ErrChanged) {
		return errChanged
	}
	return err
}
