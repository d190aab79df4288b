package iptables

import (
	"cmp"
	"slices"
	"strings"
)

// unfold replaces an option in another of getopt's forms by the usual one: --dport=80, -ptcp, and --destination-po, the
// beginning of one option's name only. It reports whether the word is one.
func (a *analysis) unfold(t Token) bool {
	if a.current != nil && a.current.unknown() {
		return false // the word may be the unknown module's
	}
	name, value, assigned := strings.Cut(t.Text, "=")
	switch {
	case strings.HasPrefix(name, "--") && len(name) > 2:
		full := a.complete(name)
		if full == "" || t.Quoted && !assigned {
			return false
		}
		words := []Token{{Text: full, Column: t.Column}}
		if assigned {
			words = append(words, Token{Text: value, Quoted: t.Quoted, Column: t.Column + len(name) + 1})
		}
		a.replace(words)
	case len(t.Text) > 2 && t.Text[0] == '-' && genericShapes[t.Text[:2]].values == 1:
		a.replace([]Token{{Text: t.Text[:2], Column: t.Column}, {Text: t.Text[2:], Quoted: t.Quoted, Column: t.Column + 2}})
	default:
		return false
	}
	return true
}

// replace puts words in the place of the next one. The rule keeps its own words.
func (a *analysis) replace(words []Token) {
	a.args = slices.Concat(a.args[:a.at], words, a.args[a.at+1:])
}

// complete returns the name of the option that begins so: of a loaded module or a generic one.
// Empty: there is none, or there are several.
func (a *analysis) complete(name string) string {
	var loaded []map[string]shape
	for _, s := range slices.Backward(a.sections) {
		loaded = append(loaded, s.shapes())
	}
	loaded = append(loaded, genericShapes)
	type option struct {
		section int
		name    string
	}
	found := make(map[option]bool)
	for i, shapes := range loaded {
		if _, exact := shapes[name]; exact {
			return name
		}
		for long, s := range shapes {
			if strings.HasPrefix(long, name) {
				found[option{i, cmp.Or(s.as, long)}] = true
			}
		}
	}
	if len(found) != 1 {
		return ""
	}
	for only := range found {
		name = only.name
	}
	return name
}

// Separate returns the rules that iptables makes of one with several addresses: "-s 10.0.0.1,10.0.0.2".
func Separate(args []Token) [][]Token {
	rules := [][]Token{args}
	for _, option := range [][]string{{"-s", "--source", "--src"}, {"-d", "--destination", "--dst"}} {
		i := slices.IndexFunc(args, func(t Token) bool { return t.Is(option...) }) + 1
		if i == 0 || i == len(args) || args[i].Quoted || !strings.Contains(args[i].Text, ",") || i > 1 && args[i-2].Is("!") {
			continue
		}
		var each [][]Token
		for _, rule := range rules {
			column := args[i].Column
			for address := range strings.SplitSeq(args[i].Text, ",") {
				one := slices.Clone(rule)
				one[i] = Token{Text: address, Column: column}
				column += len(address) + 1
				each = append(each, one)
			}
		}
		rules = each
	}
	return rules
}

// appendNames are the forms of -A, which may stand behind options of the rule.
var appendNames = []string{"-A", "--append", "--appen", "--appe", "--app", "--ap"}

// cutCommand finds -A, and the words before and behind it, the chain first. Without -A the command is the
// first word.
func cutCommand(words []Token) (command Token, before, behind []Token) {
	for i, t := range words {
		name, chain, joined := strings.Cut(t.Text, "=")
		switch {
		case t.Quoted:
			continue
		case t.Is(appendNames...):
			return Token{Text: "-A", Column: t.Column}, words[:i], words[i+1:]
		case joined && slices.Contains(appendNames[1:], name):
			column := t.Column + len(name) + 1
			return Token{Text: "-A", Column: t.Column}, words[:i], slices.Concat([]Token{{Text: chain, Column: column}}, words[i+1:])
		case i == 0 && strings.HasPrefix(t.Text, "-A"):
			return Token{Text: "-A", Column: t.Column}, nil, slices.Concat([]Token{{Text: t.Text[2:], Column: t.Column + 2}}, words[1:])
		}
	}
	if len(words) == 0 {
		return Token{}, nil, nil
	}
	return words[0], nil, words[1:]
}
