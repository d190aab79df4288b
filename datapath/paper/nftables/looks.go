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
	for _, end := range []string{"\n```", "\n$ ", "\n# exit", "\nroot@"} {
		rest, _, _ = strings.Cut(rest, end)
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
