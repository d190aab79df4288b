package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// wording turns a row of a listing into the words of iptables-save, which keep the columns of
// their sources.
type wording struct {
	family Family
	row    *row
	words  []Token // what follows the destination
	at     int
	args   []Token
	// later are words of unknown matches, to be added after the current match.
	later      []Token
	jumpOption string // -j or -g
	// jumped is set when the target was emitted by its text.
	jumped bool
	// unprinted is the target if its text is not printed; else nil.
	unprinted *UnknownTarget
	// names is set if there were names in place of -n's numbers.
	names bool
	// notes are the missing information of this rule's text, by kind.
	notes map[string]string
	err   *Error
}

// phrase reads the text that a module prints; the first word, and a "!" in front of it, have been
// read. It returns false if it does not recognize the words: then its effect is undone.
type phrase func(w *wording, negated bool) bool

// translate returns the arguments of the rule.
func (w *wording) translate() ([]Token, *Error) {
	w.words, w.notes = w.row.rest, make(map[string]string)
	w.jumpOption = "-j"
	if w.word("[goto]") {
		w.jumpOption = "-g"
	}
	w.generic()
	w.flush()
	for w.at < len(w.words) {
		if !w.match() && !w.target() {
			w.unknown()
		}
		w.flush()
	}
	if !w.jumped {
		w.jump()
	}
	return w.args, w.err
}

// generic reads the columns.
func (w *wording) generic() {
	w.address("-s", w.row.source)
	w.address("-d", w.row.destination)
	w.device("-i", w.row.in)
	w.device("-o", w.row.out)
	negated, protocol := cutNot(w.row.protocol)
	if n, _ := ParseProtocol(protocol.Text); n != 0 || negated {
		w.emit(negated, "-p", protocol)
	}
	if f := w.row.fragment; f.Text != "" {
		w.emit(f.Text == "!f", "-f", Token{Column: f.Column})
	}
}

// cutNot removes a leading "!".
func cutNot(t Token) (bool, Token) {
	if text, negated := strings.CutPrefix(t.Text, "!"); negated {
		return true, Token{Text: text, Column: t.Column + 1}
	}
	return false, t
}

func (w *wording) device(option string, name Token) {
	negated, name := cutNot(name)
	switch name.Text {
	case "any":
		w.names = true
	case "", "*":
	default:
		w.emit(negated, option, name)
	}
}

// address reads a column with an address, or with a name if -n was not given.
func (w *wording) address(option string, text Token) {
	negated, text := cutNot(text)
	host, mask, masked := strings.Cut(text.Text, "/")
	unspecified := "0.0.0.0"
	if w.family == IPv6 {
		unspecified = "::"
	}
	switch {
	case host == "anywhere":
		w.names = true
		if !masked {
			mask, masked = "0", true
		}
		host = unspecified
	case knownHosts[host] != "":
		w.names = true
		host = knownHosts[host]
		if w.family == IPv6 && host == "127.0.0.1" {
			host = "::1"
		}
	default:
		if _, err := netip.ParseAddr(host); err != nil && !looksNumeric(host) {
			w.names = true
			w.notes["hosts"] = fmt.Sprintf("host names like %s are listed instead of addresses: a rule with one cannot be evaluated", host)
			column := map[string]string{"-s": "source", "-d": "destination"}[option]
			w.unknownName("host name "+host, negated, Token{Text: column, Column: text.Column})
			return
		}
	}
	if masked {
		host += "/" + mask
	}
	if !negated && host == unspecified+"/0" {
		return
	}
	w.emit(negated, option, Token{Text: host, Column: text.Column})
}

// looksNumeric reports whether a text was meant to be an address.
func looksNumeric(text string) bool {
	return strings.Contains(text, ":") || strings.Trim(text, "0123456789.") == ""
}

// match reads one match at the beginning of the words.
func (w *wording) match() bool {
	return w.try(func() bool {
		negated := w.word("!")
		first, ok := w.next()
		if !ok {
			return false
		}
		// The kernel's module is newer than iptables.
		if first.Text != w.row.target.Text && w.word("[unsupported", "revision]") {
			w.unknownName(first.Text+" [unsupported revision]", negated, Token{Text: "match", Column: first.Column})
			return true
		}
		p, known := matchPhrases[first.Text]
		return known && p(w, negated)
	})
}

// target reads the text of the target, which is the last of a row.
func (w *wording) target() bool {
	if w.try(w.untoldTarget) {
		return true
	}
	name := w.row.target.Text
	t := targets[name]
	if t == nil {
		return w.unknownTarget()
	}
	p := t.phrases[name]
	return p != nil && w.try(func() bool {
		w.jump()
		return p(w, false) && w.at == len(w.words)
	})
}

// untoldTarget reads "DNAT [unsupported revision]", of a kernel that is newer than
// iptables, and "[40 bytes of unknown target data]", where iptables lacks the module.
func (w *wording) untoldTarget() bool {
	begin, name := w.at, w.row.target.Text
	if name == "" {
		return false
	}
	if !w.word(name, "[unsupported", "revision]") {
		if _, ok := w.next(); !ok || !w.word("bytes", "of", "unknown", "target", "data]") {
			return false
		}
	}
	w.unprinted, w.jumped = &UnknownTarget{Target: name, Args: []Token{Text(joined(w.words[begin:w.at]))}}, true
	return w.at == len(w.words)
}

// unknownTarget reads the text of an unknown target: it begins with the target's name, "TTL set to
// 64".
func (w *wording) unknownTarget() bool {
	if !isOtherTarget(w.row.target.Text) || w.words[w.at].Text != w.row.target.Text {
		return false
	}
	// A match of the same name comes first: "TTL match TTL < 5 TTL set to 64".
	for _, t := range w.words[w.at+1:] {
		if t.Text == w.row.target.Text {
			return false
		}
	}
	w.jump()
	w.args = append(w.args, unoptioned(w.words[w.at:])...)
	w.at = len(w.words)
	return true
}

// jump emits -j with the target, if there is one.
func (w *wording) jump() {
	w.jumped = true
	if t := w.row.target; t.Text != "" {
		w.args = append(w.args, Token{Text: w.jumpOption, Column: t.Column}, t)
	}
}

// unknown reads words of unknown modules, up to known ones. It does not parse text in quotes.
func (w *wording) unknown() {
	begin := w.at
	quoted := false
	for w.at < len(w.words) {
		text := w.words[w.at].Text
		if w.at > begin && !quoted && w.resumes() {
			break
		}
		if strings.Count(text, `"`)%2 == 1 {
			quoted = !quoted
		}
		w.at++
	}
	first := w.words[begin]
	if _, known := modules[first.Text]; known {
		w.fail(first, fmt.Sprintf("%.60q is not how iptables lists its module %s", joined(w.words[begin:w.at]), first.Text),
			`the whole line as it was printed, or "#" in front of it`)
		return
	}
	w.later = append(w.later, Token{Text: "-m", Column: first.Column}, first)
	w.later = append(w.later, unoptioned(w.words[begin+1:w.at])...)
}

// resumes reports whether known words begin here.
func (w *wording) resumes() bool {
	before := *w
	found := w.match() && w.at > before.at+1 || w.target()
	*w = before
	return found
}

// unknownName keeps a name that this package cannot turn into a number.
func (w *wording) unknownName(name string, negated bool, about Token) {
	w.later = append(w.later, Token{Text: "-m", Column: about.Column}, Token{Text: name, Quoted: true, Column: about.Column})
	if negated {
		w.later = append(w.later, Word("!"))
	}
	w.later = append(w.later, about)
}

// flush adds the unknown matches after the others. They come last because iptables-save would read
// the following words as theirs.
func (w *wording) flush() {
	w.args = append(w.args, w.later...)
	w.later = w.later[:0]
}

// unoptioned returns text in quotes as one word, and quotes words that look like options.
func unoptioned(words []Token) []Token {
	if len(words) == 0 {
		return nil
	}
	kept, e := Split(joined(words))
	if e != nil {
		kept = slices.Clone(words)
	}
	for i, t := range kept {
		kept[i].Column = words[0].Column
		kept[i].Quoted = t.Quoted || strings.HasPrefix(t.Text, "-") || t.Text == "!"
	}
	return kept
}

func (w *wording) fail(t Token, problem, want string) {
	if w.err == nil {
		w.err = &Error{Column: t.Column, Problem: problem, Want: want}
	}
}

// try undoes the effect of f if it returns false.
func (w *wording) try(f func() bool) bool {
	before := *w
	if f() {
		return true
	}
	*w = before
	return false
}

// word reads these words, or none.
func (w *wording) word(texts ...string) bool {
	if len(w.words)-w.at < len(texts) {
		return false
	}
	for i, text := range texts {
		if w.words[w.at+i].Text != text {
			return false
		}
	}
	w.at += len(texts)
	return true
}

// next reads any word.
func (w *wording) next() (Token, bool) {
	if w.at == len(w.words) {
		return Token{}, false
	}
	w.at++
	return w.words[w.at-1], true
}

// peek is the next word's text; empty at the end.
func (w *wording) peek() string {
	if w.at == len(w.words) {
		return ""
	}
	return w.words[w.at].Text
}

// behind reads a word with a prefix and returns the rest.
func (w *wording) behind(prefix string) (Token, bool) {
	text, ok := strings.CutPrefix(w.peek(), prefix)
	if !ok {
		return Token{}, false
	}
	t, _ := w.next()
	return Token{Text: text, Column: t.Column + len(prefix)}, true
}

// negatable reads "value", "!value" and "! value".
func (w *wording) negatable() (negated bool, value Token, ok bool) {
	negated = w.word("!")
	t, ok := w.next()
	if !ok || negated {
		return negated, t, ok
	}
	negated, t = cutNot(t)
	return negated, t, true
}

// load emits -m.
func (w *wording) load(module string) {
	column := w.words[w.at-1].Column
	w.args = append(w.args, Token{Text: "-m", Column: column}, Token{Text: module, Column: column})
}

// emit adds an option with its values. A value without text is only a placeholder.
func (w *wording) emit(negated bool, option string, values ...Token) {
	column := 0
	switch {
	case len(values) > 0:
		column = values[0].Column
	case w.at > 0:
		column = w.words[w.at-1].Column
	}
	if negated {
		w.args = append(w.args, Token{Text: "!", Column: column})
	}
	w.args = append(w.args, Token{Text: option, Column: column})
	for _, v := range values {
		if v.Text != "" {
			w.args = append(w.args, v)
		}
	}
}

// value emits an option whose value is the next word.
func (w *wording) value(option string) bool {
	t, ok := w.next()
	if ok {
		w.emit(false, option, t)
	}
	return ok
}

// notValue is like value, with an optional "!" in front.
func (w *wording) notValue(option string) bool {
	negated, t, ok := w.negatable()
	if ok {
		w.emit(negated, option, t)
	}
	return ok
}

// oneOf reads one of some words, each with an option.
func (w *wording) oneOf(options map[string]string) (string, bool) {
	option, ok := options[w.peek()]
	if ok {
		w.at++
	}
	return option, ok
}

// options reads a module's options with another prefix.
func (w *wording) options(prefix string, shapes map[string]shape) bool {
	for {
		at := w.at
		negated := w.word("!")
		t, _ := w.next()
		shape, ok := shapes[prefix+t.Text]
		if !ok || negated && !shape.negatable {
			w.at = at
			return true
		}
		if shape.values == 0 {
			w.emit(negated, prefix+t.Text)
			continue
		}
		v, ok := w.next()
		w.emit(negated, prefix+t.Text, v)
		if !ok || shape.values > 1 {
			return false
		}
	}
}

// listed reads a module's options where it prints other words for them: each entry has these words, and the option.
func (w *wording) listed(shapes map[string]shape, entries [][2]string) bool {
	for {
		i := slices.IndexFunc(entries, func(e [2]string) bool { return w.word(strings.Fields(e[0])...) })
		if i < 0 {
			return true
		}
		option, ok := entries[i][1], true
		switch s := shapes[option]; {
		case s.values == 0:
			w.emit(false, option)
		case s.negatable:
			ok = w.notValue(option)
		default:
			ok = w.value(option)
		}
		if !ok {
			return false
		}
	}
}

// flagsPhrase is for a module that prints its flags, perhaps without dashes.
func flagsPhrase(module, prefix string) phrase {
	return func(w *wording, negated bool) bool {
		w.load(module)
		return !negated && w.options(prefix, modules[module].shapes)
	}
}

// valuePhrase is for a module that prints some words and the value of its only option.
func valuePhrase(module, option string, words ...string) phrase {
	return func(w *wording, negated bool) bool {
		w.load(module)
		return !negated && w.word(words...) && w.notValue(option)
	}
}

// targetPhrase is for a target that prints some words and the value of an option.
func targetPhrase(option string, words ...string) phrase {
	return func(w *wording, _ bool) bool { return w.word(words...) && w.value(option) }
}

func firstBehind(w *wording, prefixes ...string) (Token, bool) {
	for _, p := range prefixes {
		if t, ok := w.behind(p); ok {
			return t, true
		}
	}
	return Token{}, false
}
