package takeover

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	nftables "github.com/nfqproxy/nfqproxy/datapath/nft"
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
			if t == nil || !t.hasOwn() {
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

func (t *table) hasOwn() bool {
	for name := range t.chains {
		if t.isOwn(name) {
			return true
		}
	}
	return false
}

// nftTables lists the tables of a family with their chains, without rules.
func nftTables(f decision.Family) (map[string]*table, error) {
	tables := make(map[string]*table)
	of := func(name string) *table {
		if tables[name] == nil {
			tables[name] = &table{backend: nft, family: f, name: name, chains: make(map[string]*chain)}
		}
		return tables[name]
	}
	err := dump(f, unix.NFT_MSG_GETTABLE, nil, func(ad *netlink.AttributeDecoder) {
		for ad.Next() {
			if ad.Type() == unix.NFTA_TABLE_NAME {
				of(ad.String())
			}
		}
	})
	if err != nil {
		return nil, err
	}
	err = dump(f, unix.NFT_MSG_GETCHAIN, nil, func(ad *netlink.AttributeDecoder) {
		var table, name string
		c := new(chain)
		for ad.Next() {
			switch ad.Type() {
			case unix.NFTA_CHAIN_TABLE:
				table = ad.String()
			case unix.NFTA_CHAIN_NAME:
				name = ad.String()
			case unix.NFTA_CHAIN_HOOK:
				c.base = true
			}
		}
		of(table).chains[name] = c
	})
	return tables, err
}

// readRules fills in the rules of all chains.
func (t *table) readRules() error {
	for _, c := range t.chains {
		c.rules = nil
	}
	filter := func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_RULE_TABLE, t.name) }
	return dump(t.family, unix.NFT_MSG_GETRULE, filter, func(ad *netlink.AttributeDecoder) {
		var in, name string
		var r rule
		for ad.Next() {
			switch ad.Type() {
			case unix.NFTA_RULE_TABLE:
				in = ad.String()
			case unix.NFTA_RULE_CHAIN:
				name = ad.String()
			case unix.NFTA_RULE_HANDLE:
				r.id = ad.Uint64()
			case unix.NFTA_RULE_EXPRESSIONS:
				ad.Nested(func(list *netlink.AttributeDecoder) error {
					for list.Next() {
						list.Nested(r.expression)
					}
					return nil
				})
			}
		}
		// Kernels without the filter return the rules of all tables.
		if c := t.chains[name]; c != nil && in == t.name {
			c.rules = append(c.rules, r)
		}
	})
}

// expression reads the target of a jump or goto, which is an immediate value for the verdict
// register.
func (r *rule) expression(ad *netlink.AttributeDecoder) error {
	immediate := false
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_EXPR_NAME:
			immediate = ad.String() == "immediate"
		case unix.NFTA_EXPR_DATA:
			if !immediate {
				continue
			}
			descend(ad, []uint16{unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CHAIN}, func(name string) {
				r.targets = append(r.targets, name)
			})
		}
	}
	return nil
}

// descend finds a string in nested attributes.
func descend(ad *netlink.AttributeDecoder, path []uint16, found func(string)) {
	ad.Nested(func(inner *netlink.AttributeDecoder) error {
		for inner.Next() {
			switch {
			case inner.Type() != path[0]:
			case len(path) == 1:
				found(inner.String())
			default:
				descend(inner, path[1:], found)
			}
		}
		return nil
	})
}

// dump reads all objects of a kind and passes on their attributes.
func dump(f decision.Family, kind int, filter func(*netlink.AttributeEncoder), each func(*netlink.AttributeDecoder)) error {
	err := nftables.Dump(nftables.Family(f), kind, filter, func(_ uint8, ad *netlink.AttributeDecoder) { each(ad) })
	if errors.Is(err, nftables.ErrChanged) {
		return errChanged
	}
	return err
}
