package iptables

import (
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

// UncoverRuleset returns the ruleset of nft in a text that went through a mail, a page, a log or an editor, as [ReadInput] reads
// rules of iptables: without what stands in front of each line, and with the characters that nft prints. Lines keep their
// numbers, unless the ruleset is in a string with escapes. false: there is no ruleset, or rules of iptables come first.
func UncoverRuleset(text string) (string, bool) {
	if order := utf16Order(text); order != nil {
		text = fromUTF16(text, order)
	}
	text = strings.TrimPrefix(text, "\xef\xbb\xbf")
	if plain, ok := uncoverLines(text); ok {
		return plain, true
	}
	if !strings.Contains(text, `\n`) {
		return "", false
	}
	inner, ok := unquoteStrings(text, func(text string) bool { _, ok := uncoverLines(text); return ok })
	if !ok {
		return "", false
	}
	return uncoverLines(inner)
}

func uncoverLines(text string) (string, bool) {
	lines := strings.Split(text, "\n")
	first, front := -1, []int(nil)
	for i, line := range lines {
		line = strings.TrimSpace(restoreCharacters(line))
		if _, _, ok := undecorate(line); ok {
			return "", false
		}
		if found, ok := inFront(line); ok {
			first, front = i, found
			break
		}
	}
	if first < 0 {
		return "", false
	}
	last := 0
	for i, line := range lines {
		if i < first {
			lines[i] = ""
			continue
		}
		line = restoreCharacters(line)
		if len(front) > 0 {
			line = takeOff(strings.TrimSpace(line)+" ", front) // an empty line has its number, too
		}
		if trimmed := strings.TrimSpace(line); pagerLine(trimmed) || fence.MatchString(trimmed) {
			line = ""
		} else if strings.HasSuffix(trimmed, "}") {
			last = i
		}
		lines[i] = line
	}
	return strings.Join(lines[:last+1], "\n") + "\n", true
}

// inFront are the decorations in front of the first line of a ruleset. false: the line is none.
func inFront(line string) (found []int, ok bool) {
	for range maxDecorations {
		if nftables.Looks(line) {
			return found, true
		}
		cut := false
		for i, d := range decorations {
			if at := d.FindString(line); at != "" {
				line, found, cut = strings.TrimLeft(line[len(at):], " \t"), append(found, i), true
				break
			}
		}
		if !cut {
			break
		}
	}
	return nil, false
}

// takeOff takes decorations off the beginning of a line. A line without them stays.
func takeOff(line string, front []int) string {
	rest := line
	for _, i := range front {
		at := decorations[i].FindString(rest)
		if at == "" {
			return line
		}
		rest = strings.TrimLeft(rest[len(at):], " \t")
	}
	return rest
}

// pagerLine reports whether a line is of more or less.
func pagerLine(line string) bool {
	return strings.HasPrefix(line, "--More--") || line == "(END)" || line == ":"
}
