package takeover

import (
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// run sends a transaction.
func run(t *nft.Transaction) error {
	err := t.Run()
	if nft.IsChanged(err) {
		return errors.Join(errChanged, err)
	}
	return err
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
	return run(&t)
}

func removeOwnTable(f decision.Family) error {
	var t nft.Transaction
	t.Add(nft.Family(f), unix.NFT_MSG_DELTABLE, 0, func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_TABLE_NAME, ownTableName) })
	return run(&t)
}
