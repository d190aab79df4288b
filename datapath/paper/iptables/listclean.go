package iptables

import (
	"regexp"
	"strings"
)

// undecorateListing takes off what is around the lines of a listing in mails, pages and logs: prose, fences, and the text
// in front of each line. The lines keep their numbers. The rules that stand below no chain are lost. false: there is no listing.
func undecorateListing(text string) (cleaned string, lost lostList, found bool) {
	if !strings.Contains(text, "Chain") { // reading a long text of something else takes time
		return "", lost, false
	}
	var b strings.Builder
	number := 0
	var before []*regexp.Regexp // in front of the lines of the chain
	var names columns
	inChain := false
	for line := range strings.Lines(text) {
		number++
		line = restoreCharacters(line)
		if chain, taken, ok := undecorateChainLine(line); ok {
			line, before, names, found, inChain = chain, taken, columns{}, true, true
		} else if isListCommand(fields(line)) {
			inChain = false
		} else {
			line = withoutDecorations(line, before)
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

// undecorateChainLine finds "Chain NAME (...)", and the decorations in front of it.
func undecorateChainLine(line string) (chain string, taken []*regexp.Regexp, ok bool) {
	if !strings.Contains(line, "Chain") {
		return "", nil, false
	}
	chain = strings.TrimSpace(line)
	for range maxDecorations {
		if isChainLine(fields(chain)) {
			return chain, taken, true
		}
		cut := false
		for _, d := range decorations {
			if found := d.FindString(chain); found != "" {
				chain, cut = strings.TrimSpace(chain[len(found):]), true
				taken = append(taken, d)
				break
			}
		}
		if !cut {
			break
		}
	}
	return "", nil, false
}

func withoutDecorations(line string, before []*regexp.Regexp) string {
	line = strings.TrimSpace(line) + " " // also of a line that is empty without them
	for _, d := range before {
		line = strings.TrimLeft(line[len(d.FindString(line)):], " \t")
	}
	return strings.TrimSpace(line)
}
