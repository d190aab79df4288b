package iptables

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// listCommand is a command line "iptables -t nat -L".
type listCommand struct {
	family Family // FamilyUnknown: this is no command
	line   int
	column int   // of the program's name
	table  Token // behind -t; the zero value: none
	part   bool  // only some of its lines are printed, as by "| head"
}

// tableName is the table that the command lists; empty if this is no command.
func (c listCommand) tableName() string {
	switch {
	case c.family == FamilyUnknown:
		return ""
	case c.table.Text == "":
		return "filter"
	}
	return c.table.Text
}

// listPrograms are the programs that list rules.
var listPrograms = map[string]Family{
	"iptables": IPv4, "iptables-legacy": IPv4, "iptables-nft": IPv4,
	"ip6tables": IPv6, "ip6tables-legacy": IPv6, "ip6tables-nft": IPv6,
}

// IsListCommand reports whether a line runs iptables -L, after any text.
func IsListCommand(line string) bool { return isListCommand(Fields(line)) }

func isListCommand(words []Token) bool {
	_, ok := parseListCommand(words)
	return ok
}

// parseListCommand finds the first such command of a line, after any text: a prompt, sudo, kubectl
// exec.
func parseListCommand(words []Token) (listCommand, bool) {
	found := slices.IndexFunc(words, func(w Token) bool { return listPrograms[program(w)] != FamilyUnknown })
	if found < 0 {
		return listCommand{}, false
	}
	c := listCommand{family: listPrograms[program(words[found])], column: words[found].Column}
	words = words[found+1:]
	_, piped, _ := strings.Cut(joined(words), "|")
	c.part = Selects(piped)
	lists, ended := false, false
	take := func() Token {
		w := words[0]
		words = words[1:]
		if i := strings.IndexAny(w.Text, "|;&>"); i >= 0 {
			w.Text, ended = w.Text[:i], true
		}
		return w
	}
	for len(words) > 0 && !ended {
		w := take()
		long, value, assigned := strings.Cut(w.Text, "=")
		valueAt := len(long) + 1
		switch {
		case long == "--list":
			lists = true
		case long == "--table":
		case strings.HasPrefix(w.Text, "-") && !strings.HasPrefix(w.Text, "--"):
			list, at := cluster(w.Text)
			lists = lists || list
			if at == 0 {
				continue
			}
			value, assigned, valueAt = w.Text[at:], at < len(w.Text), at
		default:
			continue
		}
		switch {
		case long == "--list":
		case assigned:
			c.table = Token{Text: value, Column: w.Column + valueAt}
		case len(words) > 0 && !ended:
			c.table = take()
		}
	}
	if !lists {
		return parseListCommand(words)
	}
	return c, true
}

// selectors are programs that print a part of their input.
var selectors = regexp.MustCompile(`grep|head|tail|sed|awk`)

// Selects reports whether commands behind a pipe print only a part of their input.
func Selects(commands string) bool { return selectors.MatchString(commands) }

func program(w Token) string { return path.Base(strings.TrimLeft(w.Text, "#$`")) }

// cluster parses options in one word: "-nvL", "-tnat". table is the beginning of the table's name,
// 0: there is none.
func cluster(text string) (list bool, table int) {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case 'L': // its value, the chain, may follow
			return true, 0
		case 't':
			return false, i + 1
		}
	}
	return false, 0
}

// isPrompt recognizes a prompt of a terminal: "root@node:~# exit", "[root@node ~]$", "$ ls", "/ # exit" of busybox,
// "[sudo] password for me:".
func isPrompt(words []Token) bool {
	if words[0].Text == "[sudo]" || len(words) > 1 && strings.ContainsAny(words[0].Text[:1], "/~") && words[1].Text == "#" {
		return true
	}
	for i, w := range words {
		// Only the prompts in brackets have a second word.
		if i > 0 && !strings.HasPrefix(words[0].Text, "[") || i > 1 {
			break
		}
		if strings.HasSuffix(w.Text, "#") || strings.HasSuffix(w.Text, "$") || w.Text == ">" || w.Text == "%" {
			return true
		}
	}
	return false
}
