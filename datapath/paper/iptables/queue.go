package iptables

import (
	"strings"
)

// NFQueue is "-j NFQUEUE": the packet goes to a program.
type NFQueue struct {
	// Queues are the queues for flows; --queue-num is a range of one.
	Queues    Range[uint16]
	Bypass    bool // accept the packet if no program listens
	CPUFanout bool // select the queue by the CPU instead of the flow
}

var _ = addTarget(&target{
	name:    "NFQUEUE",
	shapes:  map[string]shape{"--queue-num": one, "--queue-balance": one, "--queue-bypass": flag, "--queue-cpu-fanout": flag},
	phrases: map[string]phrase{"NFQUEUE": nfqueuePhrase},
	build: func(s *section) Target {
		t := NFQueue{Bypass: s.has("--queue-bypass"), CPUFanout: s.has("--queue-cpu-fanout")}
		o, ok := s.atMostOne("--queue-num", "--queue-balance")
		switch {
		case ok && o.name.Text == "--queue-num":
			n := value(s, o.values[0], anyUint16)
			t.Queues = Range[uint16]{n, n}
		case ok:
			t.Queues = value(s, o.values[0], kind[Range[uint16]]{"a range of queues", "first:last", func(text string) (Range[uint16], bool) {
				r, ok := parseRange[uint16](text, ":")
				return r, ok && r.First < r.Last
			}})
		}
		if f, ok := s.find("--queue-cpu-fanout"); ok && t.Queues.First == t.Queues.Last {
			s.fail(f.name, "--queue-cpu-fanout for one queue", "--queue-balance")
		}
		return t
	},
})

func (NFQueue) name() string { return "NFQUEUE" }
func (t NFQueue) write(w *words) {
	if t.Queues.First == t.Queues.Last {
		w.bare("--queue-num", decimal(t.Queues.First))
	} else {
		w.bare("--queue-balance", t.Queues.String())
	}
	w.flag(t.Bypass, "--queue-bypass")
	w.flag(t.CPUFanout, "--queue-cpu-fanout")
}

func (NFQueue) effect(*Context) string { return "waits in a netfilter queue for a program" }

// Log is "-j LOG".
type Log struct {
	Prefix string
	Level  uint8 // of syslog, 0 to 7; 4 (warning) if the text does not have it
	// Further logged data: xt_LOG.h, XT_LOG_...
	TCPSequence, TCPOptions, IPOptions, UID, MACDecode bool
}

var logLevels = map[string]uint8{
	"emerg": 0, "panic": 0, "alert": 1, "crit": 2, "error": 3, "err": 3, "warning": 4, "warn": 4, "notice": 5,
	"info": 6, "debug": 7,
}

var _ = addTarget(&target{
	name: "LOG",
	shapes: map[string]shape{
		"--log-prefix": one, "--log-level": one, "--log-tcp-sequence": flag, "--log-tcp-options": flag,
		"--log-ip-options": flag, "--log-uid": flag, "--log-macdecode": flag,
	},
	phrases: map[string]phrase{"LOG": logPhrase},
	build: func(s *section) Target {
		return Log{
			Prefix: optional(s, "--log-prefix", keptText(29), ""),
			Level: optional(s, "--log-level", kind[uint8]{"a level", "0 to 7, or a name like debug", func(t string) (uint8, bool) {
				if n, ok := logLevels[t]; ok {
					return n, true
				}
				n, ok := number[uint8](t)
				return n, ok && n < 8
			}}, 4),
			TCPSequence: s.has("--log-tcp-sequence"), TCPOptions: s.has("--log-tcp-options"),
			IPOptions: s.has("--log-ip-options"), UID: s.has("--log-uid"), MACDecode: s.has("--log-macdecode"),
		}
	},
})

func (Log) name() string { return "LOG" }
func (t Log) write(w *words) {
	if t.Prefix != "" {
		w.text("--log-prefix", t.Prefix)
	}
	writeNumber(w, "--log-level", t.Level, 4)
	w.flag(t.TCPSequence, "--log-tcp-sequence")
	w.flag(t.TCPOptions, "--log-tcp-options")
	w.flag(t.IPOptions, "--log-ip-options")
	w.flag(t.UID, "--log-uid")
	w.flag(t.MACDecode, "--log-macdecode")
}

func (Log) inert()                 {}
func (Log) effect(*Context) string { return isLogged }

const isLogged = "is logged"

// NFLog is "-j NFLOG": a copy of the packet goes to a program.
type NFLog struct {
	Prefix string
	Group  uint16
	// Range is the number of bytes of --nflog-range, which the kernel ignores; Size is that of
	// --nflog-size, which it uses (Linux 4.10). 0: not given.
	Range, Size uint32
	Threshold   uint16 // packets that are sent together; 1 if the text does not have it
}

var _ = addTarget(&target{
	name: "NFLOG",
	shapes: map[string]shape{
		"--nflog-prefix": one, "--nflog-group": one, "--nflog-range": one, "--nflog-size": one, "--nflog-threshold": one,
	},
	phrases: map[string]phrase{"NFLOG": nflogPhrase},
	build: func(s *section) Target {
		s.atMostOne("--nflog-range", "--nflog-size")
		return NFLog{
			Prefix: optional(s, "--nflog-prefix", keptText(63), ""), Group: optional(s, "--nflog-group", anyUint16, 0),
			Range: optional(s, "--nflog-range", anyUint32, 0), Size: optional(s, "--nflog-size", anyUint32, 0),
			Threshold: max(1, optional(s, "--nflog-threshold", anyUint16, 1)), // 0 is the default
		}
	},
})

func (NFLog) name() string { return "NFLOG" }
func (t NFLog) write(w *words) {
	if t.Prefix != "" {
		w.text("--nflog-prefix", t.Prefix)
	}
	writeNumber(w, "--nflog-group", t.Group, 0)
	writeNumber(w, "--nflog-range", t.Range, 0)
	writeNumber(w, "--nflog-size", t.Size, 0)
	writeNumber(w, "--nflog-threshold", t.Threshold, 1)
}

func (NFLog) inert()                 {}
func (NFLog) effect(*Context) string { return isLogged }

// Audit is "-j AUDIT": a line in the audit log.
type Audit struct{ Type AuditType }

// AuditType is the type of the line (xt_AUDIT.h).
type AuditType uint8

// The types.
const (
	AuditAccept AuditType = iota
	AuditDrop
	AuditReject
)

var auditNames = []string{"accept", "drop", "reject"}

func (t AuditType) String() string { return nameOf(auditNames, t) }

var _ = addTarget(&target{
	name:    "AUDIT",
	shapes:  map[string]shape{"--type": one},
	phrases: map[string]phrase{"AUDIT": targetPhrase("--type", "AUDIT")},
	build: func(s *section) Target {
		s.oneOf("--type")
		return Audit{optional(s, "--type", oneName[AuditType]("a type", auditNames), 0)}
	},
})

func (Audit) name() string     { return "AUDIT" }
func (t Audit) write(w *words) { w.bare("--type", t.Type.String()) }

func (Audit) inert()                 {}
func (Audit) effect(*Context) string { return isLogged }

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
		at := w.at
		if !w.listed(targets["NFLOG"].shapes, [][2]string{
			{"nflog-group", "--nflog-group"}, {"nflog-range", "--nflog-range"}, {"nflog-size", "--nflog-size"}, {"nflog-threshold", "--nflog-threshold"},
		}) || w.at == at {
			return false
		}
	}
	return w.at > begin
}

// quotedText reads a text that is quoted as in iptables-save.
func (w *wording) quotedText(option string) bool {
	for end := w.at + 1; end <= len(w.words); end++ {
		words, e := Split(joined(w.words[w.at:end]))
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
	if next := w.peek(); next != "num" && next != "balance" {
		return false
	}
	return w.listed(targets["NFQUEUE"].shapes, [][2]string{
		{"num", "--queue-num"}, {"balance", "--queue-balance"}, {"bypass", "--queue-bypass"}, {"cpu-fanout", "--queue-cpu-fanout"},
	})
}
