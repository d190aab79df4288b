package pastedrules

import (
	"regexp"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/pasted"
)

// UncoverRuleset returns the ruleset of nft in a text that went through a mail, a page, a log or an editor, as [Read] reads
// rules of iptables: without what stands in front of each line, and with the characters that nft prints. Lines keep their
// numbers, unless the ruleset is in a string with escapes. false: there is no ruleset, or rules of iptables come first.
func UncoverRuleset(text string) (string, bool) {
	uncover := func(text string) (string, bool) {
		return pasted.UncoverLines(text, nftables.Looks, func(line string) bool { return strings.HasSuffix(line, "}") },
			func(line string) bool { _, _, ok := undecorate(line); return ok })
	}
	if !quotedRuleset.MatchString(text) {
		if plain, ok := uncover(text); ok {
			return plain, true
		}
		if !strings.Contains(text, `\n`) {
			return "", false
		}
	}
	inner, ok := pasted.UnquoteStrings(text, func(text string) bool { _, ok := uncover(text); return ok })
	if !ok {
		return "", false
	}
	return uncover(inner)
}

// quotedRuleset is where a string begins with a ruleset: one, or one of a list with its lines.
var quotedRuleset = regexp.MustCompile(`(?m)(^|[\[{,:=])\s*["']table (ip6?|inet|arp|bridge|netdev) `)
