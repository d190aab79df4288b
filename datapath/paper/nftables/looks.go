package nftables

import (
	"regexp"
	"strings"
)

var (
	jsonStart = regexp.MustCompile(`^\s*\{\s*"nftables"\s*:`)
	// textStart is the first line of a listing or of a file of commands, which no output of iptables begins with.
	textStart = regexp.MustCompile(`^\s*(table\s+((ip|ip6|inet|arp|bridge|netdev)\s+)?[\w./-]+\s*(\{|$)|(add|create|delete|destroy|flush|insert|replace|list|reset|rename)\s+(table|chain|rule|set|map|element|ruleset|flowtable|counter|quota|limit|ct)\b|define\s+\w+\s*=|include\s+")`)
	// foreign is a line of iptables' output.
	foreign = regexp.MustCompile(`^(?:\*[a-z]+$|:[^ ]+ |-[AINP] |Chain |\[[0-9]+:[0-9]+\] -A)`)
)

// Looks reports whether a text, or its beginning, is a ruleset of nftables, perhaps below other lines such as a prompt.
func Looks(text string) bool { return firstLine(text) >= 0 }

// firstLine is where the first line of a ruleset begins; -1: there is none, or rules of iptables come first.
func firstLine(text string) int {
	at := 0
	for line := range strings.Lines(text) {
		switch plain := strings.TrimRight(line, "\r\n"); {
		case textStart.MatchString(plain), jsonStart.MatchString(text[at:]):
			return at
		case foreign.MatchString(plain):
			return -1
		}
		at += len(line)
	}
	return -1
}

// Excerpt is the ruleset in a text: without lines around it such as a prompt, or a fence of Markdown. Lines keep their numbers.
func Excerpt(text string) string {
	at := firstLine(text)
	if at < 0 {
		return text
	}
	rest := text[at:]
	if end := outside.FindStringIndex(rest); end != nil {
		rest = rest[:end[0]] + inside(rest[end[0]:])
	}
	before := strings.Split(text[:at], "\n")
	changed := false
	for i, line := range before {
		if line != "" && !strings.HasPrefix(strings.TrimSpace(line), "#") { // a comment stays: nft has warnings in some
			before[i], changed = "", true
		}
	}
	if !changed { // no copy of what may be large
		return text[:at+len(rest)]
	}
	return strings.Join(before, "\n") + rest
}

// outside is a line that ends the output of a command: a fence, or a prompt.
var outside = regexp.MustCompile("(?m)^(```|~~~|\\$( |$)|# exit|root@|\\[[^\\]\n]*\\][#$]|[\\w.-]+@[\\w.-]+:[^\\n]*[#$])")

// inside leaves out the lines from such a line to the first one of the next output, and those behind the last.
func inside(text string) string {
	lines := strings.Split(text, "\n")
	out := false
	for i, line := range lines {
		if out = (out || outside.MatchString(line)) && !textStart.MatchString(line); out {
			lines[i] = ""
		}
	}
	return strings.Join(lines, "\n")
}

// unwrapped puts the rests of lines that a mail program wrapped back: in a block that is indented, they stand at the beginning of a
// line, as nothing that nft prints there. Lines keep their numbers.
func unwrapped(text string) string {
	if !wrapped.MatchString(text) {
		return text
	}
	lines := strings.Split(text, "\n")
	var blocks []bool // whether those that are open begin with an indented line
	last := 0
	for i, line := range lines {
		trimmed := strings.TrimSpace(line)
		indented := trimmed != "" && !strings.HasPrefix(line, trimmed[:1])
		switch {
		case trimmed == "":
			continue
		case trimmed[0] == '}':
			blocks = blocks[:max(len(blocks)-1, 0)]
		case !indented && trimmed[0] != '#' && len(blocks) > 0 && blocks[len(blocks)-1]:
			if strings.HasSuffix(lines[last], "{") {
				blocks = blocks[:len(blocks)-1]
			}
			lines[last], lines[i], indented = strings.TrimRight(lines[last], " \t\r")+" "+trimmed, "", true
			if strings.HasSuffix(trimmed, "{") {
				blocks = append(blocks, true)
			}
			continue
		}
		if last = i; strings.HasSuffix(trimmed, "{") {
			blocks = append(blocks, indented)
		}
	}
	return strings.Join(lines, "\n")
}

// wrapped is where a line may be the rest of an indented one.
var wrapped = regexp.MustCompile(`\n[ \t][^\n]*\n[^\s}#]`)
