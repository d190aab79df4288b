package xtables

import (
	"fmt"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Backend is a back end of the iptables programs.
type Backend string

// The back ends.
const (
	Legacy Backend = "legacy" // x_tables
	NFT    Backend = "nft"    // nftables' tables with the names of iptables
)

// Place is one table of iptables.
type Place struct {
	Backend Backend
	Family  decision.Family
	Table   string
}

// String describes the table.
func (p Place) String() string {
	return fmt.Sprintf("iptables (%s), %s, table %s", p.Backend, p.Family, p.Table)
}
