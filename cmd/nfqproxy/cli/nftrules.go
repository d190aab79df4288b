package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

// peeked is how much of a text shows what it is.
const peeked = 64 << 10

// looksLikeRuleset reports whether a text that begins so is a ruleset of nftables.
func looksLikeRuleset(begin string) bool {
	if nftables.Looks(begin) {
		return true
	}
	_, ok := iptables.UncoverRuleset(begin)
	return ok
}

// readRuleset reads a ruleset of nftables. An error has the line and the column, and not the file.
func readRuleset(name string, in io.Reader) (*nftables.Ruleset, error) {
	ruleset, err := nftables.ReadExcerpt(name, in, iptables.UncoverRuleset)
	if fault := (*nftables.Error)(nil); errors.As(err, &fault) {
		return nil, fmt.Errorf("line %d, column %d: %s", fault.Line, fault.Column, fault.Problem())
	}
	return ruleset, err
}
