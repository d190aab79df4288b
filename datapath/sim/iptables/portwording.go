package iptables

import "strings"

// transport reads "tcp spt:1 dpts:!2:3 option=5 flags:!0x17/0x02" and the like.
func transport(module string) phrase {
	return func(w *wording, negated bool) bool {
		w.load(module)
		for {
			if t, ok := firstBehind(w, "spts:", "spt:"); ok {
				w.ports("--sport", t)
			} else if t, ok := firstBehind(w, "dpts:", "dpt:"); ok {
				w.ports("--dport", t)
			} else if t, ok := w.behind("option="); ok {
				not, number := cutNot(t)
				w.emit(not, "--tcp-option", number)
			} else if !w.try(w.tcpFlags) && (module != "sctp" || !w.try(w.chunks)) {
				return !negated
			}
		}
	}
}

func firstBehind(w *wording, prefixes ...string) (Token, bool) {
	for _, p := range prefixes {
		if t, ok := w.behind(p); ok {
			return t, true
		}
	}
	return Token{}, false
}

// ports emits a test of ports, which may be names.
func (w *wording) ports(option string, t Token) {
	negated, t := cutNot(t)
	if numbers, ok := w.portNumbers(t, ":"); ok {
		w.emit(negated, option, numbers)
		return
	}
	w.unknownName("port name "+t.Text, negated, Token{Text: strings.TrimLeft(option, "-"), Column: t.Column})
}

// portNumbers replaces the names in "http:https" or "http,8000:8080".
func (w *wording) portNumbers(t Token, separators string) (Token, bool) {
	text, all := "", true
	for rest := t.Text; ; {
		end := strings.IndexAny(rest, separators)
		name := rest
		if end >= 0 {
			name = rest[:end]
		}
		n, ok := parseService(name)
		all = all && ok
		w.names = w.names || n != name || !ok
		text += n
		if end < 0 {
			return Token{Text: text, Column: t.Column}, all
		}
		text += rest[end : end+1]
		rest = rest[end+1:]
	}
}

// tcpFlags reads "flags:0x17/0x02" or "tcpflags: FIN,SYN/SYN".
func (w *wording) tcpFlags() bool {
	t, ok := w.behind("flags:")
	if !ok {
		if !w.word("tcpflags:") {
			return false
		}
		t, _ = w.next()
	}
	return w.flags(t)
}

// flags emits "0x17/0x02" or "FIN,SYN/SYN".
func (w *wording) flags(t Token) bool {
	negated, t := cutNot(t)
	mask, compare, two := strings.Cut(t.Text, "/")
	values := []Token{{Text: mask, Column: t.Column}, {Text: compare, Column: t.Column + len(mask) + 1}}
	for i := range values {
		if strings.HasPrefix(values[i].Text, "0x") {
			n, ok := number[uint8](values[i].Text)
			if !ok || n >= 1<<6 { // ECE and CWR have no names
				return false
			}
			values[i].Text = TCPFlags(n).String()
		} else {
			w.names = true
		}
	}
	w.emit(negated, "--tcp-flags", values...)
	return two && mask != "" && compare != ""
}

// tcpFlagsPhrase reads flags without "tcp" in front.
func tcpFlagsPhrase(w *wording, negated bool) bool {
	w.load("tcp")
	t, ok := w.next()
	return ok && !negated && w.flags(t)
}

// chunks reads "! any 0x0000:UBe,0x0001" or the same with names.
func (w *wording) chunks() bool {
	negated := w.word("!")
	mode, ok1 := w.next()
	list, ok2 := w.next()
	if !ok1 || !ok2 || mode.Text != "any" && mode.Text != "all" && mode.Text != "only" {
		return false
	}
	var names []string
	for item := range strings.SplitSeq(list.Text, ",") {
		name, flags, flagged := strings.Cut(item, ":")
		if n, ok := number[uint8](name); ok {
			name = ChunkType{Type: n}.String()
		}
		if flagged {
			name += ":" + flags
		}
		names = append(names, name)
	}
	list.Text = strings.Join(names, ",")
	if _, ok := parseChunks(list.Text); !ok {
		return false
	}
	w.emit(negated, "--chunk-types", mode, list)
	return true
}

// icmpPhrase reads "icmp echo-request", "icmp !any", "icmp !type 3 code 4".
func icmpPhrase(module, option string) phrase {
	names := icmpNames
	if module == "icmp6" {
		names = icmp6Names
	}
	number := icmpNumber(module, option)
	return func(w *wording, negated bool) bool {
		switch {
		case w.word("type"):
			return number(w, negated)
		case w.word("!type"), w.word("!", "type"):
			return number(w, !negated)
		}
		not, t, ok := w.negatable()
		if _, known := names[t.Text]; !ok || !known {
			return false
		}
		w.names = true
		w.load(module)
		w.emit(not != negated, option, t)
		return true
	}
}

// icmpNumber reads "icmptype 3 code 4" behind its first word.
func icmpNumber(module, option string) phrase {
	return func(w *wording, negated bool) bool {
		w.load(module)
		typ, ok := w.next()
		if w.word("code") {
			code, coded := w.next()
			typ.Text, ok = typ.Text+"/"+code.Text, ok && coded
		}
		w.emit(negated, option, typ)
		return ok && w.peek() != "codes" // "codes 1 to 5": iptables has no option for that
	}
}

func multiportPhrase(w *wording, negated bool) bool {
	side, ok1 := w.next()
	not, list, ok2 := w.negatable()
	if !ok1 || !ok2 || negated || side.Text != "sports" && side.Text != "dports" && side.Text != "ports" {
		return false
	}
	numbers, known := w.portNumbers(list, ",:")
	if !known {
		w.unknownName("port names "+list.Text, not, side)
		return true
	}
	w.load("multiport")
	w.emit(not, "--"+side.Text, numbers)
	return true
}
