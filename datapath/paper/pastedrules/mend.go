package pastedrules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/pasted"
)

// maxMended is how many options of a rule may be unreadable before all of it is.
const maxMended = 32

// mend sets the matches and the target of a rule, also if some of its options cannot be read or are masked: those become
// an [UnknownMatch], or an [UnknownTarget]. The error is the first fault; lostOptions name matches and targets that were
// printed without their options.
func mend(r *iptables.Rule, family iptables.Family, table string, declared map[string]bool) (lostOptions []string, first *iptables.Error) {
	original := r.Args()
	args := joinTexts(original)
	var lost []iptables.Token
	var unknown *iptables.UnknownTarget
	fault := func(at int, e *iptables.Error) {
		if first == nil {
			first = e
		}
		if jump := jumpIndex(args); jump >= 0 && at >= jump {
			name, rest := iptables.Unreadable, args[jump+1:]
			if len(rest) > 0 {
				name, rest = rest[0].Text, rest[1:]
			}
			unknown = &iptables.UnknownTarget{Target: name, Args: slices.Clone(rest)}
			args = args[:jump]
			return
		}
		begin, end := optionAround(args, at)
		lost = append(lost, args[begin:end]...)
		args = slices.Delete(args, begin, end)
	}
	for at := maskedAt(args); at >= 0; at = maskedAt(args) {
		fault(at, &iptables.Error{Column: args[at].Column, Problem: fmt.Sprintf("%.40q is masked", args[at].Text)})
	}
	for range maxMended {
		r.Matches, r.Target = nil, nil
		options, e := r.Interpret(args, family, table, declared)
		if e == nil {
			lostOptions = options
			break
		}
		at := slices.IndexFunc(args, func(t iptables.Token) bool { return t.Column == e.Column })
		if at < 0 {
			at = len(args) - 1
		}
		if len(args) == 0 {
			break
		}
		fault(at, e)
		r.Matches, r.Target = nil, nil
	}
	if unknown != nil {
		r.Target = *unknown
	}
	if r.Matches == nil && r.Target == nil && first != nil { // nothing of it can be read
		lost = original
		if jump := jumpIndex(original); jump >= 0 && jump+1 < len(original) {
			r.Target = iptables.UnknownTarget{Target: original[jump+1].Text}
		}
	}
	if len(lost) > 0 {
		r.Matches = append(r.Matches, iptables.UnknownMatch{Match: iptables.Unreadable, Args: lost})
	}
	return lostOptions, first
}

// joinTexts makes one word of each comment or other text that lost its quotes, as in a shell. It ends at the next option.
func joinTexts(args []iptables.Token) (joined []iptables.Token) {
	joined = make([]iptables.Token, 0, len(args))
	for i, t := range args {
		n := len(joined)
		if n > 1 && freeText[joined[n-2].Text] && i > 0 && !args[i-1].Quoted && !t.Is("!") && (t.Is("->") || !looksLikeOption(t)) {
			joined[n-1].Text += " " + t.Text
			continue
		}
		joined = append(joined, t)
	}
	return joined
}

func jumpIndex(args []iptables.Token) int {
	return slices.IndexFunc(args, func(t iptables.Token) bool { return t.Is("-j", "--jump", "-g", "--goto") })
}

// optionAround is the option with its values, and a "!", that a word belongs to.
func optionAround(args []iptables.Token, at int) (begin, end int) {
	begin, end = at, at+1
	for begin > 0 && !looksLikeOption(args[begin]) {
		begin--
	}
	for end < len(args) && !looksLikeOption(args[end]) && !args[end].Is("!") {
		end++
	}
	if begin > 0 && args[begin-1].Is("!") {
		begin--
	}
	return begin, end
}

func looksLikeOption(t iptables.Token) bool {
	return !t.Quoted && len(t.Text) > 1 && t.Text[0] == '-' && (t.Text[1] < '0' || t.Text[1] > '9')
}

// freeText are options whose value is any text.
var freeText = map[string]bool{"--comment": true, "--log-prefix": true, "--nflog-prefix": true, "--string": true, "--hex-string": true}

// maskedAt is the first word that is masked; -1: none is.
func maskedAt(args []iptables.Token) int {
	for i, t := range args {
		if i > 0 && freeText[args[i-1].Text] || looksLikeOption(t) {
			continue
		}
		if pasted.IsMask(t.Text) {
			return i
		}
	}
	return -1
}

// isMaskedChain reports whether the name of a chain is masked, so that it may stand for several.
func isMaskedChain(name string) bool {
	return strings.ContainsAny(name, "<>") || pasted.IsMask(name)
}

// effectOf says what an unreadable rule may change.
func effectOf(r *iptables.Rule, table string) string {
	what := "whether it matches is not known"
	if t, ok := r.Target.(iptables.UnknownTarget); ok {
		what = "what it does (" + t.Target + ") is not known"
	}
	return fmt.Sprintf("the rule of chain %s of table %s is kept, but %s", r.Chain, table, what)
}
