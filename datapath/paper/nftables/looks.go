package nftables

import (
	"regexp"
	"strings"
)

var (
	// listed is the first line of a ruleset: of a listing, of JSON, or of a file that was written by hand.
	listed = regexp.MustCompile(`^[ \t]*(?:(?:add|create)[ \t]+)?table[ \t]+(?:(?:ip|ip6|inet|arp|bridge|netdev)[ \t]+)?[^ \t\n]+[ \t]*(?:\{|$)|` +
		`^[ \t]*add[ \t]+(?:table|chain|rule)[ \t]|^[ \t]*\{[ \t\n]*"nftables"|^[ \t]*flush[ \t]+ruleset|^[ \t]*(?:define|include)[ \t]`)
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
		case listed.MatchString(plain), strings.HasPrefix(strings.TrimSpace(text[at:]), "{") && strings.Contains(text[at:], `"nftables"`):
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
	before := strings.Split(text[:at], "\n")
	for i, line := range before {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") { // a comment stays: nft has warnings in some
			before[i] = ""
		}
	}
	rest := text[at:]
	for _, end := range []string{"\n```", "\n$ ", "\n# exit", "\nroot@"} {
		rest, _, _ = strings.Cut(rest, end)
	}
	return strings.Join(before, "\n") + rest
}
