package cli

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/pastedrules"
)

// peeked is how much of a text shows what it is.
const peeked = 64 << 10

// looksLikeRuleset reports whether a text that begins so is a ruleset of nftables.
func looksLikeRuleset(begin string) bool {
	if nftables.Looks(begin) {
		return true
	}
	_, ok := pastedrules.UncoverRuleset(begin)
	return ok
}

// readRuleset reads a ruleset of nftables. An error has the line and the column, and not the file.
func readRuleset(name string, in io.Reader) (*nftables.Ruleset, error) {
	ruleset, err := nftables.ReadExcerpt(name, in, pastedrules.UncoverRuleset)
	if fault := (*nftables.Error)(nil); errors.As(err, &fault) {
		if strings.HasPrefix(fault.Problem(), "the end of the file") {
			return nil, fmt.Errorf("line %d: the end of the ruleset is missing (%s): give all of the output of nft list ruleset", fault.Line, fault.Problem())
		}
		return nil, fmt.Errorf("line %d, column %d: %s", fault.Line, fault.Column, fault.Problem())
	}
	return ruleset, err
}

// lacksBeginning reports whether a text begins within a table of nftables, whose name is missing.
func lacksBeginning(begin []byte) bool {
	inside, table := insideRuleset.FindIndex(begin), tableBegins.FindIndex(begin)
	return inside != nil && (table == nil || inside[0] < table[0])
}

var (
	insideRuleset = regexp.MustCompile(`(?m)^\s*((chain|set|map) \S+ \{|type \w+ hook \w+ priority .*;|elements = \{ .*)$`)
	tableBegins   = regexp.MustCompile(`\b(table (ip|ip6|inet|arp|bridge|netdev)|add|create) \S+`)
)
