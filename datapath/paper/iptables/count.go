package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Quota is "-m quota": the first Bytes bytes of the packets that reach the rule (xt_quota.c).
type Quota struct {
	Bytes   uint64
	Negated bool // the packets after them
}

var _ = addMatch(&module{
	name: "quota", shapes: map[string]shape{"--quota": notOne},
	phrases: map[string]phrase{"quota:": quotaPhrase},
	build: func(s *section) Match {
		v, negated := sole(s, "--quota", anyUint64)
		return Quota{v, negated}
	},
})

func (Quota) module() string   { return "quota" }
func (m Quota) write(w *words) { w.option(m.Negated, "--quota", decimal(m.Bytes)) }

func (Quota) reads() Facts { return FactMemory | FactLength }

// test is quota_mt (xt_quota.c). A dump does not show how much a running host has left.
func (m Quota) test(c *Context) Truth {
	type key place
	left, known := recall[uint64](c, key(c.place()))
	if !known {
		if left = m.Bytes; !c.Host.Fresh() {
			c.assume("line %d: that nothing of the quota of %d bytes was used before", c.Rule.Line, m.Bytes)
		}
	}
	length := uint64(c.Packet.Length)
	c.keep(key(c.place()), left-min(left, length))
	return truthOf((left >= length) != m.Negated)
}

func (m Quota) whyNot(*Context) string {
	verb := "is"
	if m.Negated {
		verb = "is not"
	}
	return fmt.Sprintf("the quota of %d bytes %s used up", m.Bytes, verb)
}

// quotaPhrase reads "quota: 1000 bytes", which is also what a negated one prints.
func quotaPhrase(w *wording, negated bool) bool {
	w.load("quota")
	w.notes["quota"] = "quotas are listed without their \"!\": each is assumed to have none"
	return !negated && w.value("--quota") && w.word("bytes")
}

// Connlimit is "-m connlimit": the number of existing connections of one address that the rule has
// met (xt_connlimit.c).
type Connlimit struct {
	Limit uint32
	// UpTo: at most Limit connections, the packet's own included; else more.
	UpTo bool
	// Bits is the length of the prefix whose addresses are counted together.
	Bits        uint8
	Destination bool // count by the destination's address, not the source's
}

var _ = addMatch(&module{
	name: "connlimit",
	shapes: map[string]shape{
		"--connlimit-above": notOne, "--connlimit-upto": notOne, "--connlimit-mask": one, "--connlimit-saddr": flag, "--connlimit-daddr": flag,
	},
	phrases: map[string]phrase{"#conn": connlimitPhrase},
	build: func(s *section) Match {
		m := Connlimit{Destination: s.has("--connlimit-daddr")}
		s.atMostOne("--connlimit-saddr", "--connlimit-daddr")
		o := s.oneOf("--connlimit-above", "--connlimit-upto")
		m.UpTo = (o.name.Text == "--connlimit-upto") != o.negated
		m.Limit = first(s, o, anyUint32)
		m.Bits = optional(s, "--connlimit-mask", kind[uint8]{"a prefix length", "0 to the length of an address", func(t string) (uint8, bool) {
			n, ok := number[uint32](t)
			return uint8(min(n, uint32(addrBits(s.family)))), ok // a longer one is that of an address
		}}, uint8(addrBits(s.family)))
		return m
	},
})

func (Connlimit) module() string { return "connlimit" }
func (m Connlimit) write(w *words) {
	option, side := "--connlimit-above", "--connlimit-saddr"
	if m.UpTo {
		option = "--connlimit-upto"
	}
	if m.Destination {
		side = "--connlimit-daddr"
	}
	w.bare(option, decimal(m.Limit), "--connlimit-mask", decimal(m.Bits), side)
}

func (Connlimit) reads() Facts { return FactMemory }

// test is connlimit_mt (xt_connlimit.c).
func (m Connlimit) test(c *Context) Truth {
	type key struct {
		place
		addr netip.Addr
		zone uint16
	}
	addr := c.Address(!m.Destination)
	if p, err := addr.Prefix(int(m.Bits)); err == nil {
		addr = p.Addr()
	}
	n := c.CountConnections(key{c.place(), addr, c.connection().zone}, " of "+addr.String())
	return truthOf((uint64(n) > uint64(m.Limit)) != m.UpTo)
}

type connection struct {
	original Tuple
	zone     uint16
}

// connection is the packet's own.
func (c *Context) connection() connection {
	if e := c.Host.Connection(); e != nil {
		return connection{e.Original, e.Zone}
	}
	return connection{c.Packet.Tuple(), c.Host.Zone()}
}

// CountConnections counts the connections that were kept under a key, and are not over, with the packet's own (nf_conncount.c). what tells
// which they are, behind "connection".
func (c *Context) CountConnections(key any, what string) int {
	own := c.connection()
	list, known := recall[[]connection](c, key)
	if !known && !c.Host.Fresh() {
		c.assume("line %d: that no other connection%s is counted", c.Rule.Line, what)
	}
	list = append(slices.DeleteFunc(slices.Clone(list), func(k connection) bool {
		return k == own || !c.Host.Lives(k.original, k.zone)
	}), own)
	c.keep(key, list)
	return len(list)
}

func (m Connlimit) whyNot(*Context) string {
	if m.UpTo {
		return fmt.Sprintf("there are more than %d connections", m.Limit)
	}
	return fmt.Sprintf("there are no more than %d connections", m.Limit)
}

// connlimitPhrase reads "#conn src/32 > 3" and "#conn dst/24 <= 3".
func connlimitPhrase(w *wording, negated bool) bool {
	w.load("connlimit")
	of, _ := w.next()
	sign, _ := w.next()
	limit, ok := w.next()
	side, bits, masked := strings.Cut(of.Text, "/")
	option, ok2 := map[string]string{">": "--connlimit-above", "<=": "--connlimit-upto"}[sign.Text]
	flag, ok3 := map[string]string{"src": "--connlimit-saddr", "dst": "--connlimit-daddr"}[side]
	w.emit(false, option, limit)
	w.emit(false, "--connlimit-mask", Token{Text: bits, Column: of.Column})
	w.emit(false, flag)
	return ok && ok2 && ok3 && masked && !negated
}

// Connbytes is "-m connbytes": the traffic of the packet's connection, including the packet
// (xt_connbytes.c). The rule turns the kernel's counters of connections on; an older connection
// has none, and never matches.
type Connbytes struct {
	Count     Range[uint64]
	Negated   bool
	Unit      ConnbytesUnit
	Direction ConnbytesDirection
}

// ConnbytesUnit is enum xt_connbytes_what.
type ConnbytesUnit uint8

// The units.
const (
	ConnbytesPackets ConnbytesUnit = iota
	ConnbytesBytes
	ConnbytesAverage // bytes a packet
)

// ConnbytesDirection is enum xt_connbytes_direction.
type ConnbytesDirection uint8

// The directions.
const (
	ConnbytesOriginal ConnbytesDirection = iota
	ConnbytesReply
	ConnbytesBoth
)

var (
	connbytesUnits      = []string{"packets", "bytes", "avgpkt"}
	connbytesDirections = []string{"original", "reply", "both"}
)

func (u ConnbytesUnit) String() string      { return nameOf(connbytesUnits, u) }
func (d ConnbytesDirection) String() string { return nameOf(connbytesDirections, d) }

// anAmount reads "10:20", and "10", which has no end.
var anAmount = kind[Range[uint64]]{"a range", "from:to, or from", func(s string) (Range[uint64], bool) {
	if !strings.Contains(s, ":") {
		s += ":"
	}
	return parseRange[uint64](s, ":")
}}

var _ = addMatch(&module{
	name: "connbytes", shapes: map[string]shape{"--connbytes": notOne, "--connbytes-mode": one, "--connbytes-dir": one},
	phrases: map[string]phrase{"connbytes": connbytesPhrase},
	build: func(s *section) Match {
		amount := s.oneOf("--connbytes")
		m := Connbytes{
			Count:     first(s, amount, anAmount),
			Unit:      first(s, s.oneOf("--connbytes-mode"), oneName[ConnbytesUnit]("a mode", connbytesUnits)),
			Direction: first(s, s.oneOf("--connbytes-dir"), oneName[ConnbytesDirection]("a direction", connbytesDirections)),
		}
		// The kernel stores a negated range with its ends swapped, which is impossible for one
		// number.
		m.Negated = amount.negated && m.Count.First != m.Count.Last
		return m
	},
})

func (Connbytes) module() string { return "connbytes" }
func (m Connbytes) write(w *words) {
	amount := decimal(m.Count.First)
	if m.Count.Last != ^uint64(0) {
		amount += ":" + decimal(m.Count.Last)
	}
	w.option(m.Negated, "--connbytes", amount)
	w.bare("--connbytes-mode", m.Unit.String(), "--connbytes-dir", m.Direction.String())
}

func (m Connbytes) reads() Facts {
	if m.Unit == ConnbytesPackets {
		return FactMemory
	}
	return FactMemory | FactLength
}

// test is connbytes_mt (xt_connbytes.c). A template counts nothing.
func (m Connbytes) test(c *Context) Truth {
	e := c.Host.Connection()
	return truthOf(e != nil && c.Host.Tracked() && m.Count.Contains(m.amount(e)) != m.Negated)
}

// amount returns the number that is compared.
func (m Connbytes) amount(e *Connection) uint64 {
	sum := e.Traffic[0]
	switch m.Direction {
	case ConnbytesReply:
		sum = e.Traffic[1]
	case ConnbytesBoth:
		sum.Packets += e.Traffic[1].Packets
		sum.Bytes += e.Traffic[1].Bytes
	}
	switch {
	case m.Unit == ConnbytesPackets:
		return sum.Packets
	case m.Unit == ConnbytesBytes:
		return sum.Bytes
	case sum.Packets == 0:
		return 0
	}
	return sum.Bytes / sum.Packets
}

func (m Connbytes) whyNot(c *Context) string {
	e := c.Host.Connection()
	if e == nil || !c.Host.Tracked() {
		return "it has no connection that is counted"
	}
	what := [...]string{"packets", "bytes", "bytes per packet"}[m.Unit]
	direction := [...]string{"in its own direction", "in the reply direction", "in both directions"}[m.Direction]
	wanted := fmt.Sprintf("%d to %d", m.Count.First, m.Count.Last)
	if m.Count.Last == ^uint64(0) {
		wanted = fmt.Sprintf("%d or more", m.Count.First)
	}
	return isNot(fmt.Sprintf("%s of its connection %s: %d", what, direction, m.amount(e)), wanted, m.Negated)
}

// connbytesPhrase reads "! connbytes 10:20 connbytes mode packets connbytes direction both".
func connbytesPhrase(w *wording, negated bool) bool {
	w.load("connbytes")
	not := w.word("!") // older versions print it here
	amount, _ := w.next()
	w.emit(negated || not, "--connbytes", amount)
	return w.word("connbytes", "mode") && w.value("--connbytes-mode") && w.word("connbytes", "direction") && w.value("--connbytes-dir")
}

// Helper is "-m helper": the packet's connection was expected by another one's helper
// (xt_helper.c).
type Helper struct {
	Name    string // empty: any
	Negated bool
}

var _ = addMatch(&module{
	name: "helper", shapes: map[string]shape{"--helper": notOne},
	phrases: map[string]phrase{"helper": helperPhrase},
	build: func(s *section) Match {
		v, negated := sole(s, "--helper", keptText(29))
		return Helper{v, negated}
	},
})

func (Helper) module() string { return "helper" }
func (m Helper) write(w *words) {
	w.flag(m.Negated, "!")
	w.text("--helper", m.Name)
}

func (Helper) reads() Facts { return FactKernel }

// test is false for every connection that no helper expected: there are no others.
func (m Helper) test(*Context) Truth { return truthOf(m.Negated) }

func (Helper) whyNot(*Context) string { return "its connection is not related to another one" }

// helperPhrase reads `helper match "ftp"` and `helper match ! ""`.
func helperPhrase(w *wording, negated bool) bool {
	w.load("helper")
	if negated || !w.word("match") {
		return false
	}
	not := w.word("!")
	t, ok := w.next()
	name, quoted := strings.CutPrefix(t.Text, `"`)
	name, closed := strings.CutSuffix(name, `"`)
	w.emit(not, "--helper")
	w.args = append(w.args, Token{Text: name, Quoted: true, Column: t.Column})
	return ok && quoted && closed
}
