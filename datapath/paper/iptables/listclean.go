package iptables

import (
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/pasted"
)

// undecorateListing takes off what is around the lines of a listing in mails, pages and logs: prose, fences, and the text
// in front of each line. The lines keep their numbers. The rules that stand below no chain are lost. false: there is no listing.
func undecorateListing(text string) (cleaned string, lost lostList, found bool) {
	if !strings.Contains(text, "Chain") { // reading a long text of something else takes time
		return "", lost, false
	}
	var b strings.Builder
	number := 0
	var front pasted.Front // of the lines of the chain
	var names columns
	inChain := false
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(pasted.Restore(line))
		if chain, taken, ok := pasted.Undecorate(line, func(rest string, _ pasted.Front) bool { return isChainLine(fields(rest)) }); ok {
			line, front, names, found, inChain = chain, taken, columns{}, true, true
		} else if isListCommand(fields(line)) {
			inChain = false
		} else {
			line = front.TakeOff(line)
			words := fields(line)
			if c, ok := parseColumns(words); ok {
				names, inChain = c, true
			} else if len(words) == 0 || strings.HasPrefix(words[0].Text, "```") || strings.HasPrefix(words[0].Text, "</") {
				inChain = false
			} else if _, fault := names.row(words); fault == nil && found {
				inChain = true // some pages have an empty line behind each
			}
			if !inChain {
				if listedRow.MatchString(line) {
					lost.add(number, "a rule of iptables -L without the line of its chain is left out: list the chain without grep, or use iptables-save")
				}
				line = ""
			}
		}
		b.WriteString(line + "\n")
	}
	return b.String(), lost, found
}
