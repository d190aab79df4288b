package iptables

import (
	"fmt"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// Mark is "-m mark": the packet's mark.
type Mark struct {
	Mark    MaskedValue
	Negated bool
}

// Connmark is "-m connmark": the mark of the packet's connection. A packet without one
// does not match, negated or not (xt_connmark.c, connmark_mt).
type Connmark struct {
	Mark    MaskedValue
	Negated bool
}

var markShapes = map[string]shape{"--mark": notOne}

var _ = addMatch(&module{
	name: "mark", shapes: markShapes,
	phrases: map[string]phrase{"mark": valuePhrase("mark", "--mark", "match"), "MARK": valuePhrase("mark", "--mark", "match")},
	build:   func(s *section) Match { m, negated := sole(s, "--mark", aMark); return Mark{m, negated} },
})

var _ = addMatch(&module{
	name: "connmark", shapes: markShapes,
	phrases: map[string]phrase{"connmark": valuePhrase("connmark", "--mark", "match"), "CONNMARK": valuePhrase("connmark", "--mark", "match")},
	build:   func(s *section) Match { m, negated := sole(s, "--mark", aMark); return Connmark{m, negated} },
})

func (Mark) module() string   { return "mark" }
func (m Mark) write(w *words) { w.option(m.Negated, "--mark", m.Mark.String()) }

func (m Mark) test(c *Context) Truth {
	return c.meta(rules.PacketMark).marked(m.Mark, m.Negated)
}

func (Mark) why(c *Context) string { return "the mark is " + HexMark(c.Packet.Mark) }

func (m Mark) whyNot(c *Context) string { return isNot(m.why(c), m.Mark.String(), m.Negated) }

// HexMark is "0x4000".
func HexMark(mark uint32) string { return fmt.Sprintf("%#x", mark) }

func (Connmark) module() string   { return "connmark" }
func (m Connmark) write(w *words) { w.option(m.Negated, "--mark", m.Mark.String()) }

func (m Connmark) test(c *Context) Truth {
	return c.ofConnection(rules.ConnectionMark).marked(m.Mark, m.Negated)
}

func (m Connmark) whyNot(c *Context) string {
	e := c.Host.Connection()
	if e == nil {
		return "it has no connection, so no connection's mark"
	}
	return isNot("the connection's mark is "+HexMark(e.Mark), m.Mark.String(), m.Negated)
}

// SetMark is "-j MARK": mark = mark &^ Mask ^ Value (xt_mark.c, mark_tg). --set-mark,
// --and-mark, --or-mark and --xor-mark are only other spellings.
type SetMark struct{ Mark MaskedValue }

// Apply returns the changed mark.
func (t SetMark) Apply(mark uint32) uint32 { return mark&^t.Mark.Mask ^ t.Mark.Value }

var markOptions = []string{"--set-xmark", "--set-mark", "--and-mark", "--or-mark", "--xor-mark"}

var setMarkShapes = map[string]shape{"--set-xmark": one, "--set-mark": one, "--and-mark": one, "--or-mark": one, "--xor-mark": one}

// xmark reads any of markOptions as the value of --set-xmark (libxt_MARK.c, mark_tg_parse).
func (s *section) xmark(o option) MaskedValue {
	switch o.name.Text {
	case "--set-xmark":
		return first(s, o, aMark)
	case "--set-mark":
		m := first(s, o, aMark)
		return MaskedValue{m.Value, m.Value | m.Mask}
	}
	bits := first(s, o, anyUint32)
	switch o.name.Text {
	case "--and-mark":
		return MaskedValue{0, ^bits}
	case "--or-mark":
		return MaskedValue{bits, bits}
	}
	return MaskedValue{bits, 0}
}

var _ = addTarget(&target{
	name:    "MARK",
	shapes:  setMarkShapes,
	phrases: map[string]phrase{"MARK": setMarkPhrase},
	build:   func(s *section) Target { return SetMark{s.xmark(s.oneOf(markOptions...))} },
})

func (SetMark) name() string     { return "MARK" }
func (t SetMark) write(w *words) { w.bare("--set-xmark", t.Mark.Full()) }

func (t SetMark) change(c *Context) { c.Packet.Mark = t.Apply(c.Packet.Mark) }

func (SetMark) effect(c *Context) string {
	return "the mark is " + HexMark(c.Packet.Mark) + " from here on"
}

// SetConnmark is "-j CONNMARK" (xt_connmark.c, connmark_tg).
type SetConnmark struct {
	Mode ConnmarkMode
	// Mark is valid iff Mode is ConnmarkSet, and as in [SetMark].
	Mark MaskedValue
	// PacketMask and ConnectionMask (--nfmask, --ctmask) are valid otherwise: only the bits of its
	// own mask are copied from a mark, and they are applied to the bits of the other mask by xor.
	PacketMask, ConnectionMask uint32
	// Shift is how many bits the mark is shifted to the left, negative to the right, -31 to 31
	// (revision 2, Linux 4.18).
	Shift int8
}

// ConnmarkMode is what SetConnmark does (xt_connmark.h).
type ConnmarkMode uint8

// The modes.
const (
	ConnmarkSet     ConnmarkMode = iota // XT_CONNMARK_SET
	ConnmarkSave                        // XT_CONNMARK_SAVE: the packet's mark to the connection
	ConnmarkRestore                     // XT_CONNMARK_RESTORE: the connection's mark to the packet
)

func (m ConnmarkMode) String() string {
	return nameOf([]string{"--set-xmark", "--save-mark", "--restore-mark"}, m)
}

var _ = addTarget(&target{
	name: "CONNMARK",
	shapes: with(setMarkShapes, map[string]shape{
		"--save-mark": flag, "--restore-mark": flag, "--nfmask": one, "--ctmask": one, "--mask": one,
		"--left-shift-mark": one, "--right-shift-mark": one,
	}),
	phrases: map[string]phrase{"CONNMARK": setConnmarkPhrase},
	build: func(s *section) Target {
		t := SetConnmark{}
		o := s.oneOf(append([]string{"--save-mark", "--restore-mark"}, markOptions...)...)
		switch o.name.Text {
		case "--save-mark":
			t.Mode = ConnmarkSave
		case "--restore-mark":
			t.Mode = ConnmarkRestore
		default:
			t.Mark = s.xmark(o)
		}
		if t.Mode != ConnmarkSet {
			mask := optional(s, "--mask", anyUint32, ^uint32(0))
			t.PacketMask = optional(s, "--nfmask", anyUint32, mask)
			t.ConnectionMask = optional(s, "--ctmask", anyUint32, mask)
		} else if m, ok := s.last("--mask", "--ctmask", o.name.Text); ok && m.name.Text != o.name.Text {
			t.Mark.Mask = value(s, m.values[0], anyUint32)
		}
		if shift, ok := s.last("--left-shift-mark", "--right-shift-mark"); ok {
			n := value(s, shift.values[0], kind[uint8]{"a number of bits", "0 to 31", func(text string) (uint8, bool) {
				n, ok := number[uint8](text)
				return n, ok && n < 32
			}})
			if t.Shift = int8(n); shift.name.Text == "--right-shift-mark" {
				t.Shift = -t.Shift
			}
		}
		return t
	},
})

func (SetConnmark) name() string { return "CONNMARK" }
func (t SetConnmark) write(w *words) {
	w.bare(t.Mode.String())
	if t.Mode == ConnmarkSet {
		w.bare(t.Mark.Full())
	} else {
		w.bare("--nfmask", hexText(t.PacketMask), "--ctmask", hexText(t.ConnectionMask))
	}
	switch {
	case t.Shift > 0:
		w.bare("--left-shift-mark", decimal(uint8(t.Shift)))
	case t.Shift < 0:
		w.bare("--right-shift-mark", decimal(uint8(-t.Shift)))
	}
}

// change is connmark_tg_shift (xt_connmark.c).
func (t SetConnmark) change(c *Context) {
	e := c.Host.Connection()
	if e == nil {
		return
	}
	shift := func(m uint32) uint32 {
		if t.Shift < 0 {
			return m >> -t.Shift
		}
		return m << t.Shift
	}
	switch t.Mode {
	case ConnmarkSet:
		e.Mark = shift(e.Mark&^t.Mark.Mask ^ t.Mark.Value)
	case ConnmarkSave:
		e.Mark = e.Mark&^t.ConnectionMask ^ shift(c.Packet.Mark&t.PacketMask)
	case ConnmarkRestore:
		c.Packet.Mark = c.Packet.Mark&^t.PacketMask ^ shift(e.Mark&t.ConnectionMask)
	}
}

func (t SetConnmark) effect(c *Context) string {
	e := c.Host.Connection()
	switch {
	case e == nil:
		return "has no connection to mark"
	case t.Mode == ConnmarkRestore:
		return "the mark becomes that of the connection, " + HexMark(c.Packet.Mark)
	}
	return "the connection's mark is " + HexMark(e.Mark) + " from here on"
}

func hexText(n uint32) string { return MaskedValue{n, ^uint32(0)}.String() }

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
