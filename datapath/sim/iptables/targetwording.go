package iptables

import (
	"fmt"
	"strings"
)

// targetPhrases are the texts that targets print (lib*.c, *_print), by the target's name.
var targetPhrases map[string]phrase

func init() {
	targetPhrases = map[string]phrase{
		"DNAT": natPhrase("--to-destination"), "SNAT": natPhrase("--to-source"), "NETMAP": netmapPhrase,
		"MASQUERADE": natPortsPhrase("masq", "ports:"), "REDIRECT": natPortsPhrase("redir", "ports"),
		"REJECT": rejectPhrase, "LOG": logPhrase, "NFLOG": nflogPhrase, "NFQUEUE": nfqueuePhrase,
		"MARK": setMarkPhrase, "CONNMARK": setConnmarkPhrase, "CT": ctPhrase, "CHECKSUM": checksumPhrase,
		"TCPMSS": tcpmssPhrase, "TPROXY": tproxyPhrase, "TOS": tosPhrase, "DSCP": named("DSCP", "set", "--set-dscp"),
		"CLASSIFY": named("CLASSIFY", "set", "--set-class"), "AUDIT": auditPhrase,
		"TTL": setHopPhrase("TTL"), "HL": setHopPhrase("HL"), "TARPIT": tarpitPhrase,
	}
	for name := range targets {
		if targetPhrases[name] == nil { // ACCEPT, DROP, RETURN, NOTRACK, TRACE print nothing
			targetPhrases[name] = func(*wording, bool) bool { return false }
		}
	}
}

// tarpitPhrase reads "-j TARPIT --tarpit" (libxt_TARPIT.c).
func tarpitPhrase(w *wording, _ bool) bool {
	mode := Token{}
	ok := w.word("-j", "TARPIT")
	if ok {
		mode, ok = w.next()
	}
	w.emit(false, mode.Text)
	return ok
}

// named is for a target that prints its name, a word, and a value.
func named(name, word, option string) phrase {
	return func(w *wording, _ bool) bool { return w.word(name, word) && w.value(option) }
}

func natPhrase(option string) phrase {
	return func(w *wording, _ bool) bool {
		to, ok := w.behind("to:")
		w.emit(false, option, to)
		return ok && w.natFlags()
	}
}

func (w *wording) natFlags() bool { return w.options("--", natFlagWords) }

var natFlagWords = map[string]shape{"--random": flag, "--random-fully": flag, "--persistent": flag}

func natPortsPhrase(first, second string) phrase {
	return func(w *wording, _ bool) bool {
		return (!w.word(first, second) || w.value("--to-ports")) && w.natFlags()
	}
}

func netmapPhrase(w *wording, _ bool) bool {
	to, ok := w.behind("to:")
	if !ok { // older ones print the network only
		if to, ok = w.next(); !ok || familyOfAddress(to.Text) == FamilyUnknown {
			return false
		}
	}
	w.emit(false, "--to", to)
	return true
}

func rejectPhrase(w *wording, _ bool) bool { return w.word("reject-with") && w.value("--reject-with") }

// logFlags are the bits of "LOG flags 47", with their names where -n is not given
// (xt_LOG.h).
var logFlags = []struct {
	bit          uint8
	name, option string
}{
	{0x01, "tcp-sequence", "--log-tcp-sequence"}, {0x02, "tcp-options", "--log-tcp-options"},
	{0x04, "ip-options", "--log-ip-options"}, {0x08, "uid", "--log-uid"}, {0x20, "macdecode", "--log-macdecode"},
}

// logPhrase reads "LOG flags 0 level 4 prefix "x"", and "LOG level warn uid".
func logPhrase(w *wording, _ bool) bool {
	if !w.word("LOG") {
		return false
	}
	bits := uint8(0)
	if w.word("flags") {
		t, _ := w.next()
		n, ok := number[uint8](t.Text)
		if !ok {
			return false
		}
		bits = n
	} else {
		w.names = true
	}
	if !w.word("level") || !w.value("--log-level") {
		return false
	}
	for _, f := range logFlags {
		if w.word(f.name) {
			bits |= f.bit
		}
		if bits&f.bit != 0 {
			bits &^= f.bit
			w.emit(false, f.option)
		}
	}
	if bits != 0 {
		return false
	}
	if !w.word("prefix") {
		return true
	}
	// The text is printed unchanged, including quotes: it ends with the line's last quote.
	text := joined(w.words[w.at:])
	if len(text) < 2 || !strings.ContainsRune("\"`", rune(text[0])) || !strings.ContainsRune(`"'`, rune(text[len(text)-1])) {
		return false
	}
	w.logText("--log-prefix", text[1:len(text)-1], len(w.words))
	return true
}

// logText emits a text that ends before a word. column -t reduces its spaces to one, also at the
// ends.
func (w *wording) logText(option, text string, end int) {
	t := Token{Text: text, Quoted: true, Column: w.words[w.at].Column}
	w.emit(false, option)
	w.args = append(w.args, t)
	w.at = end
}

// nflogPhrase reads "nflog-prefix "foo bar" nflog-group 3 nflog-threshold 4".
func nflogPhrase(w *wording, _ bool) bool {
	begin := w.at
	for w.at < len(w.words) {
		if w.word("nflog-prefix") {
			if !w.quotedText("--nflog-prefix") {
				return false
			}
			continue
		}
		option, ok := w.oneOf(map[string]string{
			"nflog-group": "--nflog-group", "nflog-range": "--nflog-range", "nflog-size": "--nflog-size", "nflog-threshold": "--nflog-threshold",
		})
		if !ok || !w.value(option) {
			return false
		}
	}
	return w.at > begin
}

// quotedText reads a text that is quoted as in iptables-save.
func (w *wording) quotedText(option string) bool {
	for end := w.at + 1; end <= len(w.words); end++ {
		words, e := split(joined(w.words[w.at:end]), 1)
		if e == nil {
			if len(words) == 1 {
				w.logText(option, words[0].Text, end)
			}
			return len(words) == 1
		}
	}
	return false
}

func nfqueuePhrase(w *wording, _ bool) bool {
	if !w.word("NFQUEUE") {
		return false
	}
	switch {
	case w.word("num"):
		if !w.value("--queue-num") {
			return false
		}
	case !w.word("balance") || !w.value("--queue-balance"):
		return false
	}
	if w.word("bypass") {
		w.emit(false, "--queue-bypass")
	}
	if w.word("cpu-fanout") {
		w.emit(false, "--queue-cpu-fanout")
	}
	return true
}

// markWords are the words of "MARK or 0x4000". A missing mask is all ones, "--set-xmark 0x1".
var markWords = map[string]string{
	"set": "--set-xmark", "xset": "--set-xmark", "and": "--and-mark", "or": "--or-mark", "xor": "--xor-mark",
}

func setMarkPhrase(w *wording, _ bool) bool {
	if !w.word("MARK") {
		return false
	}
	option, ok := w.oneOf(markWords)
	return ok && w.value(option)
}

// setConnmarkPhrase reads "CONNMARK xset 0x1/0x3" and "CONNMARK restore ctmask 0xff
// nfmask ~0xf", where the "~" has no meaning (libxt_CONNMARK.c).
func setConnmarkPhrase(w *wording, _ bool) bool {
	if !w.word("CONNMARK") {
		return false
	}
	if option, ok := w.oneOf(map[string]string{"save": "--save-mark", "restore": "--restore-mark"}); ok {
		w.emit(false, option)
		for {
			mask, ok := w.oneOf(map[string]string{"mask": "--mask", "nfmask": "--nfmask", "ctmask": "--ctmask"})
			if !ok {
				break
			}
			t, ok := w.next()
			if !ok {
				return false
			}
			t.Text = strings.TrimPrefix(t.Text, "~")
			w.emit(false, mask, t)
		}
	} else if option, ok := w.oneOf(markWords); !ok || !w.value(option) {
		return false
	}
	shift, ok := w.oneOf(map[string]string{"left-shift-mark": "--left-shift-mark", "right-shift-mark": "--right-shift-mark"})
	return !ok || w.value(shift)
}

func ctPhrase(w *wording, _ bool) bool {
	if w.word("NOTRACK") { // "-j NOTRACK" is the target CT, too
		w.args[len(w.args)-1].Text = "NOTRACK"
		return true
	}
	return w.word("CT") && w.at < len(w.words) && w.options("--", ctTarget.shapes)
}

func checksumPhrase(w *wording, _ bool) bool {
	w.emit(false, "--checksum-fill")
	return w.word("CHECKSUM", "fill")
}

func tcpmssPhrase(w *wording, _ bool) bool {
	if w.word("TCPMSS", "clamp", "to", "PMTU") {
		w.emit(false, "--clamp-mss-to-pmtu")
		return true
	}
	return w.word("TCPMSS", "set") && w.value("--set-mss")
}

// tproxyPhrase reads "TPROXY redirect fd00::1:50080 mark 0x1/0x1".
func tproxyPhrase(w *wording, _ bool) bool {
	if !w.word("TPROXY", "redirect") {
		return false
	}
	to, _ := w.next()
	i := strings.LastIndexByte(to.Text, ':')
	if i < 0 {
		return false
	}
	w.emit(false, "--on-port", Token{Text: to.Text[i+1:], Column: to.Column + i + 1})
	w.emit(false, "--on-ip", Token{Text: to.Text[:i], Column: to.Column})
	return w.word("mark") && w.value("--tproxy-mark")
}

// tosNames are the names of types of service (tos_values.c). The six bits of a name
// count.
var tosNames = map[string]uint8{
	"Minimize-Delay": 0x10, "Maximize-Throughput": 0x08, "Maximize-Reliability": 0x04, "Minimize-Cost": 0x02, "Normal-Service": 0,
}

// tosPhrase reads "TOS set 0x10/0x3f", "TOS and 0x08" and "TOS setMinimize-Delay".
func tosPhrase(w *wording, _ bool) bool {
	if !w.word("TOS") {
		return false
	}
	if name, ok := w.behind("set"); ok && name.Text != "" {
		value, known := tosNames[name.Text]
		w.names = true
		w.emit(false, "--set-tos", Token{Text: fmt.Sprintf("0x%02x/0x3f", value), Column: name.Column})
		return known
	} else if ok {
		return w.value("--set-tos")
	}
	operation, _ := w.next()
	t, _ := w.next()
	n, ok := number[uint8](t.Text)
	set := SetTOS{}
	switch operation.Text {
	case "and":
		set.Mask = ^n
	case "or":
		set = SetTOS{n, n}
	case "xor":
		set.Value = n
	default:
		return false
	}
	w.emit(false, "--set-tos", Token{Text: fmt.Sprintf("0x%02x/0x%02x", set.Value, set.Mask), Column: t.Column})
	return ok
}

func auditPhrase(w *wording, _ bool) bool { return w.word("AUDIT") && w.value("--type") }
