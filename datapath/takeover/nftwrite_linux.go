package takeover

import (
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	nftables "github.com/nfqproxy/nfqproxy/datapath/nft"
)

// run sends a transaction.
func run(t *nftables.Transaction) error {
	err := t.Run()
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ERESTART) {
		return errors.Join(errChanged, err)
	}
	return err
}

// removeNFT removes the jumps first, then the rules of the chains, which refer to other
// chains, and then the chains.
func (r *removal) removeNFT() error {
	var t nftables.Transaction
	family := nftables.Family(r.table.family)
	for _, j := range r.jumps {
		t.Add(family, unix.NFT_MSG_DELRULE, 0, func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_RULE_TABLE, r.table.name)
			e.String(unix.NFTA_RULE_CHAIN, j.chain)
			e.Uint64(unix.NFTA_RULE_HANDLE, j.id)
		})
	}
	for _, name := range r.chains {
		t.Add(family, unix.NFT_MSG_DELRULE, 0, func(e *netlink.AttributeEncoder) { // all rules
			e.String(unix.NFTA_RULE_TABLE, r.table.name)
			e.String(unix.NFTA_RULE_CHAIN, name)
		})
	}
	for _, name := range r.chains {
		t.Add(family, unix.NFT_MSG_DELCHAIN, 0, func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_CHAIN_TABLE, r.table.name)
			e.String(unix.NFTA_CHAIN_NAME, name)
		})
	}
	return run(&t)
}

func removeOwnTable(f decision.Family) error {
	var t nftables.Transaction
	t.Add(nftables.Family(f), unix.NFT_MSG_DELTABLE, 0, func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_TABLE_NAME, ownTableName) })
	return run(&t)
}
