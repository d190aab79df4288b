package iptables

import (
	"regexp"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

// UncoverRuleset returns the ruleset of nft in a text that went through a mail, a page, a log or an editor, as [ReadInput] reads
// rules of iptables: without what stands in front of each line, and with the characters that nft prints. Lines keep their
// numbers, unless the ruleset is in a string with escapes. false: there is no ruleset, or rules of iptables come first.
func UncoverRuleset(text string) (string, bool) {
	text = decoded(text)
	uncover := func(text string) (string, bool) {
		return uncoverLines(text, nftables.Looks, func(line string) bool { return strings.HasSuffix(line, "}") },
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
	inner, ok := unquoteStrings(text, func(text string) bool { _, ok := uncover(text); return ok })
	if !ok {
		return "", false
	}
	return uncover(inner)
}

// quotedRuleset is where a string begins with a ruleset: one, or one of a list with its lines.
var quotedRuleset = regexp.MustCompile(`(?m)(^|[\[{,:=])\s*["']table (ip6?|inet|arp|bridge|netdev) `)

// Uncover returns the output of another program, of which content tells lines, in the same way: from its first line to its last,
// and the lines between them that are none. Lines keep their numbers. Where there are none, the text stays.
func Uncover(text string, content func(line string) bool) string {
	text = decoded(text)
	if plain, ok := uncoverLines(text, content, func(line string) bool { return content(line) || elision.MatchString(line) }, nil); ok {
		return plain
	}
	return text
}

// decoded is a text in UTF-8, without a byte order mark.
func decoded(text string) string {
	if order := utf16Order(text); order != nil {
		text = fromUTF16(text, order)
	}
	return strings.TrimPrefix(text, "\xef\xbb\xbf")
}

// uncoverLines keeps the lines from the first that begins a text to the last that may end it. There is none behind a line that stops
// the search.
func uncoverLines(text string, begins, ends, stops func(line string) bool) (string, bool) {
	lines := strings.Split(text, "\n")
	first, front := -1, []int(nil)
	for i, line := range lines {
		line = strings.TrimSpace(restoreCharacters(line))
		if found, ok := inFront(line, begins); ok {
			first, front = i, found
			break
		}
		if stops != nil && stops(line) {
			return "", false
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
		} else if ends(trimmed) {
			last = i
		}
		lines[i] = line
	}
	return strings.Join(lines[:last+1], "\n") + "\n", true
}

// inFront are the decorations in front of the first line of a text. false: the line is not.
func inFront(line string, begins func(line string) bool) (found []int, ok bool) {
	for range maxDecorations {
		if begins(line) {
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
		rest = strings.TrimLeft(rest, " \t")
		at := decorations[i].FindString(rest)
		if at == "" {
			return line
		}
		rest = rest[len(at):]
	}
	return rest
}

// pagerLine reports whether a line is of more or less.
func pagerLine(line string) bool {
	return strings.HasPrefix(line, "--More--") || line == "(END)" || line == ":"
}
