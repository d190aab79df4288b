package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// TTL is "-m ttl": the time to live of an IPv4 packet.
type TTL struct {
	Compare Comparison // never CompareNone
	Value   uint8
}

// HopLimit is "-m hl": the hop limit of an IPv6 packet.
type HopLimit TTL

var _ = addMatch(hopModule("ttl", IPv4, func(t TTL) Match { return t }))
var _ = addMatch(hopModule("hl", IPv6, func(t TTL) Match { return HopLimit(t) }))

func hopModule(name string, f Family, of func(TTL) Match) *module {
	eq, lt, gt := "--"+name+"-eq", "--"+name+"-lt", "--"+name+"-gt"
	return &module{
		name: name, family: f,
		shapes:  map[string]shape{eq: notOne, "--" + name: notOne.named(eq), lt: one, gt: one},
		phrases: map[string]phrase{strings.ToUpper(name): hopPhrase(strings.ToUpper(name), name)},
		build: func(s *section) Match {
			o := s.oneOf(eq, lt, gt)
			return of(TTL{o.comparison(), first(s, o, anyUint8)})
		},
	}
}

func (TTL) module() string   { return "ttl" }
func (m TTL) write(w *words) { m.writeAs(w, "ttl") }

func (HopLimit) module() string   { return "hl" }
func (m HopLimit) write(w *words) { TTL(m).writeAs(w, "hl") }

func (TTL) reads() Facts { return FactTTL }

func (m TTL) test(c *Context) Truth {
	r, negated := rules.Exactly([]byte{m.Value}), m.Compare == CompareNotEqual
	hopLimit := rules.Payload{Offset: 8, ByteSize: 1}
	if !c.Packet.Is4() {
		hopLimit = rules.Payload{Six: true, Offset: 7, ByteSize: 1}
	}
	switch m.Compare {
	case CompareLess: // not at least the value
		r, negated = rules.Range{First: r.First, Last: []byte{0xff}}, true
	case CompareGreater: // not at most the value
		r, negated = rules.Range{First: []byte{0}, Last: r.First}, true
	}
	return c.payload(hopLimit).in(r, negated)
}

func (m TTL) whyNot(c *Context) string {
	fact := fmt.Sprintf("%s is %d", c.Packet.hopName(), c.Packet.TTL)
	switch m.Compare {
	case CompareEqual:
		return fmt.Sprintf("%s, not %d", fact, m.Value)
	case CompareLess:
		return fmt.Sprintf("%s, not less than %d", fact, m.Value)
	case CompareGreater:
		return fmt.Sprintf("%s, not more than %d", fact, m.Value)
	}
	return fact
}

// hopName is the name of the field TTL.
func (p *Packet) hopName() string {
	if p.Is4() {
		return "the time to live"
	}
	return "the hop limit"
}

func (HopLimit) reads() Facts               { return FactTTL }
func (m HopLimit) test(c *Context) Truth    { return TTL(m).test(c) }
func (m HopLimit) whyNot(c *Context) string { return TTL(m).whyNot(c) }

func (m TTL) writeAs(w *words, name string) {
	w.option(m.Compare == CompareNotEqual, "--"+name+comparisonOption(m.Compare), decimal(m.Value))
}

// HopChange is the change of the time to live or the hop limit by a target.
type HopChange uint8

// The changes (ipt_TTL.h).
const (
	HopSet       HopChange = iota // IPT_TTL_SET
	HopIncrement                  // IPT_TTL_INC
	HopDecrement                  // IPT_TTL_DEC
)

var hopChangeNames = []string{"set", "inc", "dec"}

// SetTTL is "-j TTL".
type SetTTL struct {
	Change HopChange
	Value  uint8
}

// SetHopLimit is "-j HL".
type SetHopLimit SetTTL

// Apply returns the changed number, within 0 to 255 (xt_HL.c).
func (t SetTTL) Apply(n uint8) uint8 {
	switch t.Change {
	case HopIncrement:
		return uint8(min(255, int(n)+int(t.Value)))
	case HopDecrement:
		return uint8(max(0, int(n)-int(t.Value)))
	}
	return t.Value
}

var _ = addTarget(hopTarget("TTL", IPv4, func(t SetTTL) Target { return t }))
var _ = addTarget(hopTarget("HL", IPv6, func(t SetTTL) Target { return SetHopLimit(t) }))

func hopTarget(name string, f Family, of func(SetTTL) Target) *target {
	var options []string
	shapes := make(map[string]shape)
	for _, change := range hopChangeNames {
		option := "--" + strings.ToLower(name) + "-" + change
		options, shapes[option] = append(options, option), one
	}
	phrases := map[string]phrase{name: setHopPhrase(name)}
	return &target{name: name, family: f, table: "mangle", shapes: shapes, phrases: phrases, build: func(s *section) Target {
		o := s.oneOf(options...)
		t := SetTTL{HopChange(max(0, slices.Index(options, o.name.Text))), first(s, o, anyUint8)}
		if t.Change != HopSet && t.Value == 0 {
			s.fail(o.values[0], "a change by 0", "1 to 255")
		}
		return of(t)
	}}
}

func (SetTTL) name() string     { return "TTL" }
func (t SetTTL) write(w *words) { w.bare("--ttl-"+nameOf(hopChangeNames, t.Change), decimal(t.Value)) }

func (SetHopLimit) name() string { return "HL" }
func (t SetHopLimit) write(w *words) {
	w.bare("--hl-"+nameOf(hopChangeNames, t.Change), decimal(t.Value))
}

func (t SetTTL) change(c *Context)      { c.Packet.TTL = t.Apply(c.Packet.TTL) }
func (t SetHopLimit) change(c *Context) { SetTTL(t).change(c) }

func (SetTTL) effect(c *Context) string {
	return fmt.Sprintf("%s is %d from here on", c.Packet.hopName(), c.Packet.TTL)
}

func (t SetHopLimit) effect(c *Context) string { return SetTTL(t).effect(c) }

// TOS is "-m tos": tos&Mask == Value, of the whole byte (xt_dscp.c, tos_mt).
type TOS struct {
	Value, Mask uint8
	Negated     bool
}

var aTOS = kind[TOS]{"a type of service", "value or value/mask, of 8 bits, or a name like Minimize-Delay", func(t string) (TOS, bool) {
	if n, ok := tosNames[t]; ok {
		return TOS{Value: n, Mask: 0x3f}, true
	}
	return parseMaskedTOS(t)
}}

func parseMaskedTOS(text string) (TOS, bool) {
	v, mask, two := strings.Cut(text, "/")
	n, ok := number[uint8](v)
	if !two {
		return TOS{Value: n, Mask: 0xff}, ok
	}
	m, ok2 := number[uint8](mask)
	return TOS{Value: n, Mask: m}, ok && ok2
}

var _ = addMatch(&module{
	name: "tos", shapes: map[string]shape{"--tos": notOne},
	phrases: map[string]phrase{"tos": tosMatchPhrase},
	build: func(s *section) Match {
		m, negated := sole(s, "--tos", aTOS)
		m.Negated = negated
		return m
	},
})

func (TOS) module() string { return "tos" }
func (m TOS) write(w *words) {
	w.option(m.Negated, "--tos", fmt.Sprintf("0x%02x/0x%02x", m.Value, m.Mask))
}

func (TOS) reads() Facts { return FactTOS }

func (m TOS) test(c *Context) Truth {
	return c.hasTOS(m.Value, m.Mask, m.Negated)
}

func (m TOS) whyNot(c *Context) string {
	return isNot(fmt.Sprintf("the type of service is %#02x", c.Packet.TOS), fmt.Sprintf("%#02x/%#02x", m.Value, m.Mask), m.Negated)
}

// DSCP is "-m dscp": the upper six bits of the type of service.
type DSCP struct {
	DSCP    uint8 // 0 to 63
	Negated bool
}

var aDSCP = kind[uint8]{"a code point", "0 to 63", func(t string) (uint8, bool) {
	n, ok := number[uint8](t)
	return n, ok && n < 64
}}

var _ = addMatch(&module{
	name: "dscp", shapes: map[string]shape{"--dscp": notOne, "--dscp-class": notOne},
	phrases: map[string]phrase{"DSCP": valuePhrase("dscp", "--dscp", "match")},
	build: func(s *section) Match {
		o, k := s.oneOf("--dscp", "--dscp-class"), aDSCP
		if o.name.Text == "--dscp-class" {
			k = kind[uint8]{"a class", "CS0 to CS7, AF11 to AF43, BE or EF", dscpClass}
		}
		return DSCP{first(s, o, k), o.negated}
	},
})

func (DSCP) module() string   { return "dscp" }
func (m DSCP) write(w *words) { w.option(m.Negated, "--dscp", fmt.Sprintf("0x%02x", m.DSCP)) }

func (DSCP) reads() Facts { return FactTOS }

func (m DSCP) test(c *Context) Truth { return c.hasTOS(m.DSCP<<2, 0xfc, m.Negated) }

func (m DSCP) whyNot(c *Context) string {
	return isNot(fmt.Sprintf("the DSCP is %#02x", c.Packet.TOS>>2), fmt.Sprintf("%#02x", m.DSCP), m.Negated)
}

// SegmentSize is "-m tcpmss": the maximum segment size in a TCP packet. A packet without the
// option matches only a negated match (xt_tcpmss.c).
type SegmentSize struct {
	Range   Range[uint16]
	Negated bool
}

var _ = addMatch(&module{
	name: "tcpmss", shapes: map[string]shape{"--mss": notOne},
	phrases: map[string]phrase{"tcpmss": valuePhrase("tcpmss", "--mss", "match")},
	build: func(s *section) Match {
		s.needs(s.name, "-m tcpmss", protoTCP)
		v, negated := sole(s, "--mss", kind[Range[uint16]]{"a segment size", "0 to 65535, or first:last", func(t string) (Range[uint16], bool) {
			return parseRange[uint16](t, ":")
		}})
		return SegmentSize{v, negated}
	},
})

func (SegmentSize) module() string   { return "tcpmss" }
func (m SegmentSize) write(w *words) { w.option(m.Negated, "--mss", m.Range.String()) }

func (SegmentSize) reads() Facts { return FactOptions }

// test is tcpmss_mt (xt_tcpmss.c).
func (m SegmentSize) test(c *Context) Truth {
	offered := slices.Contains(c.Packet.TCPOptions, tcpOptionMSS)
	return truthOf((offered && m.Range.Contains(c.Packet.MSS)) != m.Negated)
}

func (m SegmentSize) whyNot(c *Context) string {
	if !slices.Contains(c.Packet.TCPOptions, tcpOptionMSS) {
		return "it does not offer a segment size"
	}
	return isNot(fmt.Sprintf("the segment size that it offers is %d", c.Packet.MSS), m.Range.String(), m.Negated)
}

const tcpOptionMSS = 2 // TCPOPT_MSS

// RoutingHeader is "-m rt": a routing header of IPv6. A packet without one does not match, negated
// or not (ip6t_rt.c).
type RoutingHeader struct {
	Type         Condition[uint32]
	SegmentsLeft Condition[Range[uint32]]
	Length       Condition[uint32] // in bytes
	Reserved     bool              // the reserved field counts, too
	// Addresses are those that a header of type 0 must have, in this order.
	Addresses []netip.Addr
	NotStrict bool // others may be among them
}

var _ = addMatch(&module{
	name: "rt", family: IPv6,
	shapes: map[string]shape{
		"--rt-type": notOne, "--rt-segsleft": notOne, "--rt-len": notOne, "--rt-0-res": flag, "--rt-0-addrs": one, "--rt-0-not-strict": flag,
	},
	phrases: map[string]phrase{"rt": rtPhrase},
	build: func(s *section) Match {
		m := RoutingHeader{
			Type: condition(s, "--rt-type", anyUint32),
			SegmentsLeft: condition(s, "--rt-segsleft", kind[Range[uint32]]{"a number of segments", "a number, or first:last", func(t string) (Range[uint32], bool) {
				return parseAnyRange[uint32](t, ":")
			}}),
			Length: condition(s, "--rt-len", anyUint32), Reserved: s.has("--rt-0-res"), NotStrict: s.has("--rt-0-not-strict"),
		}
		if o, ok := s.find("--rt-0-addrs"); ok {
			const most = 16 // IP6T_RT_HOPS
			m.Addresses = value(s, o.values[0], kind[[]netip.Addr]{"a list of IPv6 addresses", "at most 16 addresses", func(t string) (all []netip.Addr, ok bool) {
				for text := range strings.SplitSeq(t, ",") {
					a, ok := parseAddr(s.family, text)
					if !ok {
						return nil, false
					}
					all = append(all, a)
				}
				return all, len(all) <= most
			}})
		}
		return m
	},
})

func (RoutingHeader) module() string { return "rt" }
func (m RoutingHeader) write(w *words) {
	writeCondition(w, "--rt-type", m.Type, decimal)
	writeCondition(w, "--rt-segsleft", m.SegmentsLeft, Range[uint32].String)
	writeCondition(w, "--rt-len", m.Length, decimal)
	w.flag(m.Reserved, "--rt-0-res")
	if len(m.Addresses) > 0 {
		var list []string
		for _, a := range m.Addresses {
			list = append(list, a.String())
		}
		w.bare("--rt-0-addrs", strings.Join(list, ","))
	}
	w.flag(m.NotStrict, "--rt-0-not-strict")
}

func (RoutingHeader) reads() Facts           { return FactBytes }
func (RoutingHeader) test(*Context) Truth    { return False } // there are none: see Packet
func (RoutingHeader) whyNot(*Context) string { return "it has no routing header" }

// hopPhrase reads "TTL match TTL == 5" and "HL match HL != 5".
func hopPhrase(name, module string) phrase {
	return func(w *wording, negated bool) bool {
		w.load(module)
		if negated || !w.word("match", name) {
			return false
		}
		sign, _ := w.next()
		t, ok := w.next()
		option, known := map[string]string{"==": "-eq", "!=": "-eq", "<": "-lt", ">": "-gt"}[sign.Text]
		w.emit(sign.Text == "!=", "--"+module+option, t)
		return ok && known
	}
}

// setHopPhrase reads "TTL set to 5", "TTL increment by 5" and "TTL decrement by 5".
func setHopPhrase(name string) phrase {
	return func(w *wording, _ bool) bool {
		option := "--" + strings.ToLower(name)
		switch {
		case w.word(name, "set", "to"):
			return w.value(option + "-set")
		case w.word(name, "increment", "by"):
			return w.value(option + "-inc")
		}
		return w.word(name, "decrement", "by") && w.value(option+"-dec")
	}
}

// tosMatchPhrase reads "tos match0x10/0xff", "tos match!0x08/0x3f" and "tos match! Minimize-Delay";
// newer ones have the space.
func tosMatchPhrase(w *wording, negated bool) bool {
	w.load("tos")
	t, ok := w.behind("match")
	if ok && t.Text == "" {
		t, ok = w.next()
	}
	not, t := cutNot(t)
	if ok && not && t.Text == "" {
		t, ok = w.next()
	}
	w.names = w.names || ok && strings.Contains(t.Text, "-")
	w.emit(not, "--tos", t)
	return ok && !negated
}

// rtPhrase reads "rt type:!0 segslefts:1:3 length:24 reserved 0-addrs ::1,::2 0-not-strict".
func rtPhrase(w *wording, negated bool) bool {
	w.load("rt")
	for {
		found := false
		for _, p := range []struct{ prefix, option string }{
			{"type:", "--rt-type"}, {"segsleft:", "--rt-segsleft"}, {"segslefts:", "--rt-segsleft"}, {"length:", "--rt-len"},
		} {
			if t, ok := w.behind(p.prefix); ok {
				not, t := cutNot(t)
				w.emit(not, p.option, t)
				found = true
			}
		}
		switch {
		case found:
		case w.word("reserved"):
			w.emit(false, "--rt-0-res")
		case w.word("0-addrs"):
			if !w.value("--rt-0-addrs") {
				return false
			}
		case w.word("0-not-strict"):
			w.emit(false, "--rt-0-not-strict")
		default:
			return !negated
		}
	}
}

// tosNames are the names of types of service (tos_values.c). The six bits of a name
// count.
var tosNames = map[string]uint8{
	"Minimize-Delay": 0x10, "Maximize-Throughput": 0x08, "Maximize-Reliability": 0x04, "Minimize-Cost": 0x02, "Normal-Service": 0,
}
