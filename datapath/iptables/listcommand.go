package iptables

import (
	"path"
	"slices"
	"strings"
)

// listCommand is a command line "iptables -t nat -L".
type listCommand struct {
	family Family // FamilyUnknown: this is no command
	line   int
	column int   // of the program's name
	table  Token // behind -t; the zero value: none
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

func isListCommand(words []Token) bool {
	_, ok := parseListCommand(words)
	return ok
}

// parseListCommand finds such a command in a line, whatever stands in front of it: a
// prompt, sudo, kubectl exec.
func parseListCommand(words []Token) (listCommand, bool) {
	i := slices.IndexFunc(words, func(w Token) bool { return listPrograms[program(w)] != FamilyUnknown })
	if i < 0 {
		return listCommand{}, false
	}
	c := listCommand{family: listPrograms[program(words[i])], column: words[i].Column}
	lists := false
	for i++; i < len(words); i++ {
		w := words[i]
		long, value, assigned := strings.Cut(w.Text, "=")
		switch {
		case strings.ContainsAny(w.Text, "|;&>"):
			return c, lists
		case long == "--list":
			lists = true
		case long == "--table" && assigned:
			c.table = Token{Text: value, Column: w.Column + len("--table=")}
		case long == "--table" && i+1 < len(words):
			i++
			c.table = words[i]
		case strings.HasPrefix(w.Text, "--"), !strings.HasPrefix(w.Text, "-"):
		default:
			list, table := cluster(w.Text)
			lists = lists || list
			switch {
			case table == len(w.Text) && i+1 < len(words):
				i++
				c.table = words[i]
			case table > 0:
				c.table = Token{Text: w.Text[table:], Column: w.Column + table}
			}
		}
	}
	return c, lists
}

func program(w Token) string { return path.Base(strings.TrimLeft(w.Text, "#$`")) }

// cluster looks at options in one word: "-nvL", "-tnat". table is where the table's
// name begins, 0: there is none.
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

// isPrompt tells a line of a terminal: "root@node:~# exit", "[root@node ~]$", "$ ls".
func isPrompt(words []Token) bool {
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
