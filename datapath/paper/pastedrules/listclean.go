package pastedrules

import (
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/pasted"
)

// undecorateListing takes off what is around the lines of a listing in mails, pages and logs: prose, fences, and the text
// in front of each line. The lines keep their numbers. The rules that stand below no chain are lost. false: there is no listing.
func undecorateListing(text string) (cleaned string, lost []iptables.Note, found bool) {
	if !strings.Contains(text, "Chain") { // reading a long text of something else takes time
		return "", nil, false
	}
	var b strings.Builder
	number := 0
	var front pasted.Front // of the lines of the chain
	inChain := false
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(pasted.Restore(line))
		if chain, taken, ok := pasted.Undecorate(line, func(rest string, _ pasted.Front) bool { return iptables.IsChainLine(rest) }); ok {
			line, front, found, inChain = chain, taken, true, true
		} else if iptables.IsListCommand(line) {
			inChain = false
		} else if iptables.IsLegacyWarning(iptables.Fields(line)) {
			// it stays, also above the first chain
		} else {
			line = front.TakeOff(line)
			switch content := strings.TrimSpace(line); {
			case iptables.NamesColumns(line):
				inChain = true
			case content == "", strings.HasPrefix(content, "```"), strings.HasPrefix(content, "</"):
				inChain = false
			case found && listedRow.MatchString(line): // some pages have an empty line behind each
				inChain = true
			}
			if !inChain {
				if listedRow.MatchString(line) {
					lost = append(lost, iptables.Note{Line: number, Text: "a rule of iptables -L without the line of its chain is left out: list the chain without grep, or use iptables-save"})
				}
				line = ""
			}
		}
		b.WriteString(line + "\n")
	}
	return b.String(), lost, found
}
